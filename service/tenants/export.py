"""The export of a tenant: every row it owns as JSON Lines, without secrets."""

from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import UUID

from service.tenants import records
from tenancy import Database, Row, load_sql

SQL = load_sql(__file__)
PAGE = 100
_FIRST = UUID(int=0)
_PER_TENANT: Final = (
    "export_limits",
    "export_api_keys",
    "export_console_sessions",
    "export_definitions",
    "export_audit_log",
)
_PER_RUN: Final = (
    "export_runs",
    "export_tags",
    "export_stages",
    "export_jobs",
    "export_steps",
    "export_events",
    "export_logs",
    "export_annotations",
    "export_spans",
    "export_idempotency_keys",
)


async def export_tenant(database: Database, tenant_id: UUID) -> AsyncIterator[tuple[str, object]]:
    """Yield `(table, row)`: the tenant's own row as a dictionary, then every other row as JSON text.

    Each page of runs with all that belongs to them is read in one transaction; no transaction stays open between pages,
    so a run that changes meanwhile is exported as it is when its page is read.

    Raises:
        TenantNotFoundError: there is none of this id.
    """
    yield "tenants", await records.get_tenant(database, tenant_id)
    async with database.transaction(tenant_id) as tx:
        batches = await tx.fetch_batch([(SQL[name], {}) for name in _PER_TENANT])
    for row in (row for batch in batches for row in batch):
        yield row["kind"], row["line"]
    after = _FIRST
    while True:
        async with database.transaction(tenant_id) as tx:
            run_ids = [run["run_id"] for run in await tx.fetch_all(SQL["run_page"], after=after, limit=PAGE)]
            batches = await tx.fetch_batch([(SQL[name], {"run_ids": run_ids}) for name in _PER_RUN]) if run_ids else []
        for row in (row for batch in batches for row in batch):
            yield row["kind"], row["line"]
        async for row in _blobs(database, tenant_id, run_ids):
            yield row["kind"], row["line"]
        if len(run_ids) < PAGE:
            return
        after = run_ids[-1]


async def _blobs(database: Database, tenant_id: UUID, run_ids: Sequence[UUID]) -> AsyncIterator[Row]:
    """Yield the large payloads of runs, one in memory at a time; what was purged meanwhile is left out."""
    if not run_ids:
        return
    async with database.transaction(tenant_id) as tx:
        keys = await tx.fetch_all(SQL["blobs_of_runs"], run_ids=run_ids)
    for key in keys:
        async with database.transaction(tenant_id) as tx:
            row = await tx.fetch_one(SQL["export_blob"], **key)
        if row is not None:
            yield row
