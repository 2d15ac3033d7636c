"""The shapes of responses: what clients are told, and the API's documentation with them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from kernel.events import EventType
from kernel.execution.ledger import StepKind, StepStatus
from kernel.queries.queue_get import WaitReason
from kernel.states import RunStatus, StageStatus
from service.auth import Scope

# Above 10,000 things are no longer counted.
Count = int | Literal["10000+"]
_LOST = "Only where some are null because their store has them no more: which."
LostPayloads = Annotated[list[str] | None, Field(description=_LOST)]


class Shape(BaseModel):
    """What responses have in common; clients must ignore fields they do not know."""

    model_config = ConfigDict(frozen=True)


class FieldFault(Shape):
    """One fault."""

    pointer: str = Field(description="JSON Pointer into the request body; a query parameter or header by its name.")
    code: str
    message: str


class Problem(Shape):
    """A refusal (RFC 9457). `code` is stable, texts are not."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[FieldFault]


class RunError(Shape):
    """Why a run failed."""

    code: str
    message: str
    stage_id: str | None


class WaitingFor(Shape):
    """The step that a suspended stage waits for: its deadline or, if it has none, when it is looked at again."""

    kind: StepKind
    step_id: str
    until: datetime


class Stage(Shape):
    """A stage that exists. `group` and `number` count from 1, `attempt` is 0 before the first execution.

    A suspended stage waits for a step and is looked at again at `next_poll_at`; both are null for any other.
    """

    id: str
    name: str
    group: int
    number: int
    status: StageStatus
    attempt: int
    max_attempts: int
    error_message: str | None
    started_at: datetime | None
    completed_at: datetime | None
    next_poll_at: datetime | None
    waiting_for: WaitingFor | None


class RunParent(Shape):
    """The step that started this run."""

    run_id: UUID
    stage_id: str
    step_id: str


class RunListed(Shape):
    """A run as lists show it."""

    id: UUID
    workflow: str
    definition_version: str | None
    status: RunStatus
    priority: int
    error: RunError | None
    tags: list[str]
    redrive_count: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    trace_id: str | None
    parent: RunParent | None


class Run(RunListed):
    """A run with its payloads and stages."""

    input: Any
    config: dict[str, Any] | None
    output: Any
    stages: list[Stage]
    lost_payloads: LostPayloads = None


class RunPage(Shape):
    """Runs, newest first."""

    data: list[RunListed]
    next_cursor: str | None


class Event(Shape):
    """One event of a run's history."""

    run_id: UUID
    sequence: int
    type: Annotated[str, Field(description=f"So far one of: {', '.join(EventType)}.")]
    occurred_at: datetime
    stage_id: str | None
    data: dict[str, Any]


class EventPage(Shape):
    """Events, oldest first."""

    data: list[Event]
    next_cursor: str | None


class Step(Shape):
    """A durable step. A `run` step has a lease while its function runs, waits have a deadline.

    `seq` is the step's place in its stage, null for a signal that came before anybody waited. `error` is the last one.
    """

    stage_id: str
    step_id: str
    seq: int | None
    kind: StepKind
    status: StepStatus
    attempt: int
    external_key: str | None = Field(description="The key under which the step's effect is known outside.")
    result: Any
    error: str | None
    lease_expires_at: datetime | None
    deadline_at: datetime | None
    lost_payloads: LostPayloads = None


class StepPage(Shape):
    """Steps, oldest first."""

    data: list[Step]
    next_cursor: str | None


class Signalled(Shape):
    """The step is completed; `already_completed` when an earlier signal did it, whose payload stays."""

    signalled: bool
    already_completed: bool


class BulkResult(Shape):
    """How many runs the filter matched that can be cancelled (they are not over), or redriven (they are)."""

    matched: int
    dry_run: bool


class WorkflowStage(Shape):
    """A stage of a definition."""

    id: str
    name: str
    group: int
    number: int
    max_attempts: int
    input_schema: Any
    output_schema: Any
    config_schema: Any


class Workflow(Shape):
    """A workflow as this process serves it."""

    id: str
    definition_version: str
    input_schema: Any
    stages: list[WorkflowStage]


class WorkflowList(Shape):
    """The workflows that this process serves."""

    data: list[Workflow]
    next_cursor: None


class WorkflowVersion(Shape):
    """A version that runs of this tenant are pinned to, or that is served."""

    definition_version: str | None
    counts: dict[str, int]
    active: int
    drained: bool
    served: bool
    oldest_created_at: datetime | None


class WorkflowVersionList(Shape):
    """The versions of one workflow."""

    data: list[WorkflowVersion]
    next_cursor: None


class Limits(Shape):
    """Limits of a tenant; null is no limit."""

    running_jobs: int | None
    pending_runs: int | None
    runs_per_minute: int | None
    payload_bytes: int | None


class Usage(Shape):
    """What a tenant has right now."""

    pending_runs: Count
    running_jobs: Count
    stored_runs: Count


class Tenant(Shape):
    """The tenant that asks."""

    id: UUID
    slug: str
    name: str
    status: str
    limits: Limits
    usage: Usage


class ApiKey(Shape):
    """A key without its secret."""

    id: UUID
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class ApiKeyCreated(Shape):
    """A new key; `key` is shown this once."""

    id: UUID
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    key: str


class ApiKeyPage(Shape):
    """Keys, oldest first."""

    data: list[ApiKey]
    next_cursor: str | None


class QueueShare(Shape):
    """One workflow's share of the queue. Beyond 10,000 entries a share is a lower bound."""

    workflow: str
    depth: Count
    running: Count
    oldest_age_seconds: float | None


class WaitingRun(Shape):
    """A run that waits, and why."""

    run_id: UUID
    reason: WaitReason


class Queue(Shape):
    """What waits and what runs."""

    depth: Count
    running: Count
    oldest_age_seconds: float | None
    by_workflow: list[QueueShare]
    waiting: list[WaitingRun]


class OperatorTenant(Shape):
    """A tenant as operators see it; `retention` in seconds."""

    id: UUID
    slug: str
    name: str
    status: str
    weight: int
    retention: float | None
    limits: Limits
    created_at: datetime


class OperatorTenantPage(Shape):
    """Tenants, oldest first."""

    data: list[OperatorTenant]
    next_cursor: str | None


class Health(Shape):
    """How the process is."""

    status: str
