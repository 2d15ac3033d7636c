"""What the engine traces: OpenTelemetry's API alone. Without an SDK in the process nothing here costs more than a look.

A run carries the context of its `run.create` span (`traceparent`, `tracestate`), and with it the one decision whether
it is sampled. What happens to it later is a child of that span, or linked to it where a child would keep a trace open
for days. A run without a stored context (made by SQL, or where nothing traces) gets its trace, and the decision, from
its id, so that every process comes to the same.

`WORK` says on whose behalf code runs. It is the only source for what a span or a log line is stamped with: spans'
attributes are anybody's to set. No baggage, because that leaves the process in outbound headers.
"""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context, create_key, set_value
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    TraceState,
)

Attributes: TypeAlias = Mapping[str, str | bool | int | float]

SCOPE: Final = "tenantry"
# In a context: whether the run that a new root belongs to is sampled. A host's sampler goes by it.
RUN_SAMPLED: Final = create_key("tenantry-run-sampled")
_DIGEST_RANGE: Final = 2**64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Work:
    """On whose behalf code runs, and what it does (`op`: `run.create`, `job.execute`, `step.run` …).

    `origin` is the id of the trace that led to it, the one other trace its tenant may see it linked to.
    """

    tenant_id: UUID
    run_id: UUID | None = None
    workflow: str | None = None
    stage: str | None = None
    step: str | None = None
    attempt: int | None = None
    op: str | None = None
    origin: int | None = None

    def attributes(self) -> dict[str, str | int]:
        """Return what every span of this work is stamped with."""
        named = {
            "tenant.id": str(self.tenant_id),
            "tenantry.run.id": None if self.run_id is None else str(self.run_id),
            "tenantry.workflow": self.workflow,
            "tenantry.stage": self.stage,
            "tenantry.step": self.step,
            "tenantry.attempt": self.attempt,
            "tenantry.op": self.op,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Marker:
    """A moment in a run's life, told as a span of no length below `run.create`, whose context is `parent`."""

    name: str
    run_id: UUID
    workflow: str
    parent: SpanContext
    at: datetime
    stage: str | None = None
    attempt: int | None = None
    attributes: Attributes = field(default_factory=dict[str, str])

    def work(self, tenant_id: UUID) -> Work:
        """Return on whose behalf it is told."""
        return Work(tenant_id, self.run_id, self.workflow, self.stage, attempt=self.attempt, op=self.name)


@dataclass(slots=True)
class Sampling:
    """How many of the runs without a stored context are sampled, from 0 to 1.

    One figure for all processes that trace, set where the SDK is set up: each must come to the same decision.
    """

    unmarked_share: float = 0.02


SAMPLING: Final = Sampling()
WORK: ContextVar[Work | None] = ContextVar("tenantry_work", default=None)


def tracer() -> Tracer | None:
    """Return the engine's tracer; None where nobody has set up an SDK."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=4)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(SCOPE)


@contextmanager
def working(work: Work) -> Generator[None]:
    """Run the block on behalf of `work`."""
    token = WORK.set(work)
    try:
        yield
    finally:
        WORK.reset(token)


@contextmanager
def on_step(step_id: str, op: str, attempt: int, attributes: Attributes | None = None) -> Generator[None]:
    """Run the block as the work of a step, in a span of its own where the run is sampled. What it raises is an error.

    Leaving to wait (`BaseException`s that are no errors) is none.
    """
    work = WORK.get()
    own = None if work is None else replace(work, step=step_id, op=op)
    tracing = tracer() if own is not None and trace.get_current_span().is_recording() else None
    if own is None or tracing is None:
        with working(own) if own is not None else _nothing():
            yield
        return
    with working(own):
        span = tracing.start_span(
            f"{op} {step_id}", attributes={"tenantry.step.attempt": attempt, **(attributes or {})}
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except Exception as error:
                failed(span, type(error).__name__)
                raise


@contextmanager
def _nothing() -> Generator[None]:
    yield


def failed(span: Span, error_type: str) -> None:
    """Mark a span as an error. Its message stays out: it may quote what only the tenant may read."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


# -- a run's own context ----------------------------------------------------------------------------------------------


def run_context(run_id: UUID, traceparent: str | None, tracestate: str | None = None) -> SpanContext:
    """Return the context of the run's `run.create` span: the stored one or, without one, what its id says."""
    stored = None if traceparent is None else parse_traceparent(traceparent, tracestate)
    return stored if stored is not None else _context_of_id(run_id, SAMPLING.unmarked_share)


@lru_cache(maxsize=4096)
def parse_traceparent(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Read a W3C `traceparent`; None for none, or one that is malformed."""
    parts = (traceparent or "").split("-")
    if len(parts) < _PARTS or [len(part) for part in parts[:_PARTS]] != [2, 32, 16, 2]:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:_PARTS])
    except ValueError:
        return None
    state = TraceState.from_header([tracestate]) if tracestate else None
    found = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)
    return found if found.is_valid and parts[0] != "ff" else None


def format_traceparent(context: SpanContext) -> str:
    """Return a context as W3C `traceparent`."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


# Asked for several times in a run's life: kept, because it is most of what a run that is not sampled costs.
@lru_cache(maxsize=4096)
def _context_of_id(run_id: UUID, share: float) -> SpanContext:
    # Hashed, because the bits of a UUIDv7 are not evenly spread, and samplers go by a trace id's.
    digest = hashlib.blake2b(run_id.bytes, digest_size=32).digest()
    is_sampled = int.from_bytes(digest[24:], "big") < share * _DIGEST_RANGE
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    numbers = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    return SpanContext(*numbers, is_remote=True, trace_flags=flags)


# -- the engine's spans -----------------------------------------------------------------------------------------------


def create_span(work: Work, traceparent: str | None, tracestate: str | None) -> tuple[str | None, str | None]:
    """Tell of a run's creation in a span that ends at once; returns the context to store on the run.

    The caller's context is the parent: what it passes, or else the current span. Without an SDK the passed one is
    stored, so that whoever traces later joins it.
    """
    tracing = tracer()
    if tracing is None:
        return traceparent, tracestate
    given = parse_traceparent(traceparent, tracestate)
    context = None if given is None else trace.set_span_in_context(NonRecordingSpan(given))
    with working(work):
        span = tracing.start_span(
            f"run.create {work.workflow}", context, SpanKind.PRODUCER, attributes=_messaging(work, "create")
        )
        span.end()
    own = span.get_span_context()
    state = own.trace_state.to_header() if own.trace_state else None
    return (format_traceparent(own), state) if own.is_valid else (traceparent, tracestate)


def traced_context(run_id: UUID, traceparent: str | None) -> SpanContext | None:
    """Return the context of a run's `run.create`, None for a run that is not sampled, or where nothing traces."""
    if tracer() is None:
        return None
    context = run_context(run_id, traceparent)
    return context if context.trace_flags.sampled else None


def tell(tenant_id: UUID, markers: Sequence[Marker]) -> None:
    """Emit markers of sampled runs of one tenant."""
    tracing = tracer()
    if tracing is None:
        return
    for marker in markers:
        at = nanoseconds(marker.at)
        with working(marker.work(tenant_id)):
            span = tracing.start_span(
                marker.name,
                trace.set_span_in_context(NonRecordingSpan(marker.parent)),
                attributes=marker.attributes,
                start_time=at,
            )
        if marker.attributes.get("tenantry.outcome") == "failed":
            failed(span, str(marker.attributes.get("tenantry.error.code", "failed")))
        span.end(at)


def start_execution(work: Work, stored: SpanContext, *, is_first: bool, attributes: Attributes) -> Span:
    """Start the span of one execution of a stage.

    The first is a child of `run.create`; a later one, after a wait or a failed attempt, is a trace of its own linked to
    it, sampled as the run is. What is not sampled, or not traced at all, is a span that records nothing and still
    carries the run's context into what its body calls.
    """
    tracing = tracer()
    if tracing is None or not stored.trace_flags.sampled:
        return NonRecordingSpan(stored)
    links: tuple[Link, ...] = ()
    if is_first:
        context = trace.set_span_in_context(NonRecordingSpan(stored))
    else:
        context, links = set_value(RUN_SAMPLED, value=True, context=Context()), (Link(stored),)
    with working(work):
        return tracing.start_span(
            f"job.execute {work.workflow}/{work.stage}",
            context,
            SpanKind.CONSUMER,
            attributes={**_messaging(work, "process"), **attributes},
            links=links,
        )


def nanoseconds(at: datetime) -> int:
    """Return an instant as OpenTelemetry counts them, since 1970."""
    return (at - _EPOCH) // _MICROSECOND * 1000


def _messaging(work: Work, operation: str) -> dict[str, str]:
    return {
        "messaging.system": SCOPE,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": str(work.workflow),
    }
