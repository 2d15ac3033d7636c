"""Suspended stages: when one is due again, how its job is parked, leased for a replay and taken back.

Single flight (semantics.md): waking is claiming the parked job, so a stage never has two bodies.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from kernel.draft import RunDraft
from kernel.events import EventType
from kernel.fence import Fence
from kernel.locking import StageRow
from kernel.opening import LeaseBudget
from kernel.states import JobStatus, StageStatus
from tenancy import Row


def suspend(draft: RunDraft, stage: StageRow, fence: Fence, waited: Sequence[Row]) -> datetime:
    """Suspend a stage until the earliest of the steps it waits for, and park its job; returns when it is due.

    `waited` are the steps' rows, read after the run's lock was had: one that has ended meanwhile makes it due now.
    The wait is announced once, not once a poll.
    """
    due_at, waiting_for = _earliest(draft.now, waited)
    is_news = _name(waiting_for) not in (None, _name(stage.waiting_for))
    stage.waiting_for = waiting_for if waiting_for is not None else stage.waiting_for
    draft.settle_stage(stage, StageStatus.SUSPENDED, fence, next_poll_at=due_at, waiting_for=stage.waiting_for)
    _park(draft, stage, fence.attempt, due_at)
    if waiting_for is not None and is_news:
        draft.emit(EventType.STAGE_SUSPENDED, stage_id=stage.stage_id, attempt=stage.attempt, waiting_for=waiting_for)
        draft.changes.mark("run.suspended", draft.run, stage, wait__kind=waiting_for["kind"])
    return due_at


def lease_replay(draft: RunDraft, stage: StageRow, job_attempt: int, leases: LeaseBudget) -> Fence:
    """Lease a parked job: a new fence, the same attempt; the stage stays suspended.

    The job is due again at the stage's next poll: workers that look for lapsed leases see jobs and no stages.
    """
    fence = Fence(draft.run.run_id, stage.stage_id, job_attempt, draft.now)
    next_poll_at = draft.now + leases.replay_margin
    draft.move_job(
        stage,
        JobStatus.RUNNING,
        attempt=job_attempt,
        worker_id=leases.worker_id,
        started_at=draft.now,
        available_at=next_poll_at,
    )
    draft.move_stage(stage, StageStatus.SUSPENDED, next_poll_at=next_poll_at, waiting_for=stage.waiting_for)
    return fence


def wake(draft: RunDraft, stage: StageRow, job_attempt: int, *, error: str | None = None) -> None:
    """Make a suspended stage due now; the job is parked again where a replay of it was lost."""
    draft.move_stage(stage, StageStatus.SUSPENDED, next_poll_at=draft.now, waiting_for=stage.waiting_for)
    _park(draft, stage, job_attempt, draft.now, **({} if error is None else {"last_error": error}))


def _park(draft: RunDraft, stage: StageRow, job_attempt: int, due_at: datetime, **values: object) -> None:
    draft.move_job(
        stage,
        JobStatus.PENDING,
        attempt=job_attempt,
        replay=True,
        ready=due_at <= draft.now,
        rank=draft.rank_at(due_at),
        available_at=due_at,
        **values,
    )


def _earliest(now: datetime, waited: Sequence[Row]) -> tuple[datetime, dict[str, Any] | None]:
    """Return when the first of the waits is due, and its name; now, when there is none or one has ended."""
    due = sorted(((_due_at(now, row), row["step_id"], row["kind"]) for row in waited), key=lambda item: item[:2])
    if not due:
        return now, None
    due_at, step_id, kind = due[0]
    row = next(row for row in waited if row["step_id"] == step_id)
    until = row["deadline_at"] or due_at
    return due_at, {"kind": kind, "step_id": step_id, "until": until.isoformat()}


def _due_at(now: datetime, row: Row) -> datetime:
    """Return when one step needs its body again: its end, its next try or poll, its deadline or its keepalive."""
    if row["status"] in ("completed", "failed"):
        return now
    if row["status"] == "running":
        lease_expires_at: datetime = row["lease_expires_at"]
        return max(lease_expires_at, now)
    times: list[datetime] = [at for at in (row["due_at"], row["deadline_at"]) if at is not None]
    if row["keepalive_s"] is not None:
        times.append(now + timedelta(seconds=row["keepalive_s"]))
    return max(min(times), now) if times else now


def _name(waiting_for: Any) -> tuple[object, object] | None:
    return None if waiting_for is None else (waiting_for.get("kind"), waiting_for.get("step_id"))
