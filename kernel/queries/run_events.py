"""Reads the history of one run."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class EventView:
    """One event; `data` is JSON text."""

    sequence: int
    type: str
    stage_id: str | None
    data: str
    occurred_at: datetime


async def run_events(
    tx: TenantTransaction, run_id: UUID, *, after: int = 0, limit: int, types: Iterable[str] | None = None
) -> list[EventView]:
    """Return up to `limit` events behind the sequence number `after`, oldest first; none for an unknown run.

    With `types`, only events of these.
    """
    wanted = None if types is None else sorted(types)
    rows = await tx.fetch_all(SQL["page"], run_id=run_id, after=after, limit=limit, types=wanted)
    return [EventView(row["sequence"], row["type"], row["stage_id"], row["data"], row["occurred_at"]) for row in rows]
