"""The span store: a bounded share of each tenant's spans, in that tenant's own rows.

Whose a span is comes from the engine's own context (`kernel.telemetry.WORK`), which the span was started in; no
attribute decides it. What a tenant gets to see names no host, no process and no statement of the platform's database.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final
from uuid import UUID

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link

from kernel.payloads import clean_text
from kernel.queries.run_trace import MAX_SPANS
from kernel.telemetry import Work
from tenancy import Database, DatabaseUnavailableError, TenantTransaction, load_sql

logger = logging.getLogger(__name__)
SQL = load_sql(__file__)
EVERY_S: Final = 0.5
# What one tenant may have waiting between two flushes of a process, and all of them together.
MAX_WAITING: Final = 2_000
MAX_WAITING_OF_ALL: Final = 20_000
MAX_ATTRIBUTES: Final = 64
MAX_VALUE: Final = 1_000
PRUNE_PAGE: Final = 5_000
# Namespaces of the platform's own affairs: hosts, processes, code, addresses, stack traces.
_PRIVATE: Final = (
    "host.", "process.", "os.", "container.", "k8s.", "cloud.", "server.", "client.", "network.", "net.", "peer.",
    "source.", "destination.", "db.", "thread.", "code.", "exception.", "telemetry.", "service.", "url.", "http.url",
    "user_agent.", "enduser.", "messaging.client.",
)  # fmt: skip


class OwnedSpan(ReadableSpan):
    """A span that has ended and the work it was part of; stamped anew, whatever its code wrote over the stamp."""

    def __init__(self, span: ReadableSpan, work: Work | None) -> None:
        claimed = dict(span.attributes or {})
        if work is None:
            # Nobody's: what it says of itself is hearsay.
            claimed = {name: value for name, value in claimed.items() if name not in _IDENTITY}
        super().__init__(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=claimed if work is None else {**claimed, **work.attributes()},
            events=span.events,
            links=span.links,
            kind=span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
        self.work = work


_IDENTITY: Final = frozenset({"tenant.id", "tenantry.run.id"})


@dataclass(slots=True)
class _Tenant:
    """The spans of one tenant that wait to be written."""

    spans: deque[OwnedSpan] = field(default_factory=deque[OwnedSpan])
    dropped: int = 0


class SpanStore(SpanExporter):
    """Takes owned spans from any thread and writes them, a statement a tenant and round, off everybody's path."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tenants: dict[UUID, _Tenant] = {}
        self._waiting = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep the spans that belong to a run of a tenant's until they are written; over the bounds, drop them."""
        for span in spans:
            if isinstance(span, OwnedSpan) and span.work is not None and span.work.run_id is not None:
                self._keep(span, span.work.tenant_id)
        return SpanExportResult.SUCCESS

    def _keep(self, span: OwnedSpan, tenant_id: UUID) -> None:
        if is_private(span):
            return
        with self._lock:
            tenant = self._tenants.setdefault(tenant_id, _Tenant())
            if len(tenant.spans) < MAX_WAITING and self._waiting < MAX_WAITING_OF_ALL:
                tenant.spans.append(span)
                self._waiting += 1
            else:
                tenant.dropped += 1

    async def run(self, database: Database) -> None:
        """Write what there is twice a second until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self.flush(database)
        finally:
            await asyncio.shield(self.flush(database))

    async def flush(self, database: Database) -> None:
        """Write what waits, one transaction a tenant. What cannot be written is dropped: it is a copy."""
        with self._lock:
            tenants, self._tenants, self._waiting = self._tenants, {}, 0
        for tenant_id, tenant in tenants.items():
            if tenant.dropped:
                logger.warning("spans_dropped", extra={"tenant_id": tenant_id, "spans": tenant.dropped})
            try:
                async with database.transaction(tenant_id) as tx:
                    await write(tx, tenant.spans)
            except DatabaseUnavailableError:
                logger.warning("spans_dropped", extra={"spans": sum(len(each.spans) for each in tenants.values())})
                return
            except Exception:
                logger.exception("spans_refused", extra={"tenant_id": tenant_id})


async def write(tx: TenantTransaction, spans: Iterable[OwnedSpan]) -> None:
    """Write spans of the tenant that the transaction is bound to; whoever else's is among them is left out."""
    rows = [
        {"run_id": span.work.run_id, **tenants_view(span)}
        for span in spans
        if span.work is not None and span.work.tenant_id == tx.tenant_id
    ]
    if rows:
        await tx.send([(SQL["insert"], {"items": orjson.dumps(rows).decode(), "cap": MAX_SPANS})])


async def prune(tx: TenantTransaction, older_than: datetime) -> None:
    """Throw away a page of spans that started before an instant (aware), of runs created before it."""
    await tx.send([(SQL["prune"], {"older_than": older_than, "limit": PRUNE_PAGE})])


def is_private(span: ReadableSpan) -> bool:
    """Whether a span is the platform's own affair: its statements are."""
    return any(name.startswith("db.") for name in span.attributes or ())


def public_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a tenant may see of a span's attributes, in bounds and storable."""
    shown = [(name, value) for name, value in (attributes or {}).items() if not name.startswith(_PRIVATE)]
    return {clean_text(name, 200): _storable(value) for name, value in shown[:MAX_ATTRIBUTES]}


def public_links(span: OwnedSpan) -> list[Link]:
    """Return the links a tenant may see, bare: those within the span's own trace, and to the one that led to it."""
    own = span.context.trace_id if span.context is not None else 0
    seen = {own, span.work.origin if span.work is not None else None}
    return [Link(link.context) for link in span.links if link.context.trace_id in seen]


def tenants_view(span: OwnedSpan) -> dict[str, Any]:
    """Return a span as its tenant sees it, by the names of the columns."""
    context = span.context
    assert context is not None
    return {
        "start_time": _instant(span.start_time),
        "end_time": _instant(span.end_time),
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_span_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        "name": clean_text(span.name, 200),
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "attributes": {**public_attributes(span.attributes), **_replayed(span)},
        "links": [
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "span_id": f"{link.context.span_id:016x}",
                "attributes": {},
            }
            for link in public_links(span)[:MAX_ATTRIBUTES]
        ],
    }


def _replayed(span: ReadableSpan) -> dict[str, Any]:
    """Return how many steps were answered from the ledger: an event of the span, for which the store has no place."""
    counts = [(event.attributes or {}).get("tenantry.steps") for event in span.events if event.name == "steps.replayed"]
    return {"tenantry.steps.replayed": counts[-1]} if counts else {}


def _storable(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value, MAX_VALUE)
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_storable(item) for item in value[:MAX_ATTRIBUTES]]
    return clean_text(str(value), MAX_VALUE)


def _instant(nanoseconds: int | None) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(nanoseconds or 0) // 1000)
