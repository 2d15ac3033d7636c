"""The deletion of a tenant: marked first, then emptied page by page as that tenant, then gone."""

import logging
from typing import Final
from uuid import UUID

from service.tenants import records
from service.tenants.errors import TenantNotFoundError
from tenancy import Database, TenantTransaction, load_sql

SQL = load_sql(__file__)
PAGE = 1000
_PER_RUN: Final = (
    "delete_tags",
    "delete_stages",
    "delete_steps",
    "delete_jobs",
    "delete_events",
    "delete_logs",
    "delete_annotations",
    "delete_spans",
    "delete_blobs",
    "delete_idempotency_keys",
    "delete_runs",
)
_PER_TENANT: Final = (
    "delete_other_idempotency_keys",
    "delete_logs_left",
    "delete_spans_left",
    "delete_definitions",
    "delete_console_sessions",
    "delete_api_keys",
    "delete_audit_log",
)
_log = logging.getLogger(__name__)


async def delete_tenant(database: Database, tenant_id: UUID) -> None:
    """Delete the tenant and every row it owns; a repeat carries on where an interrupted one stopped.

    From the first commit on its keys are refused and nothing of it is claimed. A caller's transaction that created a
    run before and commits after may bring rows back, so the rows are swept once more when the tenant itself is gone.

    Raises:
        TenantNotFoundError: there is none of this id.
    """
    async with database.role_transaction(records.OPERATOR) as tx:
        tenant = await tx.fetch_one(records.SQL["lock_tenant"], tenant_id=tenant_id)
        if tenant is None:
            raise TenantNotFoundError(tenant_id)
        await tx.execute(records.SQL["set_status"], tenant_id=tenant_id, status="deleting")
    await _delete_rows(database, tenant_id)
    async with database.role_transaction(records.OPERATOR) as tx:
        await tx.execute(records.SQL["drop_limits"], tenant_id=tenant_id)
        await tx.execute(records.SQL["drop_tenant"], tenant_id=tenant_id)
    await _delete_rows(database, tenant_id)
    _log.info("tenant.deleted", extra={"tenant_id": str(tenant_id)})


async def _delete_rows(database: Database, tenant_id: UUID) -> None:
    deleted = PAGE
    while deleted == PAGE:
        async with database.transaction(tenant_id) as tx:
            deleted = await _delete_page(tx)
    async with database.transaction(tenant_id) as tx:
        for name in _PER_TENANT:
            await tx.execute(SQL[name])


async def _delete_page(tx: TenantTransaction) -> int:
    runs = await tx.fetch_all(SQL["lock_page"], limit=PAGE)
    run_ids = [run["run_id"] for run in runs]
    if run_ids:
        await tx.send([(SQL[name], {"run_ids": run_ids}) for name in _PER_RUN])
    return len(run_ids)
