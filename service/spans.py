"""The span store: a bounded share of each tenant's spans, in that tenant's own rows.

Whose a span is comes from the engine's own context (`kernel.work.current_work`), which the span was started in; no
attribute decides it. What a tenant gets to see names no host, no process and no statement of the platform's database.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from time import monotonic
from typing import Any, Final
from uuid import UUID

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from kernel.payloads import clean_text
from kernel.queries.run_trace import MAX_SPANS
from service.owned_span import OwnedSpan
from service.visibility import Visibility, storable
from tenancy import Database, DatabaseUnavailableError, TenantTransaction, load_sql

logger = logging.getLogger(__name__)
SQL = load_sql(__file__)
LOOK_EVERY_S: Final = 0.5
# A quiet tenant's spans wait for so long for more of them, because each write is a transaction; `MANY` do not wait.
LINGER_S: Final = 2.0
MANY: Final = 200
# What one tenant may have waiting between two flushes of a process, and all of them together.
MAX_WAITING: Final = 2_000
MAX_WAITING_OF_ALL: Final = 20_000
PRUNE_PAGE: Final = 5_000


@dataclass(slots=True)
class _Tenant:
    """The spans of one tenant that wait to be written, the first of them since `since` on the store's clock."""

    since: float
    spans: deque[OwnedSpan] = field(default_factory=deque[OwnedSpan])
    dropped: int = 0


class SpanStore(SpanExporter):
    """Takes owned spans from any thread and writes them, a statement a tenant and round, off everybody's path."""

    def __init__(self, visibility: Visibility | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._visibility = visibility or Visibility()
        self._clock = clock
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
        if self._visibility.is_private(span):
            return
        with self._lock:
            tenant = self._tenants.get(tenant_id)
            if tenant is None:
                tenant = self._tenants[tenant_id] = _Tenant(self._clock())
            if len(tenant.spans) < MAX_WAITING and self._waiting < MAX_WAITING_OF_ALL:
                tenant.spans.append(span)
                self._waiting += 1
            else:
                tenant.dropped += 1

    async def run(self, database: Database) -> None:
        """Write what is due until cancelled, and everything then: no span waits for longer than 2.5 s."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                await self.flush_due(database)
        finally:
            await asyncio.shield(self.flush(database))

    async def flush_due(self, database: Database) -> None:
        """Write the spans of tenants that have waited for `LINGER_S`, or have many; all when all have much."""
        with self._lock:
            is_full, since = self._waiting >= MAX_WAITING_OF_ALL // 2, self._clock() - LINGER_S
            due = {
                tenant_id: tenant
                for tenant_id, tenant in self._tenants.items()
                if is_full or tenant.since <= since or len(tenant.spans) >= MANY
            }
            for tenant_id, tenant in due.items():
                del self._tenants[tenant_id]
                self._waiting -= len(tenant.spans)
        await self._write(database, due)

    async def flush(self, database: Database) -> None:
        """Write everything that waits."""
        with self._lock:
            tenants, self._tenants, self._waiting = self._tenants, {}, 0
        await self._write(database, tenants)

    async def _write(self, database: Database, tenants: Mapping[UUID, _Tenant]) -> None:
        """Write spans, one transaction a tenant. What cannot be written is dropped: it is a copy."""
        for tenant_id, tenant in tenants.items():
            if tenant.dropped:
                logger.warning("spans_dropped", extra={"tenant_id": tenant_id, "spans": tenant.dropped})
            try:
                async with database.transaction(tenant_id) as tx:
                    await write(tx, tenant.spans, self._visibility)
            except DatabaseUnavailableError:
                logger.warning("spans_dropped", extra={"spans": sum(len(each.spans) for each in tenants.values())})
                return
            except Exception:
                logger.exception("spans_refused", extra={"tenant_id": tenant_id})


async def write(tx: TenantTransaction, spans: Iterable[OwnedSpan], visibility: Visibility) -> None:
    """Write spans of the tenant that the transaction is bound to; whoever else's is among them is left out."""
    rows = [
        {"run_id": span.work.run_id, **tenants_view(span, visibility)}
        for span in spans
        if span.work is not None and span.work.tenant_id == tx.tenant_id
    ]
    if rows:
        await tx.send([(SQL["insert"], {"items": orjson.dumps(rows).decode(), "cap": MAX_SPANS})])


async def prune(tx: TenantTransaction, older_than: datetime) -> bool:
    """Throw away a page of spans that started before an instant (aware), of runs created before it.

    Returns whether there may be more.
    """
    return await tx.execute(SQL["prune"], older_than=older_than, limit=PRUNE_PAGE) >= PRUNE_PAGE


def tenants_view(span: OwnedSpan, visibility: Visibility) -> dict[str, Any]:
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
        "attributes": {**visibility.attributes(span), **_replayed(span)},
        "links": [
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "span_id": f"{link.context.span_id:016x}",
                "attributes": {},
            }
            for link in visibility.links(span)
        ],
    }


def _replayed(span: ReadableSpan) -> dict[str, Any]:
    """Return how many steps were answered from the ledger: an event of the span, for which the store has no place."""
    counts = [(event.attributes or {}).get("tenantry.steps") for event in span.events if event.name == "steps.replayed"]
    return {"tenantry.steps.replayed": storable(counts[-1])} if counts else {}


def _instant(nanoseconds: int | None) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(nanoseconds or 0) // 1000)
