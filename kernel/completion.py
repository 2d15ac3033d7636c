"""Brings one run as far as it goes, in the caller's transaction: starts it and executes its jobs one after another."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from kernel.arguments import check_run_id
from kernel.blobs import with_inputs
from kernel.changes import Changes
from kernel.command import Scope, carry_out, check_transaction
from kernel.commands.job_execute import JobExecute
from kernel.commands.run_claim_pending import start_runs
from kernel.errors import RateLimitedError, RunNotFoundError, TenantSuspendedError
from kernel.locking import lock_run
from kernel.opening import NO_LEASES
from kernel.states import RunStatus
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
CompletionOutcome = Literal["completed", "failed", "cancelled", "suspended", "incomplete"]
_ENDS: dict[RunStatus, CompletionOutcome] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class RunCompletion:
    """How far a run came.

    `suspended`: all that is left of it waits for something outside. `incomplete`: it is not due or not served here, a
    retry is to come later, a worker has one of its jobs, the tenant is suspended or at its cap of running jobs, or
    `max_jobs` were executed.
    """

    outcome: CompletionOutcome
    jobs_processed: int


async def run_to_completion(run_id: UUID, max_jobs: int, tx: TenantTransaction, scope: Scope) -> RunCompletion:
    """Start the run if it is due, then execute what is due of it. Never sleeps, never begins or ends a transaction.

    Raises:
        RunNotFoundError: the tenant has no such run.
    """
    check_run_id(run_id)
    await check_transaction(tx, "run_to_completion", writes=True)
    if await _start(run_id, tx, scope) is RunStatus.PENDING:
        return RunCompletion("incomplete", 0)
    processed = 0
    while True:
        # Bodies may use the transaction themselves: how the run stands is asked anew each time.
        run = await lock_run(tx, run_id)
        if run is None:
            raise RunNotFoundError(run_id)
        if run.status in _ENDS:
            return RunCompletion(_ENDS[run.status], processed)
        jobs = await tx.fetch_all(SQL["queued_jobs"], run_id=run_id)
        if not jobs or not jobs[0]["is_due"]:
            return RunCompletion("suspended" if await _is_suspended(run_id, tx) else "incomplete", processed)
        if processed >= max_jobs:
            return RunCompletion("incomplete", processed)
        try:
            executed = await carry_out(JobExecute(run_id, jobs[0]["stage_id"]), tx, scope)
        except (TenantSuspendedError, RateLimitedError):
            return RunCompletion("incomplete", processed)
        if executed.ghost and executed.ghost_reason != "orphan":
            return RunCompletion("incomplete", processed)
        processed += not executed.ghost


async def _start(run_id: UUID, tx: TenantTransaction, scope: Scope) -> RunStatus:
    """Lock the run, look in a later statement, and start it if it is PENDING and may start; returns its status."""
    if await lock_run(tx, run_id) is None:
        raise RunNotFoundError(run_id)
    row = await tx.fetch_one(SQL["standing"], run_id=run_id)
    assert row is not None
    status = RunStatus(row["status"])
    if status is not RunStatus.PENDING or not row["is_due"] or row["tenant_status"] != "active":
        return status
    changes = Changes()
    pending = await with_inputs(scope.blobs, tx, [row])
    drafts = start_runs(pending, scope.registry, NO_LEASES, changes, tx.tenant_id)
    await changes.write(tx)
    return drafts[0].run.status if drafts else status


async def _is_suspended(run_id: UUID, tx: TenantTransaction) -> bool:
    row = await tx.fetch_one(SQL["waits"], run_id=run_id)
    assert row is not None
    return bool(row["suspended"] > 0 and row["active"] == 0)
