"""Group commit: what concurrent stages of one tenant have to write at the same moment shares one transaction.

A flush starts as soon as the previous one of its tenant ended: an idle system adds no delay, a busy one forms
batches by itself. One bad item never fails its neighbours, and an item whose rows somebody holds waits for nobody but
itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg import errors as pg

from kernel import (
    Begun,
    Kernel,
    LeasedJob,
    Settled,
    Settlement,
    StageCompleted,
    StepAnswer,
    StepOp,
    StepRow,
    read_steps,
)
from service.worker.clock import DatabaseClock
from service.worker.flusher import Answer, Flusher, Request, StepOps, Stepped
from tenancy import CommitOutcomeUnknownError, Database, DatabaseUnavailableError

logger = logging.getLogger(__name__)
BATCH = 100
# The most that the payloads of one flush measure together, unless one item alone has more: each item waits for all of
# them to be written, with the runs' locks held, and a parameter of a statement holds 1 GB at most.
BATCH_CHARACTERS = 16 * 1024 * 1024
# While one flush of a tenant waits for the disk, a second one can be executed; more only queue at the server.
LANES = 2
LANE_BATCH = 16
BUSY_ROUNDS = 5
RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)
# What lies with the server (no disk, no memory, a standby, a lock) passes; what lies with the item does not.
TRANSIENT = (pg.OperationalError, pg.ReadOnlySqlTransaction)
HOPELESS = (pg.ProgramLimitExceeded, pg.StatementTooComplex, pg.TooManyColumns, pg.TooManyArguments)


@dataclass(slots=True)
class _Item:
    """One settle, begin or write of steps, and who waits for its answer."""

    request: Request
    answer: asyncio.Future[Any]
    rounds: int = 0


@dataclass(slots=True)
class _Queue:
    """Items of one tenant that can share a flush, and how many flushes are under way for them."""

    items: deque[_Item] = field(default_factory=deque[_Item])
    flushes: int = 0

    @property
    def wants_flush(self) -> bool:
        """Whether to start a flush: the first at once, a second one beside it only for a batch worth its commit."""
        return bool(self.items) and (self.flushes == 0 or (self.flushes < LANES and len(self.items) >= LANE_BATCH))


@dataclass(frozen=True, slots=True)
class WriterHooks:
    """What the writer asks of its host: room for leases ahead, and what to do when a COMMIT's outcome is unknown."""

    lease_ahead: Callable[[UUID, int], int]
    outcome_unknown: Callable[[UUID], None]


class LedgerWriter:
    """Queues begins, steps and settles by tenant and flushes them in shared transactions."""

    def __init__(
        self, kernel: Kernel, database: Database, worker_id: str, hooks: WriterHooks, tasks: asyncio.TaskGroup
    ) -> None:
        self.clock = DatabaseClock()
        self._blobs = kernel.scope.blobs
        self._database = database
        self._hooks = hooks
        self._tasks = tasks
        self._flusher = Flusher(kernel, database, worker_id, hooks.lease_ahead, self.clock)
        # Steps apart from the rest: each kind of flush is a single message, a mixed one would be four.
        self._queues: dict[tuple[UUID, bool], _Queue] = {}
        self._has_given_up = False
        self._flushing: set[asyncio.Task[None]] = set()
        self._writes: dict[UUID, set[asyncio.Future[None]]] = {}

    async def settle(self, tenant_id: UUID, settlement: Settlement) -> Settled:
        """Settle a job; returns once its transaction has committed.

        Raises:
            Exception: what the database says of this item when it fails alone.
        """
        settled: Settled = await self._put(tenant_id, settlement)
        return settled

    async def begin(self, tenant_id: UUID, job: LeasedJob) -> Begun:
        """Begin a leased job; returns once its transaction has committed."""
        begun: Begun = await self._put(tenant_id, job)
        return begun

    async def steps(self, tenant_id: UUID, ops: Sequence[StepOp]) -> tuple[StepAnswer, ...]:
        """Write what an execution does with its steps; returns once its transaction has committed."""
        stepped: Stepped = await self._put(tenant_id, StepOps(tuple(ops)))
        return stepped.answers

    async def read_steps(self, tenant_id: UUID, job: LeasedJob) -> list[StepRow]:
        """Return the steps of a job's stage, in a transaction that writes nothing."""
        async with self._database.transaction(tenant_id) as tx:
            return await read_steps(tx, job.run_id, job.stage_id, self._blobs)

    async def written(self, tenant_id: UUID) -> None:
        """Wait until the transactions of this tenant's that are under way have ended, well or not."""
        if under_way := self._writes.get(tenant_id):
            await asyncio.wait([*under_way])

    def give_up(self) -> None:
        """Write nothing more: the database is away and the process is to end."""
        self._has_given_up = True
        for flush in self._flushing:
            flush.cancel()

    def _put(self, tenant_id: UUID, request: Request) -> asyncio.Future[Any]:
        item = _Item(request, asyncio.get_running_loop().create_future())
        key = tenant_id, isinstance(request, StepOps)
        queue = self._queues.setdefault(key, _Queue())
        queue.items.append(item)
        if queue.wants_flush:
            queue.flushes += 1
            self._start(self._drain(key, queue))
        return item.answer

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # In a context of its own: what a body's span and work are is not what a flush of many bodies does.
        task = self._tasks.create_task(work, context=Context())
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def _drain(self, key: tuple[UUID, bool], queue: _Queue) -> None:
        try:
            while queue.items:
                batch = _take_batch(queue.items)
                await self._flush(key[0], batch, queue)
        finally:
            queue.flushes -= 1
            if not queue.items and not queue.flushes:
                self._queues.pop(key, None)

    async def _flush(self, tenant_id: UUID, batch: list[_Item], queue: _Queue) -> None:
        try:
            answers = await self._write_until_told(tenant_id, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one item's own
            await self._flush_alone(tenant_id, batch, error)
            return
        for item, answer in zip(batch, answers, strict=True):
            if answer.status != "busy":
                _resolve(item, answer)
            elif item.rounds < BUSY_ROUNDS:
                item.rounds += 1
                queue.items.append(item)
            else:
                # Waits for the row in a transaction that holds nothing else, beside the flushes that go on.
                self._start(self._wait_alone(tenant_id, item))

    async def _flush_alone(self, tenant_id: UUID, batch: list[_Item], error: Exception) -> None:
        if len(batch) == 1:
            _reject(batch[0], error)
            return
        told = {"tenant_id": str(tenant_id), "items": len(batch), "error": type(error).__name__}
        logger.warning("flush_failed_repeating_each_alone", extra=told)
        for item in batch:
            await self._wait_alone(tenant_id, item)

    async def _wait_alone(self, tenant_id: UUID, item: _Item) -> None:
        try:
            (answer,) = await self._write_until_told(tenant_id, [item], wait=True)
        except Exception as error:  # noqa: BLE001 - the item's own failure, told to whoever waits for it
            _reject(item, error)
        else:
            _resolve(item, answer)

    async def _write_until_told(self, tenant_id: UUID, batch: list[_Item], *, wait: bool = False) -> list[Answer]:
        """Write a batch; while the database is away or says "try again", try again.

        Repeating is safe whatever became of the first try: a settle that is fenced out looks at who settled the stage.
        """
        tries = 0
        while True:
            try:
                with self._noted(tenant_id):
                    return await self._flusher.write(tenant_id, [item.request for item in batch], wait=wait)
            except CommitOutcomeUnknownError:
                self._hooks.outcome_unknown(tenant_id)
            except (DatabaseUnavailableError, *TRANSIENT) as error:
                if isinstance(error, HOPELESS):
                    raise
                told = {"tenant_id": str(tenant_id), "tries": tries + 1, "error": type(error).__name__}
                logger.warning("flush_repeated", extra=told)
            if self._has_given_up:
                raise asyncio.CancelledError
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    @contextmanager
    def _noted(self, tenant_id: UUID) -> Generator[None]:
        done = asyncio.get_running_loop().create_future()
        under_way = self._writes.setdefault(tenant_id, set())
        under_way.add(done)
        try:
            yield
        finally:
            done.set_result(None)
            under_way.discard(done)
            if not under_way:
                self._writes.pop(tenant_id, None)


@dataclass(frozen=True, slots=True)
class StepLedger:
    """The steps of one leased job: written with whatever else its tenant writes at that moment, read by themselves."""

    tenant_id: UUID
    job: LeasedJob
    writer: LedgerWriter

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        """Write ops in a shared transaction."""
        return await self.writer.steps(self.tenant_id, ops)

    async def read(self) -> Sequence[StepRow]:
        """Read the stage's steps."""
        return await self.writer.read_steps(self.tenant_id, self.job)


def _take_batch(items: deque[_Item]) -> list[_Item]:
    """Take the next items, up to a number of them and, beyond the first, a size of their payloads."""
    batch: list[_Item] = []
    characters = 0
    while items and len(batch) < BATCH:
        characters += _characters(items[0].request)
        if batch and characters > BATCH_CHARACTERS:
            break
        batch.append(items.popleft())
    return batch


def _characters(request: Request) -> int:
    """Return how long the payloads are that a request writes."""
    if isinstance(request, LeasedJob):
        return 0
    ops = request.ops if isinstance(request, StepOps) else request.steps
    results = sum(len(op.values.get("result") or "") for op in ops)
    if isinstance(request, StepOps):
        return results
    said = sum(line.size for line in request.report.logs) + sum(note.size_bytes for note in request.annotations)
    return results + said + (len(request.outcome.output) if isinstance(request.outcome, StageCompleted) else 0)


def _resolve(item: _Item, answer: Answer) -> None:
    if not item.answer.done():
        item.answer.set_result(answer)


def _reject(item: _Item, error: Exception) -> None:
    if not item.answer.done():
        item.answer.set_exception(error)
