"""`job.claim`: ready jobs are leased to a worker, and begun where nothing has to be asked first.

Begin is written here, in the transaction that leases, when the stage has no `when`: the row says RUNNING before the
body runs, at no further commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from kernel.blobs import PAYLOAD_LOST
from kernel.capacity import room_for, standing_call
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.definition.registry import Registry
from kernel.draft import RunDraft
from kernel.drafting import draft_held_runs
from kernel.jobs import LeasedJob, waited_ms
from kernel.lanes import EVERYWHERE, Look, Sight, lane_items, sight_of
from kernel.opening import LeaseBudget, hand_over, lease_job
from kernel.states import RunStatus, StageStatus
from kernel.suspension import lease_replay
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# How long a job waits whose run is pinned to a version that this build does not serve, and one whose run has not
# started.
DEFERRAL = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class GhostJob:
    """A job that must not run, and why: `orphan`, `race` or `version`; or `lost`, which its run has failed with.

    `lost`: a payload that the body needs is in its store no more; `error` says which.
    """

    run_id: UUID
    stage_id: str
    reason: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobsClaimed:
    """The jobs leased to the worker, and those that turned out to be ghosts."""

    leased: tuple[LeasedJob, ...]
    ghosts: tuple[GhostJob, ...] = ()


@dataclass(frozen=True, slots=True)
class JobClaim(Command[JobsClaimed]):
    """Lease up to `limit` ready jobs of this tenant to `worker_id`. Never waits for a row.

    Of a tenant that is suspended, or at its cap of running jobs, none is leased.
    """

    name: ClassVar[str] = "job.claim"
    worker_id: str
    limit: int = 10


@handles(JobClaim)
async def job_claim(command: JobClaim, tx: TenantTransaction, scope: Scope) -> JobsClaimed:
    """Lock, look, lease."""
    if not scope.registry.served:
        return JobsClaimed(())
    (standing,), rows = await tx.fetch_batch([standing_call(), claim_call(scope.registry, command.limit)])
    allowed = await room_for(command.limit, standing, tx)
    if allowed <= 0:
        return JobsClaimed(())
    changes = Changes()
    leases = LeaseBudget(command.worker_id, allowed, scope.limits.replay_margin)
    drafts, ghosts = await lease_jobs(rows[:allowed], leases, changes, tx, scope)
    await changes.write(tx)
    return JobsClaimed(leased_of(drafts), ghosts)


def claim_call(registry: Registry, limit: int, look: Look = EVERYWHERE) -> Call:
    """Return the call that locks up to `limit` ready jobs and their runs."""
    return SQL["claim"], {"served": lane_items(look.among(registry.served), look.floors), "limit": limit}


def sight(
    rows: Sequence[Row], drafts: Sequence[RunDraft], ghosts: Sequence[GhostJob], promoted: Sequence[Row]
) -> Sight:
    """Return what a claim saw, once its rows were leased."""
    taken = {(job.fence.run_id, job.fence.stage_id) for draft in drafts for job in draft.leased}
    taken.update((ghost.run_id, ghost.stage_id) for ghost in ghosts)
    return sight_of(rows, lambda row: (row["run_id"], row["stage_id"]) in taken, promoted)


def leased_of(drafts: Sequence[RunDraft]) -> tuple[LeasedJob, ...]:
    """Return every job that the drafts leased."""
    return tuple(job for draft in drafts for job in draft.leased)


async def lease_jobs(
    rows: Sequence[Row], leases: LeaseBudget, changes: Changes, tx: TenantTransaction, scope: Scope
) -> tuple[list[RunDraft], tuple[GhostJob, ...]]:
    """Lease the locked jobs; jobs of runs that are gone or over are removed, those nobody here serves are deferred.

    A run that lacks a payload fails, by itself.
    """
    drafts, gone = await draft_held_runs(rows, changes, tx, scope)
    ghosts = [GhostJob(row["run_id"], row["stage_id"], "orphan") for row in gone]
    for row in rows:
        draft = drafts.get(row["run_id"])
        ghost = lease_one(draft, row, leases) if draft is not None else None
        if ghost is not None:
            ghosts.append(ghost)
    return list(drafts.values()), tuple(ghosts)


def lease_one(draft: RunDraft, row: Row, leases: LeaseBudget) -> GhostJob | None:
    """Lease one locked job of a locked run, or return why it must not run."""
    stage_id: str = row["stage_id"]
    stage = draft.stages.get(stage_id)
    if draft.run.status not in (RunStatus.PENDING, RunStatus.RUNNING) or stage is None:
        draft.drop_job(stage_id)
        return GhostJob(draft.run.run_id, stage_id, "orphan")
    # What a claim would make of the attempt, for what is given back: a replay counts none.
    attempt = row["job_attempt"] + (stage.status is not StageStatus.SUSPENDED)
    if draft.run.status is RunStatus.PENDING:
        draft.defer(stage, attempt, timedelta(seconds=2))
        return GhostJob(draft.run.run_id, stage_id, "race")
    placed = draft.workflow.placed(stage_id) if draft.workflow is not None else None
    if placed is None:
        draft.defer(stage, attempt, DEFERRAL)
        return GhostJob(draft.run.run_id, stage_id, "version")
    if stage.status is not (StageStatus.SUSPENDED if row["replay"] else StageStatus.PENDING):
        draft.drop_job(stage_id)
        return GhostJob(draft.run.run_id, stage_id, "orphan")
    if draft.lost is not None:
        draft.fail(stage, row["job_attempt"], draft.lost, PAYLOAD_LOST)
        return GhostJob(draft.run.run_id, stage_id, "lost", draft.lost)
    if not leases.take():
        return None
    wait_ms = waited_ms(row["available_at"], draft.now)
    if row["replay"]:
        fence = lease_replay(draft, stage, row["job_attempt"], leases)
        hand_over(draft, placed, fence, begun=True, wait_ms=wait_ms)
        return None
    fence = lease_job(draft, stage, row["job_attempt"], leases.worker_id)
    begun = placed.stage.when is None
    if begun:
        draft.begin(stage)
    hand_over(draft, placed, fence, begun=begun, wait_ms=wait_ms)
    return None
