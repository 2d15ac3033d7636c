"""One worker process as a test sees it: executes leased jobs as the real one does, and can die at any of its writes."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid4

from kernel.command import Command
from kernel.commands.job_begin import JobBegin
from kernel.commands.job_settle import JobSettle, Settlement
from kernel.commands.step_write import StepWrite, read_steps
from kernel.execution.abort import AbortSignal
from kernel.execution.journal import StageJournal
from kernel.execution.ledger import StepAnswer, StepOp, StepRow
from kernel.execution.outcome import StageOutcome
from kernel.execution.perform import STEP_THREADS, Performance, ask_when, give_steps, invocation_of
from kernel.execution.stage_runner import run_stage
from kernel.jobs import LeasedJob
from kernel.kernel import Kernel
from kernel.testing.kills import Mortality, describe
from kernel.testing.script import Script
from tenancy import TenantTransaction

R = TypeVar("R")
Transactions = Callable[[], AbstractAsyncContextManager[TenantTransaction]]


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker of a harness works with; `linger_s` as in the worker's settings, None for no linger."""

    kernel: Kernel
    tenant_id: UUID
    transactions: Transactions
    script: Script
    linger_s: float | None


class HarnessWorker:
    """Executes jobs until it dies. Its id is its own, as that of every process is."""

    def __init__(self, parts: WorkerParts, mortality: Mortality) -> None:
        self.worker_id = f"harness-{uuid4()}"
        self._parts = parts
        self._life = mortality
        self._aborts: list[tuple[UUID, AbortSignal]] = []

    @property
    def is_dead(self) -> bool:
        """Whether a kill has happened: whatever it had leased stays leased."""
        return self._life.is_over

    def abort(self, run_id: UUID) -> None:
        """Tell the bodies of a run that it was cancelled, as a heartbeat would."""
        for owner, signal in self._aborts:
            if owner == run_id:
                signal.abort("cancelled")

    async def execute(self, jobs: Sequence[LeasedJob], lease_ahead: int) -> list[LeasedJob]:
        """Execute leased jobs side by side and return those that their settles leased ahead; none if it dies."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._execute(job, lease_ahead)) for job in jobs]
        try:
            pending: set[asyncio.Future[Any]] = {self._life.death, *tasks}
            while len(pending) > 1 and not self.is_dead:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not self.is_dead:
                return [job for task in tasks for job in task.result()]
        finally:
            for task in tasks:
                task.cancel()
            self._life.bury()
            await asyncio.gather(*tasks, return_exceptions=True)
        return []

    async def _execute(self, job: LeasedJob, lease_ahead: int) -> tuple[LeasedJob, ...]:
        parts = self._parts
        journal = StageJournal()
        performance = await ask_when(job, parts.tenant_id, parts.kernel.scope.limits.max_payload_bytes, journal)
        if performance is None and not job.begun:
            (begun,) = await self.write(f"begin {job.stage_id}", JobBegin([job], wait=True))
            if begun.status != "begun":
                return ()
            job = begun.job
        if performance is None:
            performance = await self._perform(job, journal)
        settlement = Settlement(
            job, performance.outcome, performance.annotations, performance.steps, performance.report
        )
        command = JobSettle(self.worker_id, [settlement], lease_ahead=lease_ahead, wait=True)
        (settled,) = await self.write(f"settle {job.stage_id}", command)
        return settled.next_jobs

    async def _perform(self, job: LeasedJob, journal: StageJournal) -> Performance:
        parts, abort = self._parts, AbortSignal()
        limit = parts.kernel.scope.limits.max_payload_bytes
        invocation = invocation_of(job, parts.tenant_id, limit, abort=abort, journal=journal)
        steps = give_steps(invocation, job, _Ledger(self, job), linger_s=parts.linger_s)
        # Its clock stands still between two polls: it would only have to be moved.
        steps.least_wait_s = 0.0
        steps.script = parts.script.for_stage(job.run_id, job.stage_id)
        threads = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="tenantry-harness")
        entry = (job.run_id, abort)
        self._aborts.append(entry)
        try:
            outcome: StageOutcome = await run_stage(invocation, threads)
        finally:
            self._aborts.remove(entry)
            threads.shutdown(wait=False)
        return Performance(outcome, tuple(journal.annotations()), steps.remaining, journal.take_report())

    async def write(self, what: str, command: Command[R]) -> R:
        """Carry a command out in a transaction of its own, unless the worker dies before it commits."""
        life = self._life
        number = life.count()
        await life.pass_by("before", number, what)
        async with self._parts.transactions() as tx:
            answer = await self._parts.kernel.dispatch(command, tx)
            # A sibling may have died meanwhile: what is not committed by then never is.
            life.check()
        await life.pass_by("after", number, what)
        return answer

    async def read_steps(self, job: LeasedJob) -> list[StepRow]:
        """Read the steps of a job's stage."""
        self._life.check()
        async with self._parts.transactions() as tx:
            return await read_steps(tx, job.run_id, job.stage_id, self._parts.kernel.scope.blobs)


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The steps of one execution, each write in a transaction of its own."""

    worker: HarnessWorker
    job: LeasedJob

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        """Write ops, waiting for whoever holds the run."""
        return await self.worker.write(describe(ops), StepWrite(ops, wait=True))

    async def read(self) -> Sequence[StepRow]:
        """Read the stage's steps."""
        return await self.worker.read_steps(self.job)
