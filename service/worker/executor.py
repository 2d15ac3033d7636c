"""Runs the bodies of leased jobs, many at once, and settles each through the ledger writer.

A job's life here: ask its `when`, begin it, run its body with no transaction open, settle, go on with the jobs that the
settle leased ahead. A slot is taken from lease to settle; an abandoned thread keeps its own until it returns.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal
from uuid import UUID

from kernel import (
    AbortReason,
    AbortSignal,
    Fence,
    LeasedJob,
    Settlement,
    StageFailed,
    StageInvocation,
    StageJournal,
    StageOutcome,
    StageReleased,
    StageSkipped,
    invocation_of,
    run_stage,
    run_when,
)
from service.worker.ledger_writer import LedgerWriter

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Execution:
    """One leased job under way; `task` runs it and `began_at` is the monotonic clock's."""

    tenant_id: UUID
    job: LeasedJob
    abort: AbortSignal = field(default_factory=AbortSignal)
    journal: StageJournal = field(default_factory=StageJournal)
    began_at: float = field(default_factory=monotonic)
    task: asyncio.Task[None] | None = None
    body: asyncio.Task[StageOutcome] | None = None
    is_settling: bool = False


@dataclass(slots=True)
class Counts:
    """What this executor has seen, for `/metrics`."""

    started: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])


class Executor:
    """Holds the executions of this worker: at most `concurrency` of them, threads that were abandoned included."""

    def __init__(self, concurrency: int, abort_grace_s: float, max_output_bytes: int, tasks: asyncio.TaskGroup) -> None:
        self.concurrency = concurrency
        self.counts = Counts()
        self.executions: dict[Fence, Execution] = {}
        self.by_tenant: Counter[UUID] = Counter()
        self.writer: LedgerWriter | None = None
        self.on_room: Callable[[UUID], None] = lambda _tenant_id: None
        self._abort_grace_s = abort_grace_s
        self._max_output_bytes = max_output_bytes
        self._tasks = tasks
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="tenantry-stage")
        self._abandoned = 0
        self._ended: list[Execution] = []
        self._changed = asyncio.Event()

    @property
    def room(self) -> int:
        """How many more jobs this worker can take."""
        return max(self.concurrency - len(self.executions) - self._abandoned, 0)

    @property
    def abandoned_threads(self) -> int:
        """How many threads run bodies that nobody waits for any more."""
        return self._abandoned

    def start(self, tenant_id: UUID, jobs: Iterable[LeasedJob]) -> None:
        """Take leased jobs into execution."""
        for job in jobs:
            execution = Execution(tenant_id, job)
            self.executions[job.fence] = execution
            self.by_tenant[tenant_id] += 1
            self.counts.started += 1
            execution.task = self._tasks.create_task(self._execute(execution))

    def abort(self, execution: Execution, reason: AbortReason) -> None:
        """Tell a body to stop; after the grace its task is cancelled. Once told, further reasons change nothing."""
        if execution.abort.aborted:
            return
        execution.abort.abort(reason)
        asyncio.get_running_loop().call_later(self._abort_grace_s, self._cancel_body, execution)

    def abort_all(self, reason: AbortReason) -> None:
        """Tell every body to stop."""
        for execution in list(self.executions.values()):
            self.abort(execution, reason)

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

    def _cancel_body(self, execution: Execution) -> None:
        if execution.body is not None and not execution.body.done():
            execution.body.cancel()

    async def _execute(self, execution: Execution) -> None:
        try:
            outcome = await self._outcome(execution)
            if outcome is not None:
                await self._settle(execution, outcome)
        except Exception:
            # Nothing could be written about this job: its heartbeats stop here, and lease.reap_stale takes it back.
            self.counts.outcomes["lost"] += 1
            logger.exception("execution_lost", extra={"stage_id": execution.job.stage_id})
        finally:
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
        if not execution.job.begun:
            answer = await self._ask(execution, invocation)
            if answer is not True:
                return answer
            assert self.writer is not None
            begun = await self.writer.begin(execution.tenant_id, execution.job)
            if begun.status != "begun":
                self.counts.outcomes[begun.status] += 1
                return None
            execution.job = begun.job
        return await self._run_body(execution, invocation)

    async def _ask(self, execution: Execution, invocation: StageInvocation) -> StageOutcome | Literal[True]:
        """Return how the stage ends without its body, or True when the body is to run."""
        answer = await run_when(invocation, self._threads)
        if execution.abort.reason == "shutdown":
            return StageReleased()
        if isinstance(answer, StageFailed):
            return answer
        return True if answer else StageSkipped()

    async def _run_body(self, execution: Execution, invocation: StageInvocation) -> StageOutcome:
        """Run the body as a task of its own, so that an abort can cancel it and not what comes after it."""
        execution.body = self._tasks.create_task(run_stage(invocation, self._threads))
        await asyncio.wait({execution.body})
        self._keep_slot_of(invocation)
        if execution.body.cancelled():
            # By _cancel_body, after an abort and its grace, or by the body itself.
            return self._aborted(execution)
        outcome = execution.body.result()
        if execution.abort.reason == "shutdown" and isinstance(outcome, StageFailed):
            return StageReleased()
        return outcome

    def _aborted(self, execution: Execution) -> StageOutcome:
        if execution.abort.reason == "shutdown":
            return StageReleased()
        if execution.abort.reason is None:
            return StageFailed("CancelledError: the body cancelled its own task")
        return StageFailed(f"StageAbortedError: the stage was aborted: {execution.abort.reason}")

    def _keep_slot_of(self, invocation: StageInvocation) -> None:
        """Keep the slot of a thread that outlives its body's task until it returns; what it returns is discarded."""
        thread = invocation.thread
        if thread is None or thread.done():
            return
        self._abandoned += 1
        loop = asyncio.get_running_loop()
        thread.add_done_callback(lambda _done: loop.call_soon_threadsafe(self._thread_returned))

    def _thread_returned(self) -> None:
        self._abandoned -= 1
        self._changed.set()

    async def _settle(self, execution: Execution, outcome: StageOutcome) -> None:
        assert self.writer is not None
        execution.is_settling = True
        job, tenant_id = execution.job, execution.tenant_id
        annotations = tuple(execution.journal.annotations())
        try:
            settled = await self.writer.settle(tenant_id, Settlement(job, outcome, annotations))
        except Exception as error:
            logger.exception("settle_refused", extra={"run_id": str(job.run_id), "stage_id": job.stage_id})
            refusal = StageFailed(f"{type(error).__name__}: the outcome could not be stored", retryable=False)
            settled = await self.writer.settle(tenant_id, Settlement(job, refusal))
        self.counts.outcomes[_label(settled.status, outcome)] += 1
        self._forget(execution)
        self.start(tenant_id, settled.next_jobs)


def _label(status: str, outcome: StageOutcome) -> str:
    return type(outcome).__name__.removeprefix("Stage").lower() if status == "settled" else status
