"""What a tenant may see of a span of its own: nothing that names a host, the platform's database or another tenant.

An allow-list. What the engine says is known by name; of a library's span only what the conventions call by a name
below, none of which holds an address, a path, a statement or a process. What a body's own code writes is its tenant's
and stays, but for the namespaces in which hosts are named. Whose a span is said to be is no matter here: the stamp
decides that.

Whoever runs code in the process can call whatever the engine can: these rules keep apart what code says from what the
engine knows, and are no sandbox.
"""

import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, cast

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status

from kernel.payloads import clean_text
from kernel.telemetry import SCOPE
from kernel.work import STAMP
from service.engine_span import ENGINE
from service.owned_span import RESERVED, OwnedSpan

MAX_ATTRIBUTES: Final = 64
MAX_VALUE: Final = 1_000
# What the names and values of a span's attributes, or an event's, may come to, in characters.
MAX_SIZE: Final = 16_384
# What the engine writes beside its stamp.
_ENGINE: Final = frozenset(
    {
        "tenantry.step.attempt", "tenantry.queue.wait_ms", "tenantry.replay", "tenantry.outcome", "tenantry.error.code",
        "tenantry.reason", "tenantry.wait.kind", "tenantry.steps", "tenantry.steps.replayed", "tenantry.tick.leased",
        "tenantry.tick.runs", "tenantry.tick.promoted", "tenantry.tick.reaped",
    }
)  # fmt: skip
# Of the semantic conventions: what was done and how it went, never where.
PUBLIC: Final = frozenset(
    {
        "error.type", "http.request.method", "http.request.method_original", "http.request.resend_count",
        "http.request.body.size", "http.response.status_code", "http.response.body.size", "http.route", "http.method",
        "http.status_code", "http.scheme", "http.flavor", "url.scheme", "url.template", "rpc.system", "rpc.system.name",
        "rpc.service", "rpc.method", "rpc.grpc.status_code", "rpc.response.status_code", "messaging.system",
        "messaging.operation.type", "messaging.operation.name", "messaging.destination.name",
        "messaging.batch.message_count", "messaging.message.body.size", "graphql.operation.name",
        "graphql.operation.type", "feature_flag.key", "feature_flag.result.variant", "feature_flag.provider.name",
        "gen_ai.system", "gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model",
        "gen_ai.response.model", "gen_ai.response.finish_reasons", "gen_ai.request.max_tokens",
        "gen_ai.request.temperature", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.tool.name",
        "gen_ai.agent.name", "gen_ai.workflow.name",
    }
)  # fmt: skip
# Where hosts, processes, code and addresses are named: not even a body's own code shows these.
_PLACES: Final = (
    "host.", "process.", "os.", "container.", "k8s.", "cloud.", "server.", "client.", "network.", "net.", "peer.",
    "source.", "destination.", "db.", "thread.", "code.", "exception.", "telemetry.", "service.", "url.", "http.",
    "user_agent.", "enduser.", "messaging.", "rpc.", "deployment.", "aws.", "azure.", "gcp.", "dns.", "tls.", "otel.",
)  # fmt: skip
# Instrumentations of what the engine talks to its database with: their spans are the platform's whatever they say.
_OF_DATABASES: Final = frozenset(
    f"opentelemetry.instrumentation.{name}"
    for name in ("aiopg", "asyncpg", "dbapi", "psycopg", "psycopg2", "sqlalchemy", "tortoiseorm")
)


_KNOWN: Final = PUBLIC | _ENGINE
# Of a span, whose stamp is the engine's; an event has none.
_OWNED: Final = _KNOWN | STAMP
_FOREIGN: Final = (*_PLACES, *RESERVED)


class Visibility:
    """The rules, for a process that serves workflows of these modules: tracers named after them are bodies' own."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._own = frozenset(module.partition(".")[0] for module in modules)

    def is_private(self, span: ReadableSpan) -> bool:
        """Whether a span is the platform's own affair: its statements are, and a body's cannot be told from them."""
        scope = span.instrumentation_scope
        if scope is ENGINE:
            return False
        is_of_database = scope is not None and scope.name in _OF_DATABASES
        return is_of_database or any(name.startswith("db.") for name in span.attributes or ())

    def attributes(self, span: OwnedSpan) -> dict[str, Any]:
        """Return what its tenant may see of a span's attributes, in bounds and storable."""
        return self._shown(span.attributes or {}, span, _OWNED)

    def events(self, span: OwnedSpan) -> list[Event]:
        """Return what its tenant may see of a span's events: no exceptions, which quote and trace."""
        return [
            Event(clean_text(event.name, 200), self._shown(event.attributes or {}, span), event.timestamp)
            for event in span.events[:MAX_ATTRIBUTES]
            if event.name != "exception"
        ]

    def links(self, span: OwnedSpan) -> list[Link]:
        """Return the links a tenant may see, bare: those within the span's own trace, and to the one that led to it."""
        own = span.context.trace_id if span.context is not None else 0
        seen = {own, span.work.origin if span.work is not None else None}
        return [Link(bare(link.context)) for link in span.links if link.context.trace_id in seen][:MAX_ATTRIBUTES]

    def copy(self, span: OwnedSpan) -> ReadableSpan:
        """Return the span as its tenant may be sent it."""
        scope = span.instrumentation_scope
        return ReadableSpan(
            name=clean_text(span.name, 200),
            context=None if span.context is None else bare(span.context),
            parent=None if span.parent is None else bare(span.parent),
            resource=Resource({SERVICE_NAME: SCOPE}),
            attributes=self.attributes(span),
            events=self.events(span),
            links=self.links(span),
            kind=span.kind,
            # Its description may quote an exception.
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=None if scope is None else InstrumentationScope(clean_text(scope.name, 200)),
        )

    def _shown(self, attributes: Mapping[str, Any], span: OwnedSpan, known: frozenset[str] = _KNOWN) -> dict[str, Any]:
        is_own = self._is_own_code(span.instrumentation_scope)
        shown: dict[str, Any] = {}
        room = MAX_SIZE
        for name, given in attributes.items():
            is_known = name in known
            if not (is_known or (is_own and not name.startswith(_FOREIGN))):
                continue
            value = storable(given)
            size = len(name) + _size(value)
            # What does not fit any more is left out; what comes after it and does is not.
            if size <= room:
                room -= size
                shown[name if is_known else clean_text(name, 200)] = value
            if len(shown) == MAX_ATTRIBUTES:
                break
        return shown

    def _is_own_code(self, scope: InstrumentationScope | None) -> bool:
        if scope is ENGINE or scope is None or scope.name == SCOPE:
            return False
        return _top(scope.name) in self._own or not _is_installed(_top(scope.name))


def bare(context: SpanContext) -> SpanContext:
    """Return a span's context without the vendors' state that came with it from elsewhere."""
    return SpanContext(context.trace_id, context.span_id, context.is_remote, context.trace_flags)


def storable(value: object) -> object:
    """Return an attribute's value in bounds, as a database and JSON can hold it; a list within a list is its text."""
    if type(value) is str:
        return clean_text(value, MAX_VALUE)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_scalar(item) for item in value[:MAX_ATTRIBUTES]]
    return _scalar(value)


def _scalar(value: object) -> object:
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return clean_text(value if isinstance(value, str) else str(value), MAX_VALUE)


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_size, cast("list[object]", value)))
    return len(value) if isinstance(value, str) else 8


def _top(scope: str) -> str:
    return re.split(r"[./:]", scope, maxsplit=1)[0].replace("-", "_")


@lru_cache(maxsize=1024)
def _is_installed(top: str) -> bool:
    """Whether a tracer of this name is a library's: an installed package, or Python's own."""
    if top == "opentelemetry" or top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any({"site-packages", "dist-packages"} & set(PurePath(place).parts) for place in places)
