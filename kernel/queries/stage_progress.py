"""Reads how far the stages of one run are, as their bodies said last."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from tenancy import Row, TenantTransaction, load_sql

SQL: Final = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """What the body of a stage said last in its present attempt; `fraction` from 0 to 1."""

    stage_id: str
    attempt: int
    fraction: float
    message: str
    reported_at: datetime


async def stage_progress(tx: TenantTransaction, run_id: UUID) -> list[StageProgress]:
    """Return the progress of the stages that run, wait or ended before they were done, in definition order.

    A stage whose body said nothing since its attempt began is not among them; none for an unknown run.
    """
    return [_progress(row) for row in await tx.fetch_all(SQL["latest"], run_id=run_id)]


def _progress(row: Row) -> StageProgress:
    said = json.loads(row["payload"])
    return StageProgress(
        row["stage_id"], row["attempt"], float(said["fraction"]), said.get("message") or "", row["occurred_at"]
    )
