"""`lease.reap_stale`: what a worker that died or hung held goes on elsewhere, or fails for good.

Tier 1: no heartbeat within the threshold; the job is PENDING again, or, its attempts spent, failed. Tier 2: an absolute
time since the lease began, which no heartbeat refreshes; failed. The run fails in the same transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, KernelLimits, Scope, handles
from kernel.draft import RunDraft
from kernel.drafting import draft_held_runs
from kernel.states import RunStatus, StageStatus
from kernel.suspension import wake
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
HEARTBEAT_LOST = "LEASE_HEARTBEAT_LOST"
ABSOLUTE_CAP = "LEASE_ABSOLUTE_CAP"


@dataclass(frozen=True, slots=True)
class ReapedLease:
    """A lease that was taken back: whose it was and whether its stage goes on (`released`) or failed."""

    run_id: UUID
    stage_id: str
    worker_id: str | None
    released: bool


@dataclass(frozen=True, slots=True)
class LeasesReaped:
    """How many leases went back to the queue and how many ended their stage; `leases` names them."""

    released: int
    expired: int
    leases: tuple[ReapedLease, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseReapStale(Command[LeasesReaped]):
    """Take back up to `limit` lapsed leases of this tenant. Never waits for a row."""

    name: ClassVar[str] = "lease.reap_stale"
    limit: int = 100


@handles(LeaseReapStale)
async def lease_reap_stale(command: LeaseReapStale, tx: TenantTransaction, scope: Scope) -> LeasesReaped:
    """Lock what lapsed, look, release or fail."""
    (rows,) = await tx.fetch_batch([lapsed_call(scope.limits, command.limit)])
    changes = Changes()
    reaped = await reap(rows, changes, tx, scope)
    await changes.write(tx)
    return reaped


def lapsed_call(limits: KernelLimits, limit: int) -> Call:
    """Return the call that locks up to `limit` lapsed leases and their runs."""
    return SQL["lapsed"], {
        "stale_after": limits.stale_lease_threshold,
        "absolute_timeout": limits.job_absolute_timeout,
        "limit": limit,
    }


async def reap(rows: Sequence[Row], changes: Changes, tx: TenantTransaction, scope: Scope) -> LeasesReaped:
    """Release or fail the locked jobs of locked runs; jobs of runs that are over or gone are removed."""
    drafts, _gone = await draft_held_runs(rows, changes, tx, scope)
    reaped = [_reap_one(drafts[row["run_id"]], row, scope.limits) for row in rows if row["run_id"] in drafts]
    leases = [lease for lease in reaped if lease is not None]
    released = sum(lease.released for lease in leases)
    return LeasesReaped(released, len(leases) - released, tuple(leases))


def _reap_one(draft: RunDraft, row: Row, limits: KernelLimits) -> ReapedLease | None:
    stage_id: str = row["stage_id"]
    stage = draft.stages.get(stage_id)
    over = draft.run.status is not RunStatus.RUNNING
    if over or stage is None or stage.status not in _leasable(row):
        draft.drop_job(stage_id)
        return None
    attempt: int = row["job_attempt"]
    reason = ABSOLUTE_CAP if row["over_cap"] else HEARTBEAT_LOST
    draft.changes.moves.leases_expired += 1
    draft.changes.mark("lease.expired", draft.run, stage, reason=reason)
    if row["over_cap"]:
        error = f"{ABSOLUTE_CAP}: the stage ran longer than {_seconds(limits.job_absolute_timeout)} s"
        draft.fail(stage, attempt, error, ABSOLUTE_CAP)
        return ReapedLease(draft.run.run_id, stage_id, row["worker_id"], released=False)
    error = f"{HEARTBEAT_LOST}: no heartbeat for {_seconds(limits.stale_lease_threshold)} s"
    if attempt >= row["max_attempts"]:
        draft.fail(stage, attempt, error, HEARTBEAT_LOST)
        return ReapedLease(draft.run.run_id, stage_id, row["worker_id"], released=False)
    if row["replay"]:
        # That counts an attempt, so that a body that kills its worker ends; the stage stays suspended.
        wake(draft, stage, attempt + 1, error=error)
    else:
        draft.retry(stage, attempt, error, timedelta(0))
    return ReapedLease(draft.run.run_id, stage_id, row["worker_id"], released=True)


def _leasable(row: Row) -> tuple[StageStatus, ...]:
    """Return how a stage can stand under a lease of this job."""
    return (StageStatus.SUSPENDED,) if row["replay"] else (StageStatus.PENDING, StageStatus.RUNNING)


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g}"
