"""What the engine traces: OpenTelemetry's API alone. Without an SDK in the process nothing here costs more than a look.

A run carries the context of its `run.create` span (`traceparent`, `tracestate`), and with it the one decision whether
it is sampled. What happens to it later is a child of that span, or linked to it where a child would keep a trace open
for days. A run that was made without a context (by SQL, or where nothing traces) is given one by whoever starts it;
one that has none even so is not sampled.
"""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from time import time_ns
from typing import Final
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

from kernel import spans
from kernel.errors import StageAbortedError
from kernel.spans import Attributes
from kernel.work import Work, current_work, working

SCOPE: Final = "tenantry"
# In a context: whether the run that a new root belongs to is sampled. A host's sampler goes by it.
RUN_SAMPLED: Final = create_key("tenantry-run-sampled")
# In a context: whose share of the sampled roots a new one is taken from.
SHARE: Final = create_key("tenantry-share")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PARTS: Final = 4


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


def tracer() -> Tracer | None:
    """Return the engine's tracer; None where nobody has set up an SDK."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=4)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(SCOPE)


def on_step(step_id: str, op: str, attempt: int, attributes: Attributes | None = None) -> AbstractContextManager[None]:
    """Run the block as the work of a step, in a span of its own where the run is sampled. What it raises is an error.

    Leaving to wait (`BaseException`s that are no errors) is none, and doing as one is told, to stop, is none either.
    """
    work = current_work()
    if work is None:
        return nullcontext()
    own = work.on_step(step_id, op)
    tracing = tracer() if trace.get_current_span().is_recording() else None
    if tracing is None:
        return working(own)
    return _traced(tracing, own, f"{op} {step_id}", {"tenantry.step.attempt": attempt, **(attributes or {})})


@contextmanager
def _traced(tracing: Tracer, own: Work, name: str, said: Attributes) -> Generator[None]:
    with working(own):
        span = spans.begin(tracing, name, work=own, attributes=said)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except StageAbortedError:
            raise
        except Exception as error:
            failed(span, type(error).__name__)
            raise
        finally:
            spans.end(span)


def failed(span: Span, error_type: str) -> None:
    """Mark a span as an error. Its message stays out: it may quote what only the tenant may read."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


# -- a run's own context ----------------------------------------------------------------------------------------------


def run_context(run_id: UUID, traceparent: str | None, tracestate: str | None = None) -> SpanContext:
    """Return the context of the run's `run.create` span: the stored one or, without one, an unsampled one."""
    stored = None if traceparent is None else parse_traceparent(traceparent, tracestate)
    return stored if stored is not None else _unsampled(run_id)


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
def _unsampled(run_id: UUID) -> SpanContext:
    # A context all the same: what a body calls would begin a trace of its own without one, and decide anew.
    digest = hashlib.blake2b(run_id.bytes, digest_size=24).digest()
    numbers = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
    return SpanContext(*numbers, is_remote=True, trace_flags=TraceFlags(TraceFlags.DEFAULT))


# -- the engine's spans -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Creation:
    """The context to store on a run, and the span that tells of its creation: ended once the run is committed."""

    traceparent: str | None
    tracestate: str | None
    _span: Span | None = None
    _at_ns: int | None = None

    def tell(self) -> None:
        """Tell of the creation, as a moment."""
        if self._span is not None:
            spans.end(self._span, self._at_ns)


def creation_of(
    work: Work, traceparent: str | None = None, tracestate: str | None = None, *, at: datetime | None = None
) -> Creation:
    """Begin to tell of a run's creation; the decision whether the run is sampled is made here.

    The caller's context is the parent: what it passes, or else the current span. Without an SDK the passed one is
    stored, so that whoever traces later joins it. What was created earlier (`at`), where nothing traced, has no parent.
    Nor has what another tenant's work creates, whose trace is nobody else's: it is linked to that, for the operator.
    """
    tracing = tracer()
    if tracing is None:
        return Creation(traceparent, tracestate)
    given = parse_traceparent(traceparent, tracestate)
    creator = current_work()
    is_anothers = given is None and creator is not None and creator.tenant_id != work.tenant_id
    links = [Link(trace.get_current_span().get_span_context())] if is_anothers else []
    context = set_value(SHARE, str(work.tenant_id), Context() if is_anothers or at is not None else None)
    if given is not None:
        context = trace.set_span_in_context(NonRecordingSpan(given), context)
    at_ns = time_ns() if at is None else nanoseconds(at)
    span = spans.begin(
        tracing,
        f"run.create {work.workflow}",
        context,
        work=work,
        kind=SpanKind.PRODUCER,
        attributes=messaging("send", work.workflow),
        links=links,
        at_ns=at_ns,
    )
    own = span.get_span_context()
    if not own.is_valid:
        return Creation(traceparent, tracestate)
    state = own.trace_state.to_header() if own.trace_state else None
    return Creation(format_traceparent(own), state, span, at_ns)


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
        below = trace.set_span_in_context(NonRecordingSpan(marker.parent))
        work = marker.work(tenant_id)
        span = spans.begin(tracing, marker.name, below, work=work, attributes=marker.attributes, at_ns=at)
        if marker.attributes.get("tenantry.outcome") == "failed":
            failed(span, str(marker.attributes.get("tenantry.error.code", "failed")))
        spans.end(span, at)


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
    return spans.begin(
        tracing,
        f"job.execute {work.workflow}/{work.stage}",
        context,
        work=work,
        kind=SpanKind.CONSUMER,
        attributes={**messaging("process", work.workflow), **attributes},
        links=links,
    )


def nanoseconds(at: datetime) -> int:
    """Return an instant as OpenTelemetry counts them, since 1970."""
    return (at - _EPOCH) // _MICROSECOND * 1000


def messaging(operation: str, workflow: str | None, count: int | None = None) -> dict[str, str | int]:
    """Return what a span is called in the conventions for messaging: `send receive process settle`.

    `workflow` is the destination, where it is one; `count` says how many a batch brought.
    """
    named = {
        "messaging.system": SCOPE,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": workflow,
        "messaging.batch.message_count": count,
    }
    return {name: value for name, value in named.items() if value is not None}
