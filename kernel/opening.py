"""Opens the groups of a drafted run: its stages and jobs are created, and leased to this worker while it has room.

What is next is decided in `transition.py`; here it is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from kernel.blobs import PAYLOAD_LOST
from kernel.command import REPLAY_MARGIN
from kernel.definition.workflow import Place, PlacedStage
from kernel.draft import RunDraft
from kernel.events import EventType
from kernel.fence import Fence
from kernel.jobs import LeasedJob
from kernel.locking import StageRow
from kernel.states import JobStatus, RunStatus, StageStatus
from kernel.transition import Decision, decide, run_output


@dataclass(slots=True)
class LeaseBudget:
    """How many jobs this transaction may still lease to its worker, and how far ahead it sets a replay's next poll."""

    worker_id: str
    left: int
    replay_margin: timedelta = REPLAY_MARGIN

    def take(self) -> bool:
        """Take one lease out of the budget; False when it is spent."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


NO_LEASES = LeaseBudget(worker_id="", left=0)


def advance(draft: RunDraft, leases: LeaseBudget) -> Decision:
    """Do what follows from the stages' states: open the next group, finish or fail the run, or nothing."""
    assert draft.workflow is not None
    decision = decide(draft.workflow, {stage.stage_id: stage.status for stage in draft.stages.values()})
    if draft.lost is not None and decision.action in ("advanced", "completed"):
        # What comes next is made of what is gone.
        draft.finish(RunStatus.FAILED, error={"code": PAYLOAD_LOST, "message": draft.lost, "stage_id": None})
        return Decision("failed")
    if decision.action == "advanced":
        assert decision.next_group is not None
        _open_group(draft, draft.workflow.groups[decision.next_group - 1], leases)
    elif decision.action == "completed":
        draft.finish(RunStatus.COMPLETED, output=run_output(draft.workflow, draft.outputs))
    elif decision.action == "failed":
        stage = draft.stages[str(decision.failed_stage_id)]
        error = {"code": "STAGE_FAILED", "message": stage.error_message, "stage_id": stage.stage_id}
        draft.finish(RunStatus.FAILED, error=error)
    return decision


def create_stage(draft: RunDraft, place: Place, *, begun: bool = False) -> StageRow:
    """Create a stage, PENDING or begun at once; it counts on where an earlier row of this run's stage stopped."""
    run = draft.run
    status = StageStatus.RUNNING if begun else StageStatus.PENDING
    attempt = run.former_attempts.get(place.stage_id, 0) + begun
    draft.changes.insert_stages.append(
        {
            "run_id": run.run_id,
            "stage_id": place.stage_id,
            "group_number": place.group,
            "number": place.number,
            "status": status,
            "attempt": attempt,
            "max_attempts": place.max_attempts,
            "generation": run.redrive_count,
            "started_at": draft.now if begun else None,
            "now": draft.now,
        }
    )
    stage = draft.stages[place.stage_id] = StageRow(
        stage_id=place.stage_id,
        group=place.group,
        number=place.number,
        status=status,
        attempt=attempt,
        announced_attempt=attempt,
        max_attempts=place.max_attempts,
        generation=run.redrive_count,
    )
    return stage


def enqueue(draft: RunDraft, place: Place) -> None:
    """Give a PENDING stage a job that is due now."""
    _create_job(draft, place, status=JobStatus.PENDING, ready=True)


def lease_job(draft: RunDraft, stage: StageRow, job_attempt: int, worker_id: str) -> Fence:
    """Lease a queued job: its attempt counts up, and the clock of this transaction becomes its fence."""
    fence = Fence(draft.run.run_id, stage.stage_id, job_attempt + 1, draft.now)
    draft.move_job(stage, JobStatus.RUNNING, attempt=fence.attempt, worker_id=worker_id, started_at=draft.now)
    return fence


def hand_over(draft: RunDraft, placed: PlacedStage, fence: Fence, *, begun: bool, wait_ms: int) -> None:
    """Note a job as leased, with what its body is given; `wait_ms` is how long it was due."""
    assert draft.workflow is not None
    run, stage = draft.run, draft.stages[placed.stage.id]
    draft.leased.append(
        LeasedJob(
            fence=fence,
            workflow=draft.workflow,
            placed=placed,
            attempt=stage.attempt,
            priority=run.priority,
            begun=begun,
            run_input=draft.run_input,
            run_config=draft.run_config,
            outputs=dict(draft.outputs),
            traceparent=run.traceparent,
            tracestate=run.tracestate,
            queue_wait_ms=wait_ms,
            replay=stage.status is StageStatus.SUSPENDED,
            generation=stage.generation,
            redrive_count=run.redrive_count,
            waiting_for=stage.waiting_for,
            event_sequence=run.event_sequence,
        )
    )


def _open_group(draft: RunDraft, group: Iterable[PlacedStage], leases: LeaseBudget) -> None:
    """Create a group's stages and jobs, leased and begun for the same worker while its budget lasts."""
    for placed in group:
        if leases.take():
            _create_leased(draft, placed, leases.worker_id)
        else:
            create_stage(draft, placed)
            enqueue(draft, placed)


def _create_leased(draft: RunDraft, placed: PlacedStage, worker_id: str) -> None:
    begun = placed.stage.when is None
    stage = create_stage(draft, placed, begun=begun)
    _create_job(
        draft, placed, status=JobStatus.RUNNING, ready=False, attempt=1, worker_id=worker_id, started_at=draft.now
    )
    if begun:
        draft.emit(EventType.STAGE_STARTED, stage_id=stage.stage_id, attempt=stage.attempt)
    fence = Fence(draft.run.run_id, stage.stage_id, 1, draft.now)
    hand_over(draft, placed, fence, begun=begun, wait_ms=draft.waited_ms)


def _create_job(draft: RunDraft, place: Place, **values: object) -> None:
    run = draft.run
    draft.changes.insert_jobs.append(
        {
            "run_id": run.run_id,
            "stage_id": place.stage_id,
            "workflow_id": run.workflow_id,
            "version": run.version,
            "rank": draft.rank_at(draft.now),
            "available_at": draft.now,
            "attempt": 0,
            "max_attempts": place.max_attempts,
            "traceparent": run.traceparent,
            "priority": run.priority,
            **values,
        }
    )
    draft.stages[place.stage_id].job_status = JobStatus(str(values["status"]))
