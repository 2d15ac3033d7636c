"""The shapes of requests: what bodies are checked against and documented by."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from kernel.execution.durations import parse_duration
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


class SignalBody(Body):
    """Complete a step that waits for a signal. `payload` is what the step returns; null is a payload too."""

    stage_id: Annotated[str, Field(min_length=1, max_length=255, examples=["approve-order"])]
    step_id: Annotated[str, Field(min_length=1, max_length=255, examples=["approval"])]
    payload: Annotated[Any, Field(examples=[{"approved": True}])]


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


class RedriveFromBody(Body):
    """Where a run goes on: where it ended, at its start, or at a stage, which `stage_id` names then and only then."""

    kind: Literal["last_failure", "start", "stage"]
    stage_id: Annotated[str, Field(min_length=1, max_length=255, examples=["charge"])] | None = None


class RunRedriveBody(Body):
    """Let a run that is over go on: from where it ended unless `from` says otherwise.

    `definition_version` pins it to another version, `latest` to the one that new runs get.
    """

    start: RedriveFromBody = Field(default=RedriveFromBody(kind="last_failure"), alias="from")
    definition_version: Annotated[str, Field(min_length=1, max_length=255, examples=["latest"])] | None = None


class BulkRedriveBody(Body):
    """Redrive the runs of a filter from where they ended, or with `dry_run` only count them.

    Without a status in the filter those that FAILED.
    """

    filter: RunFilterBody
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
