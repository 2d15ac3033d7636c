"""A span as it is handed on: stamped with the work it was part of, and in a form that every exporter can encode.

Bodies make spans with names, times and kinds of their own, and the API checks none of them. An exporter gives up a
whole batch over one span that it cannot encode, and in that batch are the spans of other tenants.
"""

from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any, Final

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, TraceState

from kernel.payloads import clean_text
from kernel.telemetry import SCOPE
from kernel.work import STAMP, Work
from service.engine_span import ENGINE

# What others than the engine say in its words is hearsay.
RESERVED: Final = ("tenant.", "tenantry.")
MAX_NAME_BYTES: Final = 1_000
# Some time in 2262; what is later, or before 1970, is no time of a span.
_TOO_LATE_NS: Final = 2**63


class OwnedSpan(ReadableSpan):
    """A span that has ended and the work it was part of; stamped anew, whatever its code wrote over the stamp."""

    def __init__(self, span: ReadableSpan, work: Work | None) -> None:
        scope = ENGINE if span.instrumentation_scope is ENGINE else _sound_scope(span.instrumentation_scope)
        ended_ns = _sound_time(span.end_time, time_ns())
        super().__init__(
            name=_sound_text(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=_stamped(span.attributes or {}, work, scope),
            events=_sound_events(span.events, ended_ns),
            links=[link for link in span.links if is_sound(link.context)],
            kind=_sound_kind(span.kind),
            status=_sound_status(span.status),
            start_time=_sound_time(span.start_time, ended_ns),
            end_time=ended_ns,
            instrumentation_scope=scope,
        )
        self.work = work


def _stamped(claimed: Mapping[str, Any], work: Work | None, scope: InstrumentationScope | None) -> dict[str, Any]:
    """Return attributes with the stamp of their work, and nothing but that in the engine's words from others."""
    if scope is ENGINE:
        # Began with its stamp, over which nobody writes.
        return {**claimed}
    if work is None or scope is None or scope.name != SCOPE:
        said = {name: value for name, value in claimed.items() if not name.startswith(RESERVED)}
    else:
        said = {name: value for name, value in claimed.items() if name not in STAMP}
    return said if work is None else {**work.attributes(), **said}


def is_sound(context: object) -> bool:
    """Whether a span's context is one: a parent that a body makes up may have anything for its ids."""
    return (
        isinstance(context, SpanContext)
        and context.is_valid
        and type(context.trace_id) is int
        and type(context.span_id) is int
        and isinstance(context.trace_state, TraceState)
    )


def _is_plain(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and len(text) <= MAX_NAME_BYTES


def _sound_text(text: object) -> str:
    if isinstance(text, str):
        return text if _is_plain(text) else clean_text(text, MAX_NAME_BYTES)
    return type(text).__name__


def _sound_time(at_ns: object, otherwise_ns: int) -> int:
    return at_ns if isinstance(at_ns, int) and 0 <= at_ns < _TOO_LATE_NS else otherwise_ns


def _sound_kind(kind: object) -> SpanKind:
    return kind if isinstance(kind, SpanKind) else SpanKind.INTERNAL


def _sound_events(events: Sequence[Event], otherwise_ns: int) -> Sequence[Event]:
    return [
        Event(_sound_text(event.name), event.attributes, _sound_time(event.timestamp, otherwise_ns)) for event in events
    ]


def _sound_status(status: Status) -> Status:
    if status.description is None or _is_plain(status.description):
        return status
    return Status(status.status_code, clean_text(status.description))


def _sound_scope(scope: InstrumentationScope | None) -> InstrumentationScope | None:
    if scope is None:
        return None
    told = scope.name, scope.version or "", scope.schema_url or ""
    if all(map(_is_plain, told)):
        return scope
    name, version, schema_url = map(_sound_text, told)
    return InstrumentationScope(name, version, schema_url)
