"""`job.execute`: one named stage from claim to settle, for callers that are no worker.

In a caller's transaction everything runs in it, body included, and becomes durable or vanishes with it. With a
provider of transactions the body runs with none open: claim and begin in one, settle in another.
"""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Literal
from uuid import UUID, uuid4

from kernel.blobs import with_inputs
from kernel.capacity import admit_one, standing_call
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands import job_claim
from kernel.commands.job_begin import JobBegin, job_begin
from kernel.commands.job_claim import GhostJob, lease_one
from kernel.commands.job_settle import JobSettle, Settled, Settlement, job_settle
from kernel.commands.step_write import StepWrite, read_steps, step_write
from kernel.drafting import draft_of
from kernel.errors import JobNotAvailableError
from kernel.execution.journal import StageJournal
from kernel.execution.ledger import StepAnswer, StepOp, StepRow
from kernel.execution.outcome import StageCompleted, StageFailed, StageOutcome
from kernel.execution.perform import Performance, ask_when, perform
from kernel.execution.tracing import ExecutionSpan
from kernel.jobs import LeasedJob
from kernel.locking import load_stages, lock_run
from kernel.opening import LeaseBudget
from kernel.states import JobStatus, RunStatus, StageStatus
from tenancy import TenantTransaction, TransactionAbortedError, repeatable_failure

ExecuteOutcome = Literal["completed", "suspended", "failed", "skipped"]
Transactions = Callable[[], AbstractAsyncContextManager[TenantTransaction]]
_OUTCOMES: dict[StageStatus | None, ExecuteOutcome] = {
    StageStatus.COMPLETED: "completed",
    StageStatus.SUSPENDED: "suspended",
    StageStatus.SKIPPED: "skipped",
}


@dataclass(frozen=True, slots=True)
class JobExecuted:
    """What the execution came to.

    `output` is the plain JSON value of a stage that completed, as `RunCreate` takes one. A ghost (`orphan`, `race`,
    `version`) must not run: its outcome is `failed`, nothing of it was kept. `next_poll_at` is set for a suspended
    stage.
    """

    outcome: ExecuteOutcome
    output: object = None
    error: str | None = None
    will_retry: bool = False
    retry_delay_s: float | None = None
    ghost: bool = False
    ghost_reason: str | None = None
    next_poll_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobExecute(Command[JobExecuted]):
    """Execute the job of a stage now, due or not.

    Raises:
        JobNotAvailableError: the stage has no job, or a worker has leased it.
        TenantSuspendedError: the tenant is suspended.
        RateLimitedError: as many of the tenant's jobs run as may.
        tenancy.TransactionAbortedError: in a caller's transaction, the body spoilt it with a statement of its own. A
            serialization failure or a deadlock that did so is raised itself.
    """

    name: ClassVar[str] = "job.execute"
    run_id: UUID
    stage_id: str


@handles(JobExecute)
async def job_execute(command: JobExecute, tx: TenantTransaction, scope: Scope) -> JobExecuted:
    """Execute within the caller's transaction."""
    return await execute_between(command, lambda: _still(tx), scope, is_seen=False)


@asynccontextmanager
async def _still(tx: TenantTransaction) -> AsyncGenerator[TenantTransaction]:
    """Give the caller's transaction once more: a body may have done anything with its connection meanwhile."""
    await tx.confirm(writes=True)
    yield tx


async def execute_between(
    command: JobExecute, transactions: Transactions, scope: Scope, *, is_seen: bool = True
) -> JobExecuted:
    """Claim and begin in one transaction, run the body outside, settle in another; `is_seen` as in `claim_named`."""
    worker_id = f"execute-{uuid4()}"
    async with transactions() as tx:
        tenant_id = tx.tenant_id
        job = await claim_named(command, worker_id, tx, scope, is_seen=is_seen)
    if isinstance(job, GhostJob):
        return unexecuted(job)
    return await execute_leased(job, Execution(worker_id, tenant_id, transactions, scope))


@dataclass(frozen=True, slots=True)
class Execution:
    """Who executes a leased job: the id it is leased to, and where its transactions come from."""

    worker_id: str
    tenant_id: UUID
    transactions: Transactions
    scope: Scope


async def execute_leased(job: LeasedJob, who: Execution) -> JobExecuted:
    """Ask, begin, run and settle a leased job, each write in a transaction of `who`'s."""
    tracing = ExecutionSpan.of(who.tenant_id, job)
    try:
        return await _execute_leased(job, who, tracing)
    finally:
        # Settled, it has ended before.
        tracing.end("lost", None)


async def _execute_leased(job: LeasedJob, who: Execution, tracing: ExecutionSpan) -> JobExecuted:
    tenant_id, transactions, scope = who.tenant_id, who.transactions, who.scope
    limit, journal = scope.limits.max_payload_bytes, StageJournal()
    with tracing.entered():
        performance = await ask_when(job, tenant_id, limit, journal)
    if performance is None and not job.begun:
        async with transactions() as tx:
            (begun,) = await job_begin(JobBegin([job], wait=True), tx, scope)
        if begun.status != "begun":
            tracing.end(begun.status, None)
            return ghost("orphan")
        job = begun.job
    if performance is None:
        with tracing.entered():
            performance = await perform(job, tenant_id, limit, _Ledger(job, transactions, scope), journal)
    tracing.settle()
    settlement = Settlement(job, performance.outcome, performance.annotations, performance.steps, performance.report)
    try:
        async with transactions() as tx:
            (settled,) = await job_settle(JobSettle(who.worker_id, [settlement], wait=True), tx, scope)
    except TransactionAbortedError as aborted:
        failure = _what_spoilt(performance.outcome, aborted)
        raise failure from failure.__cause__
    tracing.end(settled.status, performance.outcome)
    return _answer(settled, performance)


def _what_spoilt(outcome: StageOutcome, aborted: TransactionAbortedError) -> BaseException:
    """Return the error by which a body left its caller's transaction aborted, so that nothing can be settled in it."""
    cause = outcome.cause if isinstance(outcome, StageFailed) else None
    failure = repeatable_failure(cause)
    if failure is not None:
        return failure
    aborted.__cause__ = cause
    return aborted


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The steps of one execution, each write in the caller's transaction or in one of its own."""

    job: LeasedJob
    transactions: Transactions
    scope: Scope

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        """Write ops, waiting for whoever holds the run."""
        async with self.transactions() as tx:
            return await step_write(StepWrite(ops, wait=True), tx, self.scope)

    async def read(self) -> Sequence[StepRow]:
        """Read the stage's steps."""
        async with self.transactions() as tx:
            return await read_steps(tx, self.job.run_id, self.job.stage_id, self.scope.blobs)


async def claim_named(
    command: JobExecute, worker_id: str, tx: TenantTransaction, scope: Scope, *, is_seen: bool = True
) -> LeasedJob | GhostJob:
    """Lock the run, then look at its job in a later statement, and lease it, due or not.

    `is_seen`: others see the lease while the body runs, the transaction being over by then. With a cap of the tenant's
    on running jobs its claim lock is taken then, last of all, and waited for.

    Raises:
        JobNotAvailableError: the stage has no job, or a worker has leased it.
        TenantSuspendedError, RateLimitedError: the tenant's standing, or its cap, admits no job now.
    """
    run = await lock_run(tx, command.run_id)
    if run is None:
        changes = Changes()
        changes.drop_job(command.run_id, command.stage_id)
        await changes.write(tx)
        return GhostJob(command.run_id, command.stage_id, "orphan")
    named = {"run_id": command.run_id, "stage_id": command.stage_id}
    queued, (standing,) = await tx.fetch_batch([(job_claim.SQL["queued"], named), standing_call()])
    row = queued[0] if queued else None
    if row is None or row["job_status"] != JobStatus.PENDING:
        if run.status is RunStatus.PENDING:
            return GhostJob(command.run_id, command.stage_id, "race")
        if run.status is not RunStatus.RUNNING:
            return GhostJob(command.run_id, command.stage_id, "orphan")
        raise JobNotAvailableError(command.run_id, command.stage_id)
    await admit_one(standing, tx, is_seen=is_seen)
    changes = Changes()
    (row,) = await with_inputs(scope.blobs, tx, [row])
    stages = (await load_stages(tx, [run.run_id], scope.blobs))[run.run_id]
    draft = draft_of(row, changes, stages, scope)
    # Its caller may not beat at all while the body runs.
    margin = max(scope.limits.replay_margin, scope.limits.stale_lease_threshold)
    ghost = lease_one(draft, row, LeaseBudget(worker_id, 1, margin))
    await changes.write(tx)
    return ghost if ghost is not None else draft.leased[0]


def unexecuted(job: GhostJob) -> JobExecuted:
    """Return the answer for a job that must not run."""
    return JobExecuted("failed", error=job.error) if job.reason == "lost" else ghost(job.reason)


def ghost(reason: str) -> JobExecuted:
    """Return the answer for an execution that its run does not want."""
    return JobExecuted("failed", ghost=True, ghost_reason=reason)


def _answer(settled: Settled, performance: Performance) -> JobExecuted:
    if settled.status == "ghost":
        return ghost(settled.ghost_reason or "orphan")
    if settled.status != "settled":
        return ghost("orphan")
    outcome: StageOutcome = performance.outcome
    answer = JobExecuted(
        _OUTCOMES.get(settled.stage_status, "failed"),
        output=json.loads(outcome.output) if isinstance(outcome, StageCompleted) else None,
        error=outcome.error if isinstance(outcome, StageFailed) else None,
        next_poll_at=settled.next_poll_at,
    )
    if settled.retry_delay_s is not None:
        return replace(answer, will_retry=True, retry_delay_s=settled.retry_delay_s)
    return answer
