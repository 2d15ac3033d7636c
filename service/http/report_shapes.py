"""The shapes of what is told about runs: logs, annotations, progress, traces, and what became of many at once."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from service.http.shapes import BulkResult, Shape


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


class Annotation(Shape):
    """What a body, or the engine, noted at a run: with its stage and attempt where it is about one.

    `superseded`: a redrive took that attempt back. What it had come to is the annotation `run.superseded_attempt`.
    """

    id: UUID
    created_at: datetime
    key: str
    value: Any
    payload: Any
    stage_id: str | None
    attempt: int | None
    superseded: bool


class AnnotationPage(Shape):
    """Annotations, oldest first."""

    data: list[Annotation]
    next_cursor: str | None


class StageProgress(Shape):
    """What the body of a stage said last, in its present attempt, of how far it is."""

    stage_id: str
    attempt: int
    fraction: Annotated[float, Field(ge=0, le=1)]
    message: str
    reported_at: datetime


class Progress(Shape):
    """How far stages are, in definition order; `last_sequence` is the number of the run's last event."""

    data: list[StageProgress]
    last_sequence: int


class SpanLink(Shape):
    """Another span that this one has to do with, in this trace or another."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any]


class Span(Shape):
    """One span, times as OpenTelemetry took them. Its parent need not have been kept."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
    start_time: datetime
    end_time: datetime
    status: Literal["UNSET", "OK", "ERROR"]
    attributes: dict[str, Any]
    links: list[SpanLink]


class Trace(Shape):
    """The spans of a run, oldest first; they may belong to several traces, which links join."""

    data: list[Span]


class RefusedRun(Shape):
    """A run that stayed as it was, and why: as the problem says that it alone would be answered with."""

    run_id: UUID
    code: str
    detail: str


class BulkRedriveResult(BulkResult):
    """A run that cannot be redriven in this build, or has moved meanwhile, stays as it is.

    Where there were any, `refused` counts them and `refusals` holds the first hundred; else both are missing.
    """

    refused: int = 0
    refusals: Annotated[list[RefusedRun], Field(max_length=100, default_factory=list)]
