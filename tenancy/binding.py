"""Binds a caller's own transaction to a tenant, and refuses what would not be isolated.

The caller's role stays: its own tables need it. Everything is read back in a later statement, because outside a
transaction a transaction-local setting is gone again by then, and because a product may name its tenants in a way of
its own: what counts is the tenant that the policies see.
"""

from uuid import UUID

from tenancy.callers import SQL, CallerConnection, CallersTransaction, adapter_of, refuse_other
from tenancy.database import checked_tenant, refuse_unsafe
from tenancy.errors import NoTransactionError, TenantMismatchError, UnsafeRoleError
from tenancy.transaction import TenantTransaction


async def bind(connection: CallerConnection, tenant_id: UUID) -> TenantTransaction:
    """Bind a caller's open transaction to a tenant, for this transaction only.

    Takes a SQLAlchemy AsyncConnection or AsyncSession (asyncpg or psycopg), an asyncpg.Connection or a
    psycopg.AsyncConnection. On
    SQLAlchemy, and on psycopg without autocommit, this may be the statement that begins the transaction.

    Raises:
        ValueError: `tenant_id` is no UUID.
        NoTransactionError: no transaction is open, or each statement would be its own.
        TenantMismatchError: another tenant is bound already, in the product's own way too.
        UnsafeRoleError: the current role is a superuser, has BYPASSRLS, owns the tables or inherits the scheduler or
            the operator; or it does not inherit `tenantry_tenant`.
        TransactionAbortedError: a statement of the transaction failed before.
    """
    tenant = checked_tenant(tenant_id)
    adapter = await adapter_of(connection, tenant)
    setting = await _standing(adapter)
    seen = await _seen(adapter)
    if seen is not None:
        refuse_other(seen, tenant)
    if setting is None:
        await adapter.fetch_all(SQL["bind_tenant"], tenant=str(tenant))
        if await _standing(adapter) is None:
            raise NoTransactionError("the tenant did not outlast its statement: no transaction is open")
        seen = await _seen(adapter)
    refuse_other(seen, tenant)
    adapter.keep()
    return adapter


async def adopt(connection: CallerConnection, tenant_id: UUID) -> TenantTransaction:
    """Check that a caller's transaction is bound to this tenant already, and change nothing.

    Raises:
        ValueError: `tenant_id` is no UUID.
        NoTransactionError: no transaction is open.
        TenantMismatchError: another tenant is bound, or none.
        UnsafeRoleError: the current role is not subject to the policies, or may not work under them.
        TransactionAbortedError: a statement of the transaction failed before.
    """
    tenant = checked_tenant(tenant_id)
    adapter = await adapter_of(connection, tenant)
    await _standing(adapter)
    # A product may name the tenant in a way of its own, in its version of `tenantry.current_tenant_id()`.
    refuse_other(await _seen(adapter), tenant)
    adapter.keep()
    return adapter


async def _standing(adapter: CallersTransaction) -> UUID | None:
    """Return the tenant that the engine's own setting names, having checked the role and that it names one at all.

    Reads the system's catalogs only: whatever the role may not do, the transaction survives being told so.
    """
    row = await adapter.fetch_one(SQL["standing"])
    assert row is not None
    if row["inherited"] and not (row["is_superuser"] or row["bypasses_rls"] or row["owns_tables"]):
        wide = ", ".join(row["inherited"])
        raise UnsafeRoleError(f"role {row['role']} inherits {wide}, which sees all tenants: revoke it from the role")
    refuse_unsafe(row)
    if not row["may_work"]:
        raise UnsafeRoleError(f"role {row['role']} is no inheriting member of tenantry_tenant: grant it that role")
    if row["tenant"] is None:
        return None
    try:
        return UUID(row["tenant"])
    except ValueError:
        raise TenantMismatchError("the setting tenantry.tenant_id holds no UUID") from None


async def _seen(adapter: CallersTransaction) -> UUID | None:
    row = await adapter.fetch_one(SQL["bound"])
    assert row is not None
    tenant: UUID | None = row["tenant"]
    return tenant
