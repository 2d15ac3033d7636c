"""Locks the runs of leased jobs and tells, for each lease, whether it is still its worker's."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from kernel.fence import Fence
from kernel.locking import JobRow, LockedRun, existing_runs, job_row, lock_leases, locked_run
from kernel.states import JobStatus
from tenancy import TenantTransaction


class Hold(Enum):
    """What the database says of a lease."""

    MINE = "mine"  # run and job are locked and the fence stands
    BUSY = "busy"  # somebody holds the run or the job: look again later
    LOST = "lost"  # the run is locked, the job is gone or somebody else's
    GONE = "gone"  # the run no longer exists


@dataclass(frozen=True, slots=True)
class Fenced:
    """The locked runs and their jobs, and the answer for each lease that was asked about."""

    runs: dict[UUID, LockedRun]
    jobs: dict[tuple[UUID, str], JobRow]
    holds: dict[Fence, Hold]


async def lock_fenced(tx: TenantTransaction, fences: Iterable[Fence], *, wait: bool) -> Fenced:
    """Lock the leases' runs, then read runs and jobs in a later statement, both in one message.

    Without `wait` nothing is waited for: what somebody holds is BUSY. With it, runs are waited for, and a job row
    that a heartbeat holds counts as had, because the write that follows will wait for it too.
    """
    asked = list(fences)
    (rows,) = await tx.fetch_batch([lock_leases(((f.run_id, f.stage_id) for f in asked), wait=wait)])
    runs: dict[UUID, LockedRun] = {}
    jobs: dict[tuple[UUID, str], JobRow] = {}
    for row in rows:
        run_id: UUID = row["run_id"]
        if run_id not in runs:
            runs[run_id] = locked_run(row)
        job = job_row(row)
        if job is not None:
            jobs[run_id, job.stage_id] = job
    missing = [fence.run_id for fence in asked if fence.run_id not in runs]
    alive = await existing_runs(tx, missing) if missing else set[UUID]()
    holds = {fence: _hold(fence, runs, jobs, alive, wait=wait) for fence in asked}
    return Fenced(runs, jobs, holds)


def _hold(
    fence: Fence, runs: dict[UUID, LockedRun], jobs: dict[tuple[UUID, str], JobRow], alive: set[UUID], *, wait: bool
) -> Hold:
    if fence.run_id not in runs:
        return Hold.BUSY if fence.run_id in alive else Hold.GONE
    job = jobs.get((fence.run_id, fence.stage_id))
    if job is None or job.status is not JobStatus.RUNNING:
        return Hold.LOST
    if (job.attempt, job.started_at) != (fence.attempt, fence.started_at):
        return Hold.LOST
    return Hold.MINE if job.had or wait else Hold.BUSY
