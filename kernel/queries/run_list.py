"""Reads pages of runs, newest first, by every filter that HTTP offers."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from kernel.queries.run_get import RunSummary, summary_of
from kernel.states import TERMINAL_RUN_STATUSES, RunStatus
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
NEWEST: Final = UUID(int=2**128 - 1)
# Run ids hold milliseconds since 1970, an hour of slack is taken off and put on: these bounds exclude no run.
_EARLIEST: Final = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs: in any of `statuses` (none given: all), with all of `tags`, created strictly between two instants."""

    statuses: frozenset[RunStatus] = field(default_factory=frozenset[RunStatus])
    workflow_id: str | None = None
    tags: tuple[str, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None

    def parameters(self) -> dict[str, Any]:
        """Return what every section of run_list.sql takes."""
        return {
            "workflow_id": self.workflow_id,
            "created_after": max(self.created_after or _EARLIEST, _EARLIEST),
            "created_before": min(self.created_before or _LATEST, _LATEST),
        }


async def run_list(tx: TenantTransaction, wanted: RunFilter, *, limit: int, before: UUID = NEWEST) -> list[RunSummary]:
    """Return up to `limit` runs older than `before`, newest first."""
    common = {**wanted.parameters(), "before": before, "limit": limit}
    statuses = sorted(wanted.statuses) or None
    if wanted.tags:
        tags = sorted(set(wanted.tags))
        rows = await tx.fetch_all(SQL["page_of_tags"], **common, statuses=statuses, tag=tags[0], tags=tags)
    elif statuses is not None and RunStatus.COMPLETED not in wanted.statuses:
        rows = await tx.fetch_all(SQL["page_of_open"], **common, statuses=statuses)
    else:
        rows = await tx.fetch_all(SQL["page"], **common, statuses=statuses)
    return [summary_of(row) for row in rows]


async def active_run_ids(tx: TenantTransaction, wanted: RunFilter, *, limit: int, before: UUID = NEWEST) -> list[UUID]:
    """Return the ids of up to `limit` runs of the filter that are not over, newest first."""
    statuses = (wanted.statuses or frozenset(RunStatus)) - TERMINAL_RUN_STATUSES
    return await _ids(tx, "open_ids", wanted, statuses, limit=limit, before=before)


async def over_run_ids(tx: TenantTransaction, wanted: RunFilter, *, limit: int, before: UUID = NEWEST) -> list[UUID]:
    """Return the ids of up to `limit` runs of the filter that are over, newest first."""
    statuses = (wanted.statuses or frozenset(RunStatus)) & TERMINAL_RUN_STATUSES
    section = "ids" if RunStatus.COMPLETED in statuses else "open_ids"
    return await _ids(tx, section, wanted, statuses, limit=limit, before=before)


async def _ids(  # noqa: PLR0913 - a page of a filter
    tx: TenantTransaction, section: str, wanted: RunFilter, statuses: frozenset[RunStatus], *, limit: int, before: UUID
) -> list[UUID]:
    if not statuses:
        return []
    rows = await tx.fetch_all(
        SQL[section],
        **wanted.parameters(),
        statuses=sorted(statuses),
        tags=sorted(set(wanted.tags)),
        before=before,
        limit=limit,
    )
    return [row["run_id"] for row in rows]
