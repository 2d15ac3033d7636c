"""The shapes of requests and responses: requests are checked against them, responses documented by them."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from kernel.execution.durations import parse_duration
from kernel.queries.queue_get import WaitReason
from kernel.states import RunStatus, StageStatus
from service.auth import Scope
from service.http.bodies import Body, Instant


def _parse_retention(value: object) -> timedelta | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a duration or null")  # noqa: TRY004 - Pydantic turns a ValueError into a fault
    return timedelta(seconds=parse_duration(value, name="retention", allow_zero=False))


Retention = Annotated[
    timedelta | None,
    BeforeValidator(_parse_retention),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}),
]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
# Above 10,000 things are no longer counted.
Count = int | Literal["10000+"]
# In strict mode a word is no member of an enum, so words are listed as words.
StatusWord = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]
ScopeWord = Literal["runs:read", "runs:write", "signals:write", "schedules:write", "webhooks:write", "keys:admin"]


class RunCreateBody(Body):
    """Start a run."""

    workflow: Annotated[str, Field(min_length=1, max_length=255)]
    input: Any
    config: dict[str, Any] = Field(default_factory=dict, description="By stage id.")
    priority: Annotated[int, Field(ge=0, le=9)] = 5
    run_at: Instant | None = None
    tags: Annotated[list[Tag], Field(max_length=20)] = Field(default_factory=list)
    definition_version: Annotated[str, Field(min_length=1, max_length=255)] | None = None


class RunCancelBody(Body):
    """Cancel a run."""

    reason: Annotated[str, Field(max_length=1000)] | None = None


class RunFilterBody(Body):
    """Which runs; at least one field is given."""

    status: StatusWord | None = None
    workflow: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    tag: Tag | None = None
    created_before: Instant | None = None
    created_after: Instant | None = None


class BulkCancelBody(Body):
    """Cancel the runs of a filter that are not over, or with `dry_run` only count them."""

    filter: RunFilterBody
    reason: Annotated[str, Field(max_length=1000)] | None = None
    dry_run: bool = False


class ApiKeyBody(Body):
    """Make a key."""

    name: Name
    scopes: Annotated[list[ScopeWord], Field(min_length=1)]
    expires_at: Instant | None = None


class LimitsBody(Body):
    """Limits of a tenant; null is no limit, what is not given stays."""

    running_jobs: Annotated[int, Field(ge=0)] | None = None
    pending_runs: Annotated[int, Field(ge=0)] | None = None
    runs_per_minute: Annotated[int, Field(ge=0)] | None = None
    payload_bytes: Annotated[int, Field(ge=0)] | None = None


class TenantCreateBody(Body):
    """Create a tenant."""

    slug: str
    name: Name | None = None
    limits: LimitsBody = Field(default_factory=LimitsBody)


class TenantChangeBody(Body):
    """Change a tenant; what is not given stays. `retention` is a duration (`"30d"`, seconds), null keeps runs."""

    limits: LimitsBody = Field(default_factory=LimitsBody)
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    retention: Retention = None


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


class Stage(Shape):
    """A stage that exists. `group` and `number` count from 1, `attempt` is 0 before the first execution."""

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
    waiting_for: None


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


class Run(RunListed):
    """A run with its payloads and stages."""

    input: Any
    config: dict[str, Any]
    output: Any
    stages: list[Stage]


class RunPage(Shape):
    """Runs, newest first."""

    data: list[RunListed]
    next_cursor: str | None


class Event(Shape):
    """One event of a run's history."""

    run_id: UUID
    sequence: int
    type: str
    occurred_at: datetime
    stage_id: str | None
    data: dict[str, Any]


class EventPage(Shape):
    """Events, oldest first."""

    data: list[Event]
    next_cursor: str | None


class LogLine(Shape):
    """What a body logged."""

    created_at: datetime
    level: str
    message: str
    fields: dict[str, Any]
    stage_id: str
    attempt: int


class LogPage(Shape):
    """Log lines, oldest first."""

    data: list[LogLine]
    next_cursor: str | None


class BulkResult(Shape):
    """How many runs the filter matched that were not over."""

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
