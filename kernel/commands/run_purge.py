"""`run.purge`: terminal runs older than an instant go, with everything that belongs to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from kernel.command import Command, Scope, handles
from kernel.errors import FieldError, InvalidRequestError
from kernel.states import TERMINAL_RUN_STATUSES
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
CHILDREN = (
    "delete_events", "delete_stages", "delete_steps", "delete_jobs", "delete_tags", "delete_logs", "delete_annotations",
    "delete_spans", "delete_blobs", "delete_keys",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunsPurged:
    """The runs that are gone."""

    run_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class RunPurge(Command[RunsPurged]):
    """Delete up to `limit` runs that ended before `older_than` (aware). Never waits for a run that somebody holds.

    Raises:
        InvalidRequestError: a status that is not terminal, or a naive instant.
    """

    name: ClassVar[str] = "run.purge"
    older_than: datetime
    statuses: Sequence[str] = tuple(sorted(TERMINAL_RUN_STATUSES))
    limit: int = 100


@handles(RunPurge)
async def run_purge(command: RunPurge, tx: TenantTransaction, _scope: Scope) -> RunsPurged:
    """Lock the runs, delete their children, then the runs."""
    if command.older_than.utcoffset() is None:
        raise InvalidRequestError([FieldError("/older_than", "naive_datetime", "must carry an offset from UTC")])
    if not set(command.statuses) <= TERMINAL_RUN_STATUSES:
        raise InvalidRequestError([FieldError("/statuses", "not_terminal", "must be terminal statuses")])
    rows = await tx.fetch_all(
        SQL["lock_old"], older_than=command.older_than, statuses=[*map(str, command.statuses)], limit=command.limit
    )
    run_ids = [row["run_id"] for row in rows]
    if run_ids:
        await delete_runs(tx, run_ids)
    return RunsPurged(tuple(run_ids))


async def delete_runs(tx: TenantTransaction, run_ids: Sequence[UUID]) -> None:
    """Delete runs whose locks this transaction holds, with everything that belongs to them."""
    await tx.send([(SQL[name], {"run_ids": list(run_ids)}) for name in (*CHILDREN, "delete_runs")])
