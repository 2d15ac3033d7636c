"""A locked run and what a command makes of it: the moves of semantics.md's tables, as changes and events.

A draft is made with the run's lock held and thrown away after its changes are written. It never reads the database.
What makes stages and jobs, and leases them, is in `opening.py`; what suspends them, in `suspension.py`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kernel.changes import Changes
from kernel.definition.workflow import Workflow
from kernel.events import EventType
from kernel.execution.journal import Annotation
from kernel.fence import Fence
from kernel.jobs import LeasedJob
from kernel.locking import LockedRun, StageRow
from kernel.states import TERMINAL_STAGE_STATUSES, JobStatus, RunStatus, StageStatus

RANK_PER_PRIORITY = timedelta(seconds=60)


@dataclass(slots=True)
class RunDraft:
    """One run of the transaction; `stages` holds the rows that exist, kept up to date with every move.

    `waited_ms` is how long a run that starts here was due, `lost` the error of one that lacks a payload to go on with.
    """

    run: LockedRun
    changes: Changes
    workflow: Workflow | None
    stages: dict[str, StageRow] = field(default_factory=dict[str, StageRow])
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    run_input: str = "null"
    run_config: str = "{}"
    leased: list[LeasedJob] = field(default_factory=list[LeasedJob])
    waited_ms: int = 0
    lost: str | None = None
    _row: dict[str, Any] | None = None

    @property
    def now(self) -> datetime:
        """The database's clock when the run was locked."""
        return self.run.now

    def rank_at(self, due_at: datetime) -> datetime:
        """Return where in line a job stands that is due then: a minute earlier for each step of its run's priority."""
        return due_at - self.run.priority * RANK_PER_PRIORITY

    # -- the run ------------------------------------------------------------------------------------------------------

    def emit(self, event: EventType, *, stage_id: str | None = None, **payload: object) -> None:
        """Append an event; its sequence number is the next of the run, without gaps because the run is locked."""
        self.run.event_sequence += 1
        self._touch()["event_sequence"] = self.run.event_sequence
        self.changes.insert_events.append(
            {
                "run_id": self.run.run_id,
                "sequence": self.run.event_sequence,
                "type": event,
                "stage_id": stage_id,
                "payload": payload,
                "now": self.now,
            }
        )

    def trace(self, tenant_id: UUID) -> None:
        """Give a run that was made where nothing traced the context of its creation; it is told of now."""
        if self.changes.begin_trace(self.run, tenant_id):
            self._touch().update(traceparent=self.run.traceparent, tracestate=self.run.tracestate)

    def start(self) -> None:
        """Move the run from PENDING, or from its end, to RUNNING; what it had ended with is cleared."""
        self.run.status = RunStatus.RUNNING
        row = self._touch()
        row["status"], row["version"], row["started_at"] = RunStatus.RUNNING, self.run.version, self.now
        self.emit(
            EventType.WORKFLOW_STARTED,
            workflow=self.run.workflow_id,
            definition_version=self.run.version,
            redrive_count=self.run.redrive_count,
        )
        self.changes.moves.runs_started += 1
        self.changes.mark("run.started", self.run)

    def finish(
        self,
        status: RunStatus,
        *,
        output: str | None = None,
        error: Mapping[str, object] | None = None,
        reason: str | None = None,
    ) -> None:
        """Move the run to a terminal status and cancel every stage that is still active."""
        self.run.status = status
        row = self._touch()
        row["status"], row["completed_at"] = status, self.now
        row["output"] = output
        row["error"] = json.dumps(error) if error is not None else None
        for stage in self.stages.values():
            if stage.status not in TERMINAL_STAGE_STATUSES:
                self._cancel_stage(stage)
        if status is RunStatus.COMPLETED:
            self.emit(EventType.WORKFLOW_COMPLETED)
        elif status is RunStatus.FAILED:
            self.emit(EventType.WORKFLOW_FAILED, error=error)
        else:
            self.emit(EventType.WORKFLOW_CANCELLED, reason=reason)
        self.changes.finished(self.run, error)

    def _cancel_stage(self, stage: StageRow) -> None:
        # A leased job stays until its worker has let go of it (ghost "orphan") or its lease lapsed: the body still runs
        # and still counts against the tenant's cap.
        self.move_stage(stage, StageStatus.CANCELLED, completed_at=self.now)
        if stage.job_status is not None and stage.job_status is not JobStatus.RUNNING:
            self.drop_job(stage.stage_id)

    def _touch(self) -> dict[str, Any]:
        if self._row is None:
            self._row = {
                "run_id": self.run.run_id,
                "status": self.run.status,
                "version": self.run.version,
                "event_sequence": self.run.event_sequence,
                "now": self.now,
            }
            self.changes.update_runs.append(self._row)
        return self._row

    # -- a stage under its job's fence -------------------------------------------------------------------------------

    def begin(self, stage: StageRow) -> int:
        """Move a stage from PENDING to RUNNING, count its attempt and announce it once; returns the attempt."""
        attempt = stage.attempt + 1
        self.move_stage(stage, StageStatus.RUNNING, attempt=attempt, announced_attempt=attempt, started_at=self.now)
        if attempt > stage.announced_attempt:
            stage.announced_attempt = attempt
            self.emit(EventType.STAGE_STARTED, stage_id=stage.stage_id, attempt=attempt)
        return attempt

    def complete(self, stage: StageRow, fence: Fence, output: str) -> None:
        """Record a stage's validated output (JSON text) and take its job out of the queue."""
        self.settle_stage(stage, StageStatus.COMPLETED, fence, output=output)
        stage.output = output
        self.outputs[stage.stage_id] = output
        self.drop_job(stage.stage_id)
        self.emit(EventType.STAGE_COMPLETED, stage_id=stage.stage_id, attempt=stage.attempt)

    def skip(self, stage: StageRow, fence: Fence) -> None:
        """Record that a stage's `when` said no; no attempt is counted."""
        self.settle_stage(stage, StageStatus.SKIPPED, fence)
        self.drop_job(stage.stage_id)
        self.emit(EventType.STAGE_SKIPPED, stage_id=stage.stage_id)

    def retry(self, stage: StageRow, job_attempt: int, error: str, delay: timedelta) -> None:
        """Put a failed attempt back into the queue, due after `delay`."""
        available_at = self.now + delay
        self.move_stage(stage, StageStatus.PENDING, error_message=error)
        self.move_job(
            stage,
            JobStatus.PENDING,
            attempt=job_attempt,
            replay=False,
            ready=delay <= timedelta(0),
            rank=self.rank_at(available_at),
            available_at=available_at,
            last_error=error,
        )
        self.emit(
            EventType.STAGE_RETRYING,
            stage_id=stage.stage_id,
            attempt=stage.attempt,
            error=error,
            retry_at=available_at.isoformat(),
        )

    def defer(self, stage: StageRow, job_attempt: int, delay: timedelta) -> None:
        """Give a leased job back with its attempt, due after `delay`; no event, no error. A replay counted none."""
        is_replay = stage.status is StageStatus.SUSPENDED
        if is_replay:
            self.move_stage(stage, StageStatus.SUSPENDED, next_poll_at=self.now + delay, waiting_for=stage.waiting_for)
        elif stage.status is StageStatus.RUNNING:
            self.move_stage(stage, StageStatus.PENDING, attempt=max(stage.attempt - 1, 0))
        available_at = self.now + delay
        self.move_job(
            stage,
            JobStatus.PENDING,
            attempt=job_attempt if is_replay else max(job_attempt - 1, 0),
            ready=delay <= timedelta(0),
            rank=self.rank_at(available_at),
            available_at=available_at,
        )

    def fail(self, stage: StageRow, job_attempt: int, error: str, code: str) -> None:
        """Fail a stage for good and its run with it; the job stays, dead, with its error."""
        self.settle_stage(stage, StageStatus.FAILED, None, error_message=error)
        if stage.job_status is not None:
            self.move_job(stage, JobStatus.FAILED, attempt=job_attempt, last_error=error)
        self.emit(EventType.STAGE_FAILED, stage_id=stage.stage_id, attempt=stage.attempt, code=code, error=error)
        self.finish(RunStatus.FAILED, error={"code": code, "message": error, "stage_id": stage.stage_id})

    def annotate(self, stage: StageRow, annotations: Iterable[Annotation], *, is_news: bool = True) -> None:
        """Keep the annotations that a body made, each with its event if it is news."""
        for annotation in annotations:
            self.changes.insert_annotations.append(
                {
                    "run_id": self.run.run_id,
                    "stage_id": stage.stage_id,
                    "attempt": stage.attempt,
                    "key": annotation.key,
                    "value": annotation.value,
                    "payload": annotation.payload,
                    "now": self.now,
                }
            )
            if is_news:
                self.emit(EventType.ANNOTATION_CREATED, stage_id=stage.stage_id, key=annotation.key)

    # -- items ------------------------------------------------------------------------------------------------------

    def settle_stage(self, stage: StageRow, status: StageStatus, fence: Fence | None, **values: object) -> None:
        """Move a stage to what its job came to; the fence, where one is given, says which job that was."""
        settled = {"settled_attempt": fence.attempt, "settled_started_at": fence.started_at} if fence else {}
        completed_at = None if status is StageStatus.SUSPENDED else self.now
        self.move_stage(stage, status, completed_at=completed_at, **settled, **values)

    def move_stage(self, stage: StageRow, status: StageStatus, **values: object) -> None:
        """Move a stage; `values` are columns."""
        stage.status = status
        attempt = values.get("attempt")
        if isinstance(attempt, int):
            stage.attempt = attempt
        # Named, because moves of one transaction are merged: only a suspension has these.
        unsuspended = {"next_poll_at": None, "waiting_for": None}
        item = {"status": status, "attempt": stage.attempt, "now": self.now, **unsuspended, **values}
        self.changes.move_stage(self.run.run_id, stage.stage_id, item)

    def move_job(self, stage: StageRow, status: JobStatus, **values: object) -> None:
        """Move a stage's job; `values` are columns."""
        stage.job_status = status
        self.changes.move_job(self.run.run_id, stage.stage_id, {"status": status, "ready": False, **values})

    def drop_job(self, stage_id: str) -> None:
        """Take a job out of the queue."""
        self.changes.drop_job(self.run.run_id, stage_id)
        stage = self.stages.get(stage_id)
        if stage is not None:
            stage.job_status = None
