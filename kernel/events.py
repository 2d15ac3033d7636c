"""The names of the events of a run's history, as `outbox_events.type` holds them."""

from enum import StrEnum


class EventType(StrEnum):
    """What happened; written in the transaction of the change it tells of."""

    WORKFLOW_CREATED = "workflow:created"
    WORKFLOW_STARTED = "workflow:started"
    WORKFLOW_COMPLETED = "workflow:completed"
    WORKFLOW_FAILED = "workflow:failed"
    WORKFLOW_CANCELLED = "workflow:cancelled"
    STAGE_STARTED = "stage:started"
    STAGE_COMPLETED = "stage:completed"
    STAGE_SUSPENDED = "stage:suspended"
    STAGE_RETRYING = "stage:retrying"
    STAGE_FAILED = "stage:failed"
    STAGE_SKIPPED = "stage:skipped"
    STAGE_PROGRESS = "stage:progress"
    STEP_SIGNALLED = "step:signalled"
    ANNOTATION_CREATED = "annotation:created"
