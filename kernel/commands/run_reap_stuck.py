"""`run.reap_stuck`: heals RUNNING runs about which nothing can move any more, and fails those that cannot be healed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, KernelLimits, Scope, handles
from kernel.definition.workflow import Workflow
from kernel.draft import RunDraft
from kernel.events import EventType
from kernel.locking import LockedRun, StageRow, first_loss, load_stages, lock_runs, locked_run, recall_attempts
from kernel.opening import NO_LEASES, advance, enqueue
from kernel.states import TERMINAL_STAGE_STATUSES, JobStatus, RunStatus, StageStatus
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
STUCK = "STUCK_RUN_REAPED"
SHORTEST_HORIZON = timedelta(minutes=5)
PAGE = 1000


@dataclass(frozen=True, slots=True)
class StuckReaped:
    """How many runs were healed and failed; `next_after` continues the sweep and is None at its end."""

    healed: int
    failed: int
    next_after: UUID | None = None


@dataclass(frozen=True, slots=True)
class RunReapStuck(Command[StuckReaped]):
    """Look at one page of this tenant's RUNNING runs after `after`, and heal or fail up to `limit` of them.

    Stuck: no move of the run or its stages within max(3 x stale_lease_threshold, 5 min), no job that is queued or
    leased, no wait with a future. Runs of versions not served here are left alone. Never waits for a row.
    """

    name: ClassVar[str] = "run.reap_stuck"
    limit: int = 100
    after: UUID | None = None


@handles(RunReapStuck)
async def run_reap_stuck(command: RunReapStuck, tx: TenantTransaction, scope: Scope) -> StuckReaped:
    """Guess, lock, look again, heal or fail."""
    page = await tx.fetch_all(SQL["page"], horizon=horizon(scope.limits), after=command.after)
    next_after = page[-1]["run_id"] if len(page) == PAGE else None
    suspects = [row["run_id"] for row in page if row["is_suspect"]][: command.limit]
    if not suspects:
        return StuckReaped(0, 0, next_after)
    (rows,) = await tx.fetch_batch([lock_runs(suspects, wait=False)])
    runs = [locked_run(row) for row in rows]
    stages = await load_stages(tx, [run.run_id for run in runs], scope.blobs)
    await recall_attempts(tx, runs)
    changes = Changes(scope.blobs)
    actions = [_reap(run, stages[run.run_id], changes, scope) for run in runs]
    await changes.write(tx)
    return StuckReaped(actions.count("healed"), actions.count("failed"), next_after)


def horizon(limits: KernelLimits) -> timedelta:
    """Return how long nothing must have moved before a run counts as stuck."""
    return max(3 * limits.stale_lease_threshold, SHORTEST_HORIZON)


def _reap(run: LockedRun, stages: dict[str, StageRow], changes: Changes, scope: Scope) -> str:
    workflow = scope.registry.find(run.workflow_id, run.version)
    if workflow is None or not _is_stuck(run, stages, scope.limits):
        return "left"
    outputs = {stage.stage_id: stage.output for stage in stages.values() if stage.output is not None}
    lost = first_loss(stages.values())
    draft = RunDraft(run, changes, workflow, stages, outputs, lost=lost)
    if advance(draft, NO_LEASES).action != "noop":
        return "healed"
    if _requeue(draft, workflow, stages):
        return "healed"
    _give_up(draft, f"{STUCK}: nothing about the run could move any more")
    return "failed"


def _is_stuck(run: LockedRun, stages: Mapping[str, StageRow], limits: KernelLimits) -> bool:
    """Decide again with the run locked: what the page guessed may have moved before the lock was had."""
    latest = run.now - horizon(limits)
    if run.status is not RunStatus.RUNNING or run.updated_at > latest:
        return False
    return not any(
        stage.job_status in (JobStatus.PENDING, JobStatus.RUNNING)
        or (stage.updated_at is not None and stage.updated_at > latest)
        or (stage.status is StageStatus.SUSPENDED and _is_future(stage, run))
        for stage in stages.values()
    )


def _is_future(stage: StageRow, run: LockedRun) -> bool:
    return any(at is not None and at > run.now for at in (stage.next_poll_at, stage.deadline))


def _requeue(draft: RunDraft, workflow: Workflow, stages: Mapping[str, StageRow]) -> bool:
    """Give PENDING stages without a job a new one, if that is all that the active stages lack."""
    active = [stage for stage in stages.values() if stage.status not in TERMINAL_STAGE_STATUSES]
    placed = [workflow.placed(stage.stage_id) for stage in active]
    if not active or any(stage.status is not StageStatus.PENDING for stage in active) or None in placed:
        return False
    for one in placed:
        if one is not None:
            enqueue(draft, one)
    return True


def _give_up(draft: RunDraft, error: str) -> None:
    """Fail the run and every stage that is still active, and clear its jobs away."""
    for stage in draft.stages.values():
        if stage.status not in TERMINAL_STAGE_STATUSES:
            draft.settle_stage(stage, StageStatus.FAILED, None, error_message=error)
            draft.drop_job(stage.stage_id)
            draft.emit(EventType.STAGE_FAILED, stage_id=stage.stage_id, attempt=stage.attempt, code=STUCK, error=error)
    draft.finish(RunStatus.FAILED, error={"code": STUCK, "message": error, "stage_id": None})
