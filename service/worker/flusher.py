"""Writes one batch of a tenant's settles, begins or steps, in one transaction and as few messages as it can.

Settles that can be decided before the locks are had, and steps, travel in a single message from BEGIN to COMMIT; what
does not turn out as expected is written the long way: lock, look, decide, write.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias
from uuid import UUID

from kernel import (
    Begun,
    JobBegin,
    JobSettle,
    JobSettleExpected,
    Kernel,
    LeasedJob,
    PutAside,
    Settled,
    Settlement,
    StepAnswer,
    StepOp,
    StepWrite,
    follow_up,
    has_large_result,
    is_expectable,
    needs_follow_up,
)
from service.worker.clock import DatabaseClock
from tenancy import Database


@dataclass(frozen=True, slots=True)
class StepOps:
    """What one execution does with its steps."""

    ops: tuple[StepOp, ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """The answers to `StepOps`; all of them are busy, or none: they are one run's."""

    answers: tuple[StepAnswer, ...]

    @property
    def status(self) -> str:
        """`busy` when somebody holds the run."""
        return self.answers[0].verdict


Request: TypeAlias = Settlement | LeasedJob | StepOps
Answer: TypeAlias = Settled | Begun | Stepped


class Flusher:
    """Turns requests into transactions; `lease_ahead` is asked how many jobs so many settles may lease ahead."""

    def __init__(
        self,
        kernel: Kernel,
        database: Database,
        worker_id: str,
        lease_ahead: Callable[[UUID, int], int],
        clock: DatabaseClock,
    ) -> None:
        self._kernel = kernel
        self._database = database
        self._worker_id = worker_id
        self._lease_ahead = lease_ahead
        self._clock = clock

    async def write(self, tenant_id: UUID, requests: Sequence[Request], *, wait: bool) -> list[Answer]:
        """Write a batch, steps or the rest, and answer in its order; with `wait` its runs are waited for."""
        steps = [request for request in requests if isinstance(request, StepOps)]
        if steps:
            return [*await self._write_steps(tenant_id, steps, wait=wait)]
        settlements = [request for request in requests if isinstance(request, Settlement)]
        begins = [request for request in requests if isinstance(request, LeasedJob)]
        if not begins and not wait:
            settled = await self._settle_expected(tenant_id, settlements)
            if settled is not None:
                return [*settled]
        return await self._write_jobs(tenant_id, requests, begins, settlements, wait=wait)

    async def _write_steps(self, tenant_id: UUID, steps: Sequence[StepOps], *, wait: bool) -> list[Stepped]:
        ops = [op for request in steps for op in request.ops]
        blobs = self._kernel.scope.blobs
        # Waiting for a lock may take longer than an opening message may; what is large follows in messages of its own.
        is_short = not wait and not has_large_result(ops, blobs.inline_bytes)
        async with self._database.transaction(tenant_id, in_one_message=is_short) as tx:
            answers = await self._kernel.dispatch(StepWrite(ops, wait=wait, follows_up=not is_short), tx)
        if is_short and needs_follow_up(ops, answers):
            async with self._database.transaction(tenant_id) as tx:
                answers = await follow_up(ops, answers, tx, PutAside(blobs))
        told = iter(answers)
        return [Stepped(tuple(islice(told, len(request.ops)))) for request in steps]

    async def _settle_expected(self, tenant_id: UUID, settlements: Sequence[Settlement]) -> Sequence[Settled] | None:
        at = self._clock.estimate()
        if at is None or not is_expectable(settlements, self._kernel.scope.blobs.inline_bytes):
            return None
        ahead = self._lease_ahead(tenant_id, len(settlements))
        command = JobSettleExpected(self._worker_id, settlements, at, lease_ahead=ahead)
        async with self._database.transaction(tenant_id, in_one_message=True) as tx:
            answer = await self._kernel.dispatch(command, tx)
        self._clock.observe(answer.now)
        return answer.settled

    async def _write_jobs(
        self,
        tenant_id: UUID,
        requests: Sequence[Request],
        begins: Sequence[LeasedJob],
        settlements: Sequence[Settlement],
        *,
        wait: bool,
    ) -> list[Answer]:
        begun: list[Begun] = []
        settled: list[Settled] = []
        async with self._database.transaction(tenant_id) as tx:
            if begins:
                begin = JobBegin(begins, wait=wait)
                begun = [*await self._kernel.dispatch(begin, tx)]
            if settlements:
                ahead = self._lease_ahead(tenant_id, len(settlements))
                command = JobSettle(self._worker_id, settlements, lease_ahead=ahead, wait=wait)
                settled = [*await self._kernel.dispatch(command, tx)]
        begun_of, settled_of = iter(begun), iter(settled)
        return [next(settled_of) if isinstance(request, Settlement) else next(begun_of) for request in requests]
