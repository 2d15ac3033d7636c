"""Reads what the stages of some runs are at: for lists, which cannot read each run whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from kernel.queries.run_get import WaitView, wait_of
from kernel.states import StageStatus
from tenancy import TenantTransaction, load_sql

SQL: Final = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class ActiveStage:
    """A stage that is not over; `attempt` is 0 before its first execution."""

    stage_id: str
    status: StageStatus
    attempt: int
    waiting_for: WaitView | None


async def stage_active(tx: TenantTransaction, run_ids: Sequence[UUID], *, limit: int) -> dict[UUID, list[ActiveStage]]:
    """Return the first `limit` active stages of each run, in definition order; nothing of a run that has none."""
    found: dict[UUID, list[ActiveStage]] = {}
    if not run_ids:
        return found
    for row in await tx.fetch_all(SQL["active"], run_ids=list(run_ids), limit=limit):
        status = StageStatus(row["status"])
        wait = wait_of(row["waiting_for"]) if status is StageStatus.SUSPENDED else None
        found.setdefault(row["run_id"], []).append(ActiveStage(row["stage_id"], status, row["attempt"], wait))
    return found
