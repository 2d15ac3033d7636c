"""Runs the bodies of leased jobs, many at once, and settles each through the ledger writer.

A job's life here: ask its `when`, begin it, run its body with no transaction open, settle, go on with the jobs that the
settle leased ahead. A slot is taken from lease to settle; an abandoned thread keeps its own until it returns.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Literal, Self
from uuid import UUID

from kernel import (
    AbortReason,
    AbortSignal,
    ExecutionSpan,
    Fence,
    LeasedJob,
    Settlement,
    StageFailed,
    StageInvocation,
    StageJournal,
    StageOutcome,
    StageReleased,
    StageSkipped,
    StepExecution,
    give_steps,
    invocation_of,
    run_stage,
    run_when,
)
from service.settings import Settings
from service.worker.ledger_writer import LedgerWriter, StepLedger

logger = logging.getLogger(__name__)
# How long a cancelled body may take to end before nobody waits for it any more.
LET_GO_S = 1.0


@dataclass(slots=True, eq=False)
class Execution:
    """One leased job under way; `task` runs it and `began_at` is the monotonic clock's."""

    tenant_id: UUID
    job: LeasedJob
    abort: AbortSignal = field(default_factory=AbortSignal)
    journal: StageJournal = field(default_factory=StageJournal)
    began_at: float = field(default_factory=monotonic)
    task: asyncio.Task[None] | None = None
    body: asyncio.Task[Any] | None = None
    ended: asyncio.Future[None] | None = None
    steps: StepExecution | None = None
    tracing: ExecutionSpan | None = None
    is_settling: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """What the settings say of executions; times in seconds."""

    concurrency: int
    abort_grace_s: float
    max_output_bytes: int
    outcome_linger_s: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what these settings say."""
        return cls(
            settings.worker_concurrency,
            settings.abort_grace.total_seconds(),
            settings.max_payload_bytes,
            settings.outcome_linger.total_seconds(),
        )


class Executor:
    """Holds the executions of this worker: at most `concurrency` of them, bodies that were abandoned included."""

    def __init__(self, limits: "ExecutorLimits", tasks: asyncio.TaskGroup) -> None:
        self.concurrency = limits.concurrency
        self.executions: dict[Fence, Execution] = {}
        self.by_tenant: Counter[UUID] = Counter()
        self.writer: LedgerWriter | None = None
        self.on_room: Callable[[UUID], None] = lambda _tenant_id: None
        self._abort_grace_s = limits.abort_grace_s
        self._max_output_bytes = limits.max_output_bytes
        self._linger_s = limits.outcome_linger_s
        self._tasks = tasks
        self._threads = ThreadPoolExecutor(limits.concurrency, thread_name_prefix="tenantry-stage")
        self._abandoned = 0
        self._left_alone: set[asyncio.Task[Any]] = set()
        self._stopping: AbortReason | None = None
        self._ended: list[Execution] = []
        self._changed = asyncio.Event()

    @property
    def room(self) -> int:
        """How many more jobs this worker can take."""
        return max(self.concurrency - len(self.executions) - self._abandoned, 0)

    @property
    def abandoned(self) -> int:
        """How many bodies still run that nobody waits for any more: threads, and tasks that ignore cancellation."""
        return self._abandoned

    def start(self, tenant_id: UUID, jobs: Iterable[LeasedJob]) -> None:
        """Take leased jobs into execution."""
        for job in jobs:
            if self.writer is not None:
                self.writer.clock.observe(job.fence.started_at)
            execution = Execution(tenant_id, job)
            # Whoever tells it: the ledger of its steps may know before anybody looks. By its fence, since a signal that
            # held its execution would be a cycle, one for each job.
            loop = asyncio.get_running_loop()
            execution.abort.on_abort = partial(loop.call_soon_threadsafe, self._begin_grace, job.fence)
            self.executions[job.fence] = execution
            self.by_tenant[tenant_id] += 1
            execution.task = self._tasks.create_task(self._execute(execution))
            if self._stopping is not None:
                self.abort(execution, self._stopping)

    def abort(self, execution: Execution, reason: AbortReason) -> None:
        """Tell a body to stop; after the grace its task is cancelled. Once told, further reasons change nothing."""
        execution.abort.abort(reason)

    def abort_all(self, reason: AbortReason) -> None:
        """Tell every body to stop, those that are yet to come included."""
        self._stopping = reason
        for execution in list(self.executions.values()):
            self.abort(execution, reason)

    def give_up(self) -> None:
        """Leave everything as it is: what was not written stays leased until the leases lapse."""
        for execution in list(self.executions.values()):
            if execution.task is not None:
                execution.task.cancel()

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self.executions:
            self._changed.clear()
            await self._changed.wait()

    def take_reportable(self) -> list[Execution]:
        """Return the executions whose journals may hold something.

        Those under way and those that ended since the last call.
        """
        ended, self._ended = self._ended, []
        return [*ended, *self.executions.values()]

    def close(self) -> None:
        """Let go of the threads; those that still run end with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin_grace(self, fence: Fence) -> None:
        asyncio.get_running_loop().call_later(self._abort_grace_s, self._cancel_body, fence)

    def _cancel_body(self, fence: Fence) -> None:
        execution = self.executions.get(fence)
        if execution is not None and execution.body is not None and not execution.body.done():
            execution.body.cancel()
            asyncio.get_running_loop().call_later(LET_GO_S, _end, execution.ended)

    async def _execute(self, execution: Execution) -> None:
        tracing = execution.tracing = ExecutionSpan.of(execution.tenant_id, execution.job)
        try:
            outcome = await self._outcome(execution)
            if outcome is not None:
                await self._settle(execution, outcome, tracing)
        except Exception:
            # Nothing could be written about this job: its heartbeats stop here, and lease.reap_stale takes it back.
            with tracing.entered():
                logger.exception("execution_lost")
        finally:
            # Settled, it has ended before; what was not begun, refused or given up is not the stage's failure.
            tracing.end("lost", None)
            self._forget(execution)

    def _forget(self, execution: Execution) -> None:
        if self.executions.pop(execution.job.fence, None) is not None:
            if execution.journal.has_reports:
                self._ended.append(execution)
            self.by_tenant[execution.tenant_id] -= 1
            if not self.by_tenant[execution.tenant_id]:
                del self.by_tenant[execution.tenant_id]
        self._changed.set()
        self.on_room(execution.tenant_id)

    async def _outcome(self, execution: Execution) -> StageOutcome | None:
        """Return what the stage came to, or None when the lease is no longer ours and nothing is to be written."""
        job, tenant_id = execution.job, execution.tenant_id
        invocation = invocation_of(
            job, tenant_id, self._max_output_bytes, abort=execution.abort, journal=execution.journal
        )
        if execution.abort.aborted:
            # Leased by a tick or a settle that was under way when the worker was told to stop.
            return self._aborted(execution)
        if not execution.job.begun:
            answer = await self._ask(execution, invocation)
            if answer is not True:
                return answer
            assert self.writer is not None
            begun = await self.writer.begin(execution.tenant_id, execution.job)
            if begun.status != "begun":
                if execution.tracing is not None:
                    execution.tracing.end(begun.status, None)
                return None
            execution.job = begun.job
            if execution.abort.reason is not None:
                # Told while it was begun: the grace may be over, and a body that starts now would not be cancelled.
                return self._aborted(execution)
        if execution.job.placed.stage.is_async:
            assert self.writer is not None
            ledger = StepLedger(tenant_id, execution.job, self.writer)
            execution.steps = give_steps(invocation, execution.job, ledger, linger_s=self._linger_s)
        return await self._run_body(execution, invocation)

    async def _ask(self, execution: Execution, invocation: StageInvocation) -> StageOutcome | Literal[True]:
        """Return how the stage ends without its body, or True when the body is to run."""
        answer = await self._until_ended(execution, invocation, run_when(invocation, self._threads))
        if execution.abort.reason == "shutdown":
            return StageReleased()
        if answer is None:
            return self._aborted(execution)
        if isinstance(answer, StageFailed):
            return answer
        return True if answer else StageSkipped()

    async def _run_body(self, execution: Execution, invocation: StageInvocation) -> StageOutcome:
        outcome: StageOutcome | None = await self._until_ended(
            execution, invocation, run_stage(invocation, self._threads)
        )
        if outcome is None:
            return self._aborted(execution)
        if execution.abort.reason == "shutdown" and isinstance(outcome, StageFailed):
            return StageReleased()
        return outcome

    async def _until_ended(
        self, execution: Execution, invocation: StageInvocation, call: Coroutine[Any, Any, Any]
    ) -> Any:
        """Await foreign code in a task of its own, so that an abort can cancel it and not what comes after it.

        Returns None when it was cancelled, by `_cancel_body` or by itself; one that goes on all the same is left alone.
        """
        loop = asyncio.get_running_loop()
        ended = execution.ended = loop.create_future()
        context = execution.tracing.context() if execution.tracing is not None else None
        body = execution.body = loop.create_task(_interruptible(call), context=context)
        body.add_done_callback(lambda _body: _end(ended))
        try:
            await ended
        except asyncio.CancelledError:
            body.cancel()
            raise
        finally:
            self._keep_slots_of(invocation)
            if not body.done():
                self._leave_alone(body)
        return None if not body.done() or body.cancelled() else body.result()

    def _leave_alone(self, body: asyncio.Task[Any]) -> None:
        """Keep the slot of a task that ignores its cancellation until it ends."""

        def ended(_body: asyncio.Task[Any]) -> None:
            self._left_alone.discard(body)
            self._returned()

        self._abandoned += 1
        self._left_alone.add(body)
        body.add_done_callback(ended)

    def _aborted(self, execution: Execution) -> StageOutcome:
        if execution.abort.reason == "shutdown":
            return StageReleased()
        if execution.abort.reason is None:
            return StageFailed("CancelledError: the body cancelled its own task")
        return StageFailed(f"StageAbortedError: the stage was aborted: {execution.abort.reason}")

    def _keep_slots_of(self, invocation: StageInvocation) -> None:
        """Keep a slot for each thread that outlives its body's task until it returns; what it returns is discarded."""
        loop = asyncio.get_running_loop()

        def returned(_thread: Future[object]) -> None:
            # At the process's end the loop may be gone before the thread is.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._returned)

        for thread in invocation.running_threads():
            self._abandoned += 1
            thread.add_done_callback(returned)

    def _returned(self) -> None:
        self._abandoned -= 1
        self._changed.set()

    async def _settle(self, execution: Execution, outcome: StageOutcome, tracing: ExecutionSpan) -> None:
        assert self.writer is not None
        execution.is_settling = True
        tracing.settle()
        job, tenant_id = execution.job, execution.tenant_id
        annotations = tuple(execution.journal.annotations())
        steps = execution.steps.remaining if execution.steps is not None else ()
        try:
            report = execution.journal.take_report()
            settled = await self.writer.settle(tenant_id, Settlement(job, outcome, annotations, steps, report))
        except Exception as error:
            with tracing.entered():
                logger.exception("settle_refused")
            outcome = StageFailed(f"{type(error).__name__}: the outcome could not be stored", retryable=False)
            settled = await self.writer.settle(tenant_id, Settlement(job, outcome))
        tracing.end(settled.status, outcome)
        self._forget(execution)
        self.start(tenant_id, settled.next_jobs)


def _end(ended: asyncio.Future[None] | None) -> None:
    if ended is not None and not ended.done():
        ended.set_result(None)


async def _interruptible(call: Coroutine[Any, Any, Any]) -> Any:
    """Await foreign code; a KeyboardInterrupt is its own making, since the worker's signals never raise one."""
    try:
        return await call
    except KeyboardInterrupt as error:
        return StageFailed(f"KeyboardInterrupt: {error}".removesuffix(": "))
