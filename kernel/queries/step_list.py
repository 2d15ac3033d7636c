"""Reads the durable steps of one run, or one of them: what its stages have done, and what they wait for."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from kernel.blobs import POSTGRES_BLOBS, BlobStore, with_contents
from kernel.execution.ledger import StepKind, StepStatus
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# Where a step stands that nobody has asked for yet: a signal that was sent ahead.
NO_PLACE: Final = 2**31 - 1
# What the results of a page measure together before its last one: a server holds a page several times over.
MOST_BYTES: Final = 8 * 1024 * 1024


class StepPosition(NamedTuple):
    """Where a step stands in the list of its run."""

    created_at: datetime
    stage_id: str
    place: int
    step_id: str


FIRST: Final = StepPosition(datetime(1970, 1, 1, tzinfo=UTC), "", 0, "")


@dataclass(frozen=True, slots=True)
class StepView:
    """One step; `result` is JSON text. `seq` counts from 1 within an execution, None for a signal sent ahead.

    `is_lost`: there was a result, and its store has it no more.
    """

    stage_id: str
    step_id: str
    seq: int | None
    kind: StepKind
    status: StepStatus
    attempt: int
    external_key: str | None
    result: str | None
    error: str | None
    lease_expires_at: datetime | None
    deadline_at: datetime | None
    created_at: datetime
    completed_at: datetime | None
    is_lost: bool = False

    @property
    def position(self) -> StepPosition:
        """Return where the step stands in the list."""
        return StepPosition(self.created_at, self.stage_id, NO_PLACE if self.seq is None else self.seq, self.step_id)


class StepPage(NamedTuple):
    """Steps in their order, and whether more follow."""

    steps: list[StepView]
    has_more: bool


async def step_list(  # noqa: PLR0913 - a page, and what of it
    tx: TenantTransaction,
    run_id: UUID,
    *,
    after: StepPosition = FIRST,
    limit: int,
    of_stage_id: str | None = None,
    with_results: bool = True,
    most_bytes: int = MOST_BYTES,
    blobs: BlobStore = POSTGRES_BLOBS,
) -> StepPage:
    """Return up to `limit` steps behind the position `after`, oldest first, of one stage where it is named.

    None for an unknown run. The page ends early behind the result with which it exceeds `most_bytes`; without results,
    which are None then, it does not.

    Raises:
        RunNotFoundError: the run was purged between two statements.
    """
    rows = await tx.fetch_all(
        SQL["page"],
        run_id=run_id,
        limit=limit + 1,
        of_stage_id=of_stage_id,
        with_results=with_results,
        most_bytes=most_bytes,
        **after._asdict(),
    )
    has_more = bool(rows) and rows[0]["found"] > len(rows[:limit])
    return StepPage([_view(row) for row in await with_contents(blobs, tx, rows[:limit], "result")], has_more)


async def step_get(
    tx: TenantTransaction, run_id: UUID, stage_id: str, step_id: str, *, blobs: BlobStore = POSTGRES_BLOBS
) -> StepView | None:
    """Return one step; None when there is none.

    Raises:
        RunNotFoundError: the run was purged between two statements.
    """
    rows = await tx.fetch_all(SQL["one"], run_id=run_id, stage_id=stage_id, step_id=step_id)
    return next((_view(row) for row in await with_contents(blobs, tx, rows, "result")), None)


def _view(row: Row) -> StepView:
    return StepView(
        stage_id=row["stage_id"],
        step_id=row["step_id"],
        seq=row["seq"],
        kind=row["kind"],
        status=row["status"],
        attempt=row["attempt"],
        external_key=row["external_key"],
        result=row["result"],
        error=row["error"],
        lease_expires_at=row["lease_expires_at"],
        deadline_at=row["deadline_at"],
        created_at=row["created_at"],
        completed_at=row["completed_at"],
        is_lost="lost" in row,
    )
