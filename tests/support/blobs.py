"""Whether payloads and references match: nothing kept that nobody refers to, nothing referred to that is not kept."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from kernel import BlobKey, PostgresBlobs, RunPurge
from tenancy import TenantTransaction
from tests.support.workflows import HandWorker

UNMATCHED = """
with referring as (
  select run_id, input_digest as digest from tenantry.workflow_runs
  where tenant_id = %(tenant_id)s and input is null
  union
  select run_id, config_digest from tenantry.workflow_runs
  where tenant_id = %(tenant_id)s and config is null
  union
  select run_id, output_digest from tenantry.workflow_runs
  where tenant_id = %(tenant_id)s and status = 'COMPLETED' and output is null
  union
  select run_id, output_digest from tenantry.workflow_stages
  where tenant_id = %(tenant_id)s and status = 'COMPLETED' and output is null
  union
  select run_id, result_digest from tenantry.workflow_steps
  where tenant_id = %(tenant_id)s and status = 'completed' and result is null
    and (kind <> 'sleep' or result_digest is not null)
), kept as (
  select run_id, digest from tenantry.workflow_blobs where tenant_id = %(tenant_id)s
)
select referring.run_id, encode(referring.digest, 'hex') as digest, 'is not kept' as fault
from referring
where not exists (select from kept where kept.run_id = referring.run_id and kept.digest = referring.digest)
union all
select kept.run_id, encode(kept.digest, 'hex'), 'is not referred to'
from kept
left join tenantry.workflow_runs as run on run.tenant_id = %(tenant_id)s and run.run_id = kept.run_id
-- What a redrive has superseded stays until its run goes.
where coalesce(run.redrive_count, 0) = 0
  and not exists (select from referring where referring.run_id = kept.run_id and referring.digest = kept.digest)
"""


async def unmatched(superuser: AsyncConnection, tenant_id: UUID) -> list[tuple[UUID, str, str]]:
    """Return (run, digest, fault) of what does not match among a tenant's rows, past every policy."""
    cursor = await superuser.execute(UNMATCHED, {"tenant_id": tenant_id})
    return [(run_id, digest, fault) for run_id, digest, fault in await cursor.fetchall()]


@dataclass(frozen=True)
class PurgedMeanwhile(PostgresBlobs):
    """Has somebody else purge every run that is over, before it looks for payloads."""

    elsewhere: HandWorker = field(kw_only=True)

    async def get(self, tx: TenantTransaction, keys: Collection[BlobKey]) -> Mapping[BlobKey, str]:
        await purge_all(self.elsewhere)
        return await PostgresBlobs.get(self, tx, keys)


class Shelf:
    """A store outside of Postgres, as small as one can be."""

    inline_bytes = 10

    def __init__(self) -> None:
        self.kept: dict[tuple[UUID, BlobKey], str] = {}

    async def put(self, tx: TenantTransaction, contents: Mapping[BlobKey, str]) -> None:
        self.kept.update({(tx.tenant_id, key): content for key, content in contents.items()})

    async def get(self, tx: TenantTransaction, keys: Collection[BlobKey]) -> Mapping[BlobKey, str]:
        return {key: self.kept[tx.tenant_id, key] for key in keys if (tx.tenant_id, key) in self.kept}


async def purge_all(worker: HandWorker) -> None:
    """Purge what is over of a worker's tenant."""
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(RunPurge(datetime.now(UTC) + timedelta(days=1)), tx)


async def lose(superuser: AsyncConnection, run_id: UUID) -> list[tuple[Any, ...]]:
    """Take every payload of a run out of the store; returns what `bring_back` takes."""
    query = "delete from tenantry.workflow_blobs where run_id = %s returning tenant_id, run_id, digest, content"
    rows = await (await superuser.execute(query, (run_id,))).fetchall()
    assert rows, "it had none"
    return rows


async def bring_back(superuser: AsyncConnection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Put payloads into the store again, as from a backup."""
    query = "insert into tenantry.workflow_blobs (tenant_id, run_id, digest, content) values (%s, %s, %s, %s)"
    for row in rows:
        await superuser.execute(query, row)
