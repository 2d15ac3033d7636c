"""Binds a caller's own transaction to a tenant, and refuses what would not be isolated.

The caller's role stays: its own tables need it. Everything is read back in a second statement, because outside a
transaction a transaction-local setting is gone again by then.
"""

from typing import Any, TypeAlias, cast
from uuid import UUID

import asyncpg
import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from tenancy.database import SQL, refuse_unsafe
from tenancy.errors import NoTransactionError, TenantMismatchError
from tenancy.transaction import Adapter, AsyncpgAdapter, PsycopgAdapter, SqlAlchemyAdapter, TenantTransaction

CallerConnection: TypeAlias = AsyncConnection | AsyncSession | psycopg.AsyncConnection[Any] | asyncpg.Connection


async def bind(connection: CallerConnection, tenant_id: UUID) -> TenantTransaction:
    """Bind a caller's open transaction to a tenant, for this transaction only.

    Takes a SQLAlchemy AsyncConnection or AsyncSession (asyncpg or psycopg), an asyncpg.Connection or a
    psycopg.AsyncConnection. On
    SQLAlchemy, and on psycopg without autocommit, this may be the statement that begins the transaction.

    Raises:
        ValueError: `tenant_id` is no UUID.
        NoTransactionError: no transaction is open, or each statement would be its own.
        TenantMismatchError: another tenant is bound already.
        UnsafeRoleError: the current role is a superuser, has BYPASSRLS, owns the tables or inherits the scheduler or
            the operator.
    """
    tenant = _checked(tenant_id)
    adapter = await _adapter(connection, tenant)
    bound = await _standing(adapter)
    if bound is not None and bound != tenant:
        raise TenantMismatchError("the transaction is bound to another tenant")
    await adapter.fetch_all(SQL["bind_tenant"], tenant=str(tenant))
    if await _standing(adapter) != tenant:
        raise NoTransactionError("the tenant did not outlast its statement: no transaction is open")
    return adapter


async def adopt(connection: CallerConnection, tenant_id: UUID) -> TenantTransaction:
    """Check that a caller's transaction is bound to this tenant already, and change nothing.

    Raises:
        ValueError: `tenant_id` is no UUID.
        NoTransactionError: no transaction is open.
        TenantMismatchError: another tenant is bound, or none.
        UnsafeRoleError: the current role is not subject to the policies.
    """
    tenant = _checked(tenant_id)
    adapter = await _adapter(connection, tenant)
    bound = await _standing(adapter)
    if bound is None:
        # A product may name the tenant in a way of its own, in its version of `tenantry.current_tenant_id()`.
        named = await adapter.fetch_one(SQL["named"])
        bound = named["tenant"] if named is not None else None
    if bound != tenant:
        raise TenantMismatchError(
            "no tenant is bound to the transaction" if bound is None else "the transaction is bound to another tenant"
        )
    return adapter


def _checked(tenant_id: object) -> UUID:
    if isinstance(tenant_id, UUID):
        return UUID(int=tenant_id.int)
    if isinstance(tenant_id, str):
        return UUID(tenant_id)
    raise ValueError("tenant_id must be a UUID")


async def _standing(adapter: Adapter) -> UUID | None:
    row = await adapter.fetch_one(SQL["standing"])
    assert row is not None
    refuse_unsafe(row)
    return UUID(row["tenant"]) if row["tenant"] else None


async def _adapter(connection: Any, tenant_id: UUID) -> Adapter:
    kind = cast("type[object]", type(connection))
    if issubclass(kind, AsyncConnection | AsyncSession):
        adapter = SqlAlchemyAdapter(connection, tenant_id)
        carrier = await adapter.connection()
        if carrier.closed:
            raise NoTransactionError("the connection is closed")
        if _is_autocommit(await carrier.get_raw_connection()):
            raise NoTransactionError("the connection is in autocommit: each statement would be its own transaction")
        return adapter
    if issubclass(kind, psycopg.AsyncConnection):
        _check_psycopg(connection)
        return PsycopgAdapter(connection, tenant_id)
    if issubclass(kind, asyncpg.Connection):
        if connection.is_closed():
            raise NoTransactionError("the connection is closed")
        if not connection.is_in_transaction():
            raise NoTransactionError("no transaction is open on the connection")
        return AsyncpgAdapter(connection, tenant_id)
    message = f"a {type(connection).__name__} carries no transaction that can be bound"
    raise TypeError(message)


def _is_autocommit(fairy: PoolProxiedConnection) -> bool:
    # Both dialects' connections say so themselves; asking SQLAlchemy would ask the server.
    return bool(getattr(fairy.dbapi_connection, "autocommit", False))


def _check_psycopg(connection: psycopg.AsyncConnection[Any]) -> None:
    if connection.closed:
        raise NoTransactionError("the connection is closed")
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise NoTransactionError("the connection is in autocommit and no transaction is open on it")
