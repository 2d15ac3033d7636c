"""`due.promote`: what came due is marked ready, so that claims need no due-check and the waiting index stays short."""

from dataclasses import dataclass
from typing import ClassVar

from kernel.command import Command, Scope, handles
from tenancy import Call, TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class DuePromoted:
    """How many runs and jobs were made ready."""

    runs: int
    jobs: int


@dataclass(frozen=True, slots=True)
class DuePromote(Command[DuePromoted]):
    """Make up to 500 runs and 500 jobs of this tenant ready that came due. Never waits for a row."""

    name: ClassVar[str] = "due.promote"


@handles(DuePromote)
async def due_promote(_command: DuePromote, tx: TenantTransaction, _scope: Scope) -> DuePromoted:
    """Run the two statements."""
    runs, jobs = await tx.fetch_batch(promotions())
    return DuePromoted(len(runs), len(jobs))


def promotions() -> list[Call]:
    """Return the calls that make ready what came due: runs, then jobs."""
    return [(SQL["promote_runs"], {}), (SQL["promote_jobs"], {})]
