"""Reads the payloads of a run's stages: what each made, and what the next were given."""

from collections.abc import Mapping
from uuid import UUID

from kernel.blobs import POSTGRES_BLOBS, BlobStore, with_contents
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


async def stage_outputs(
    tx: TenantTransaction, run_id: UUID, *, up_to_group: int, blobs: BlobStore = POSTGRES_BLOBS
) -> Mapping[str, str | None]:
    """Return the outputs (JSON text) of the completed stages up to a group, by stage id; None for one that is lost.

    Raises:
        RunNotFoundError: the run was purged between two statements.
    """
    rows = await tx.fetch_all(SQL["outputs"], run_id=run_id, up_to_group=up_to_group)
    rows = await with_contents(blobs, tx, rows, "output")
    return {row["stage_id"]: row["output"] for row in rows}
