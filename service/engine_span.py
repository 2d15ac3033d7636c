"""The engine's own spans: what the SDK's are to whoever sees them, for a fraction of what those cost.

A sampled run of three stages has nine of them, and they are most of what tracing costs. Of a span of the engine's it
is known who begins it, with which attributes and for whom: nothing in it has to be cleaned, locked or looked up. What
others say while it is current (a body's attributes, a library's events) is said to a span of the SDK's, its guest.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from time import time_ns
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.util import types

from kernel.spans import Attributes, WorkTracer
from kernel.telemetry import SCOPE
from kernel.work import STAMP, Work

ENGINE: Final = InstrumentationScope(SCOPE, "")
# A text of so many characters is kept as it is given, if there is room.
_SHORT: Final = 64
_ROOM: Final = 32
_KNOWN_FLAGS: Final = TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID
_FLAGS: Final = tuple(TraceFlags(flags) for flags in range(_KNOWN_FLAGS + 1))


class EngineSpan(Span, ReadableSpan):
    """A span of the engine's that has begun. What its guest was told is to be read in it once it has ended."""

    def __init__(self, maker: "EngineTracer", own: dict[str, types.AnyValue], **parts: Any) -> None:
        """`own` are its attributes, and `parts` what else a span has that can be read."""
        super().__init__(attributes=own, resource=maker.provider.resource, instrumentation_scope=ENGINE, **parts)
        self._own = own
        self._maker = maker
        self.guest: SdkSpan | None = None

    def get_span_context(self) -> SpanContext:
        """Return its ids."""
        assert self._context is not None
        return self._context

    def is_recording(self) -> bool:
        """Whether it has not ended."""
        return self._end_time is None

    def set_attribute(self, key: str, value: types.AnyValue) -> None:
        """Say something of it."""
        is_plain = type(value) is str and len(value) <= self._maker.short and type(key) is str and key
        if is_plain and key not in STAMP and self.guest is None and self.is_recording() and len(self._own) < _ROOM:
            self._own[key] = value
        else:
            self._told().set_attribute(key, value)

    def set_attributes(self, attributes: Mapping[str, types.AnyValue]) -> None:
        """Say several things of it."""
        self._told().set_attributes(attributes)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        """Say what happened in it."""
        self._told().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        """Link it to another span."""
        self._told().add_link(context, attributes)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001, FBT002 - the API's signature
    ) -> None:
        """Say what was raised in it."""
        self._told().record_exception(exception, attributes, timestamp, escaped)

    def update_name(self, name: str) -> None:
        """Call it something else."""
        self._told().update_name(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Say how it went."""
        is_first = self.guest is None and self.is_recording() and description is None
        if is_first and isinstance(status, Status) and status.status_code is StatusCode.ERROR:
            self._status = status
        else:
            self._told().set_status(status, description)

    def end(self, end_time: int | None = None) -> None:
        """End it, once."""
        if self._end_time is not None:
            return
        self._end_time = time_ns() if end_time is None else end_time
        if self.guest is not None:
            self._take_in(self.guest)
        self._maker.processor.on_end(self)

    def _told(self) -> Span:
        """Return whom to tell what is not plain: nobody who remembers it, when the span has ended."""
        if self._end_time is not None:
            return trace.INVALID_SPAN
        return self.guest or self._maker.invite(self)

    def _take_in(self, guest: ReadableSpan) -> None:
        said = guest.attributes or {}
        self._attributes = {**self._own, **{name: value for name, value in said.items() if name not in STAMP}}
        self._name, self._events = guest.name, guest.events
        self._links = (*self._links, *guest.links)
        if guest.status.status_code is not StatusCode.UNSET:
            self._status = guest.status


class EngineTracer(WorkTracer):
    """The tracer of the engine's scope: its own spans for work, the SDK's for everything else."""

    def __init__(
        self,
        provider: TracerProvider,
        sdk: Tracer,
        processor: SpanProcessor,
        own: Callable[[Span, Work], None],
        limits: SpanLimits,
    ) -> None:
        """`processor` is told of each span that begins and ends, `own` takes down whose it is; `limits` are guests'."""
        self.provider = provider
        self.processor = processor
        self._own = own
        self._sdk = sdk
        self._new_id = provider.id_generator.generate_span_id
        limit = limits.max_span_attribute_length
        self.short = _SHORT if limit is None else min(_SHORT, limit)
        self._inviting = Lock()
        # Guests are told of to nobody: what they hold goes with their hosts.
        guests = TracerProvider(ALWAYS_ON, Resource.get_empty(), shutdown_on_exit=False, span_limits=limits)
        self._guests = guests.get_tracer(SCOPE)

    def begin(  # noqa: PLR0913 - as many as the API's own
        self,
        work: Work,
        name: str,
        context: Context | None,
        *,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link],
        at_ns: int | None,
    ) -> Span:
        """Return a span of `work`; one that records nothing where it is not sampled."""
        parent = trace.get_current_span(context).get_span_context()
        if parent.is_valid:
            # As `RunSampler` has it: what has a parent follows it.
            flags = _FLAGS[parent.trace_flags & _KNOWN_FLAGS]
            own = SpanContext(parent.trace_id, self._new_id(), False, flags, parent.trace_state)
        else:
            own = self._root(context, name, kind, attributes)
        if not own.trace_flags.sampled:
            return NonRecordingSpan(own)
        span = EngineSpan(
            self,
            {**attributes, **work.attributes()},
            name=name,
            context=own,
            parent=parent if parent.is_valid else None,
            links=links,
            kind=kind,
            start_time=time_ns() if at_ns is None else at_ns,
        )
        self._own(span, work)
        # It has what the SDK's have, but for their class.
        self.processor.on_start(cast("SdkSpan", span), context)
        return span

    def _root(self, context: Context | None, name: str, kind: SpanKind, attributes: Attributes) -> SpanContext:
        trace_id = self.provider.id_generator.generate_trace_id()
        decided = self.provider.sampler.should_sample(context, trace_id, name, kind, attributes)
        flags = TraceFlags.SAMPLED if decided.decision is Decision.RECORD_AND_SAMPLE else TraceFlags.DEFAULT
        if self.provider.id_generator.is_trace_id_random():
            flags |= TraceFlags.RANDOM_TRACE_ID
        return SpanContext(trace_id, self._new_id(), False, _FLAGS[flags], decided.trace_state)

    def invite(self, host: EngineSpan) -> SdkSpan:
        """Return the span of the SDK's that is told what others say of a span of the engine's, the same each time."""
        # A body's threads may speak at once: of two guests one would be forgotten.
        with self._inviting:
            if host.guest is None:
                host.guest = cast("SdkSpan", self._guests.start_span(host.name, Context()))
            return host.guest

    def start_span(self, *args: Any, **kwargs: Any) -> Span:
        """Return a span of the SDK's."""
        return self._sdk.start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        """Run a block in a span of the SDK's."""
        return self._sdk.start_as_current_span(*args, **kwargs)
