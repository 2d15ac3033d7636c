"""The engine's own spans: told the same, they say what the SDK's would, and of whose they are only what the engine knows."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags, TraceState

from kernel import spans
from kernel.spans import WorkTracer
from kernel.telemetry import SCOPE, tracer
from kernel.work import STAMP, Work
from service.engine_span import EngineSpan
from service.sampling import RunSampler
from service.spans import SpanStore
from service.telemetry import EngineProvider, OwningProcessor, resource_of
from tests.support.tracing import Kept, Tracing

WORK = Work(uuid4(), uuid4(), "invoice", "charge", attempt=1, op="job.execute")
LINKED = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def raised() -> Exception:
    try:
        raise ValueError("no")  # noqa: TRY301 - with a trace of its own
    except ValueError as error:
        return error


RAISED = raised()

SAYINGS: dict[str, Callable[[Span], None]] = {
    "nothing": lambda _: None,
    "a text": lambda span: span.set_attribute("a", "b"),
    "a text after another kind": lambda span: (span.set_attribute("a", [1]), span.set_attribute("a", "b")),
    "another kind after a text": lambda span: (span.set_attribute("a", "b"), span.set_attribute("a", 2.5)),
    "a long text": lambda span: span.set_attribute("a", "x" * 500),
    "what is no name": lambda span: (span.set_attribute("", "b"), span.set_attribute(7, "b")),
    "several things": lambda span: span.set_attributes({"a": 1, "b": True, "c": ["d", "e"]}),
    "more than there is room for": lambda span: [span.set_attribute(f"a{n}", "b") for n in range(300)],
    "what happened": lambda span: span.add_event("it", {"a": "x" * 500}, 12),
    "more than can be kept": lambda span: [span.add_event(f"it {n}", None, n) for n in range(300)],
    "a link": lambda span: span.add_link(LINKED, {"a": 1}),
    "a name": lambda span: span.update_name("another"),
    "an error": lambda span: span.set_status(Status(StatusCode.ERROR)),
    "an error and why": lambda span: span.set_status(StatusCode.ERROR, "why"),
    "an error, then that it went well": lambda span: (
        span.set_status(Status(StatusCode.ERROR)),
        span.set_status(StatusCode.OK),
    ),
    "that it went well, then an error": lambda span: (
        span.set_status(Status(StatusCode.OK)),
        span.set_status(Status(StatusCode.ERROR)),
    ),
    "an error, then nothing": lambda span: (
        span.set_status(Status(StatusCode.ERROR)),
        span.set_status(Status(StatusCode.UNSET)),
    ),
    "an exception": lambda span: span.record_exception(RAISED, {"a": 1}, 12),
}  # fmt: skip


def told(span: ReadableSpan) -> dict[str, Any]:
    """Return what a span says, but for its ids and times."""
    return {
        "name": span.name,
        "kind": span.kind,
        "attributes": {name: value for name, value in (span.attributes or {}).items() if name not in STAMP},
        "events": [(event.name, dict(event.attributes or {}), event.timestamp) for event in span.events],
        "links": [(link.context, dict(link.attributes or {})) for link in span.links],
        "status": (span.status.status_code, span.status.description),
        "scope": span.instrumentation_scope and span.instrumentation_scope.name,
        "resource": span.resource,
    }


def begun(work: Work = WORK, context: Context | None = None, **said: str) -> Span:
    tracing = tracer()
    assert tracing is not None
    return spans.begin(tracing, "job.execute invoice/charge", context or Context(), work=work, attributes=said)


@pytest.fixture(params=[SpanLimits(), SpanLimits(max_attribute_length=10, max_events=3, max_span_attributes=20)])
def kept(request: pytest.FixtureRequest) -> tuple[EngineProvider, Kept]:
    """A provider of ours with these limits, and what has ended in it."""
    kept = Kept()

    class Ended(OwningProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            kept.export([span])

    provider = EngineProvider(RunSampler(ALWAYS_ON), Resource.get_empty(), request.param, Ended([], SpanStore()))
    return provider, kept


@pytest.mark.parametrize("saying", SAYINGS)
def test_what_is_said_of_it_is_kept_as_by_the_sdk(saying: str, kept: tuple[EngineProvider, Kept]) -> None:
    provider, ended = kept
    of_engine = provider.get_tracer(SCOPE)
    assert isinstance(of_engine, WorkTracer)
    ours = of_engine.begin(
        Work(uuid4()), "it", Context(), kind=trace.SpanKind.INTERNAL, attributes={"z": 1}, links=(), at_ns=None
    )
    theirs = of_engine.start_span("it", Context(), attributes={"z": 1})
    assert (type(ours), type(theirs)) == (EngineSpan, type(theirs))
    for span in (ours, theirs):
        SAYINGS[saying](span)
        span.end()
        # What is said too late is said to nobody.
        SAYINGS[saying](span)
        span.set_attribute("late", "x")
        span.end()
    first, second = ended.spans
    mine, sdks = told(first), told(second)
    if saying == "more than there is room for":
        # Its stamp takes room, too; which of the others stay is nobody's promise.
        room = provider._span_limits.max_span_attributes
        assert room is not None
        assert len(mine["attributes"]) <= room + 32
    else:
        assert mine == sdks


def test_nobody_writes_over_its_stamp(traced: Tracing) -> None:
    other = Work(uuid4(), uuid4(), "other", "other", "other", 9, "other")
    span = begun(**{"tenant.id": "forged"})
    for name, value in other.attributes().items():
        span.set_attribute(name, value)
    span.set_attributes(other.attributes())
    span.add_event("told by a guest")
    span.end()
    attributes = traced.one("job.execute invoice/charge").attributes
    assert attributes is not None
    assert {name: attributes.get(name) for name in STAMP} == {**dict.fromkeys(STAMP), **WORK.attributes()}


def test_what_several_threads_say_first_is_all_kept(traced: Tracing) -> None:
    together = Barrier(8)
    span = begun()

    def say(number: int) -> None:
        together.wait()
        span.set_attribute(f"said.{number}", number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(say, range(8)))
    span.end()
    attributes = traced.one("job.execute invoice/charge").attributes or {}
    assert {name for name in attributes if name.startswith("said.")} == {f"said.{number}" for number in range(8)}


@pytest.mark.parametrize("flags", [TraceFlags.SAMPLED, TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID, 0, 2, 0xFF])
def test_a_child_follows_its_parent_as_the_sdks_does(flags: int, traced: Tracing) -> None:
    parent = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(flags), trace_state=TraceState([("a", "b")]))
    below = trace.set_span_in_context(NonRecordingSpan(parent), Context())
    ours, theirs = begun(context=below), trace.get_tracer_provider().get_tracer("a library").start_span("it", below)
    own, other = ours.get_span_context(), theirs.get_span_context()
    assert ours.is_recording() == theirs.is_recording()
    assert (own.trace_id, own.trace_flags, own.trace_state) == (other.trace_id, other.trace_flags, other.trace_state)
    assert own.span_id not in {parent.span_id, other.span_id}
    assert not own.is_remote


def test_a_root_is_sampled_as_the_sampler_says() -> None:
    for sampler, is_recording in ((ALWAYS_ON, True), (ALWAYS_OFF, False)):
        provider = EngineProvider(
            RunSampler(sampler), resource_of("tests"), SpanLimits(), OwningProcessor([], SpanStore())
        )
        tracing = provider.get_tracer(SCOPE)
        ours, theirs = spans.begin(tracing, "it", Context(), work=WORK), tracing.start_span("it", Context())
        assert ours.is_recording() is theirs.is_recording() is is_recording
        assert ours.get_span_context().trace_flags == theirs.get_span_context().trace_flags
        assert ours.get_span_context().is_valid
