"""Reads what the bodies of one run logged."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
OLDEST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class LogView:
    """One line; `fields` is JSON text."""

    log_id: UUID
    stage_id: str
    attempt: int
    level: str
    message: str
    fields: str
    created_at: datetime


async def run_logs(
    tx: TenantTransaction, run_id: UUID, *, after: UUID = OLDEST, limit: int, stage_id: str | None = None
) -> list[LogView]:
    """Return up to `limit` lines behind the line `after`, oldest first; none for an unknown run.

    With `stage_id`, only lines of that stage.
    """
    rows = await tx.fetch_all(SQL["page"], run_id=run_id, after=after, limit=limit, stage_id=stage_id)
    return [_view(row) for row in rows]


async def run_last_logs(
    tx: TenantTransaction, run_id: UUID, *, limit: int, stage_id: str | None = None
) -> list[LogView]:
    """Return the last lines, up to `limit` of them, oldest first; those of one stage where it is named."""
    rows = await tx.fetch_all(SQL["last"], run_id=run_id, limit=limit, stage_id=stage_id)
    return [_view(row) for row in reversed(rows)]


def _view(row: Row) -> LogView:
    return LogView(
        log_id=row["log_id"],
        stage_id=row["stage_id"],
        attempt=row["attempt"],
        level=row["level"],
        message=row["message"],
        fields=row["fields"],
        created_at=row["created_at"],
    )
