"""Reads the history of one run."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class EventView:
    """One event; `data` is JSON text."""

    sequence: int
    type: str
    stage_id: str | None
    data: str
    occurred_at: datetime


async def run_events(  # noqa: PLR0913 - a page, and what of it
    tx: TenantTransaction,
    run_id: UUID,
    *,
    after: int = 0,
    limit: int,
    types: Iterable[str] | None = None,
    stage_id: str | None = None,
) -> list[EventView]:
    """Return up to `limit` events behind the sequence number `after`, oldest first; none for an unknown run.

    With `types`, only events of these; with `stage_id`, only those of that stage.
    """
    rows = await tx.fetch_all(
        SQL["page"], run_id=run_id, after=after, limit=limit, types=_sorted(types), stage_id=stage_id
    )
    return [_view(row) for row in rows]


async def run_last_events(
    tx: TenantTransaction, run_id: UUID, *, limit: int, types: Iterable[str] | None = None, stage_id: str | None = None
) -> list[EventView]:
    """Return the last events, up to `limit` of them, newest first.

    With `types`, only events of these; with `stage_id`, only those of that stage, and of its run as a whole.
    """
    rows = await tx.fetch_all(SQL["last"], run_id=run_id, limit=limit, types=_sorted(types), stage_id=stage_id)
    return [_view(row) for row in rows]


def _sorted(types: Iterable[str] | None) -> list[str] | None:
    return None if types is None else sorted(types)


def _view(row: Row) -> EventView:
    return EventView(row["sequence"], row["type"], row["stage_id"], row["data"], row["occurred_at"])
