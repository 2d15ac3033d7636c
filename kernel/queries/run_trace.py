"""Reads the spans of one run that were kept for its tenant."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
# As many spans as one run keeps: a trace is read whole, because only the whole is a tree.
MAX_SPANS: Final = 1_000


@dataclass(frozen=True, slots=True)
class SpanView:
    """One span; `attributes` is the JSON text of an object, `links` that of a list of objects."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: str
    start_time: datetime
    end_time: datetime
    status: str
    attributes: str
    links: str


async def run_trace(tx: TenantTransaction, run_id: UUID) -> list[SpanView]:
    """Return the run's spans, oldest first; none for an unknown run, or one that was not sampled."""
    rows = await tx.fetch_all(SQL["spans"], run_id=run_id, limit=MAX_SPANS)
    return [
        SpanView(
            trace_id=row["trace_id"],
            span_id=row["span_id"],
            parent_span_id=row["parent_span_id"],
            name=row["name"],
            kind=row["kind"],
            start_time=row["start_time"],
            end_time=row["end_time"],
            status=row["status"],
            attributes=row["attributes"],
            links=row["links"],
        )
        for row in rows
    ]
