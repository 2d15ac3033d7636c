"""A database as a process of ours uses it.

Transactions bound to one tenant, or to one role, and the checks at start.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Self
from uuid import UUID

from tenancy.errors import DatabaseUnavailableError, UnsafeRoleError
from tenancy.owned import OwnedTransaction
from tenancy.pools import DatabaseSettings, psycopg_pool
from tenancy.sql import Statement, load
from tenancy.transaction import Call, RoleTransaction, Row, TenantTransaction

SQL = load(str(__file__).replace("database.py", "binding.py"))
Role = Literal["tenantry_scheduler", "tenantry_operator"]
BECOME = {"tenantry_scheduler": "become_scheduler", "tenantry_operator": "become_operator"}


class Database:
    """Opens transactions; connects with the first, and again by itself when the server was away."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.settings = settings
        self._pool = psycopg_pool(settings)
        self._is_open = False
        self._is_closed = False

    async def open(self) -> None:
        """Start the pool; a server that is away is no error, each transaction tells."""
        if not self._is_open:
            self._is_open = True
            await self._pool.open(wait=False)

    async def close(self) -> None:
        """Close the pool for good; what is under way breaks, later transactions are refused as unavailable."""
        self._is_closed = True
        if self._is_open:
            await self._pool.close()
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Open."""
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close."""
        await self.close()

    @asynccontextmanager
    async def transaction(
        self, tenant_id: UUID, *, in_one_message: bool = False, foreseen: Sequence[Call] = ()
    ) -> AsyncGenerator[TenantTransaction]:
        """Open a transaction as `tenantry_tenant` bound to a tenant.

        COMMIT at the end, ROLLBACK on any error or cancellation. `in_one_message`: the first fetch is the only one and
        travels with BEGIN and COMMIT; whatever is asked for after it is refused. `foreseen` are reads that will be
        asked for: they travel with the first message.

        Raises:
            ValueError: `tenant_id` is no UUID, nor the text of one.
            DatabaseUnavailableError: the database cannot be reached; nothing was kept.
            CommitOutcomeUnknownError: the connection broke at COMMIT; ask before repeating.
        """
        tenant_id = checked_tenant(tenant_id)
        async with self._owned(tenant_id, [binding_call(tenant_id)], in_one_message=in_one_message) as tx:
            tx.foresee(foreseen)
            yield tx

    @asynccontextmanager
    async def role_transaction(self, role: Role) -> AsyncGenerator[RoleTransaction]:
        """Open a transaction as the scheduler or the operator, bound to no tenant."""
        async with self._owned(None, [(SQL[BECOME[role]], {})]) as tx:
            yield tx

    async def read_as(self, role: Role, statement: Statement, **params: object) -> list[Row]:
        """Return the rows of one statement, read as the scheduler or the operator in a transaction of its own."""
        async with self._owned(None, [(SQL[BECOME[role]], {})]) as tx:
            return await tx.last((statement, params))

    async def check_login(self) -> None:
        """Refuse a login that could read past the policies.

        Raises:
            UnsafeRoleError: it names the role and `superuser`, `BYPASSRLS`, `owner` or the role that it inherits.
        """
        row = await self._ask("login")
        if row is None:
            raise UnsafeRoleError("the login has no role")
        refuse_unsafe(row)

    async def schema_revision(self) -> str | None:
        """Return the revision of the schema, None when there is none."""
        found = await self._ask("has_schema")
        if found is None or not found["is_migrated"]:
            return None
        row = await self._ask("revision")
        return None if row is None else str(row["version_num"])

    async def _ask(self, name: str) -> Row | None:
        async with self._owned(None, []) as tx:
            return await tx.fetch_one(SQL[name])

    @asynccontextmanager
    async def _owned(
        self, tenant_id: UUID | None, opening: Sequence[Call], *, in_one_message: bool = False
    ) -> AsyncGenerator[OwnedTransaction]:
        if self._is_closed:
            raise DatabaseUnavailableError("the database was closed")
        await self.open()
        tx = OwnedTransaction(self._pool, tenant_id, opening, in_one_message=in_one_message)
        try:
            yield tx
            await tx.commit()
        except BaseException:
            # Shielded: a second cancellation must not leave the connection behind in the middle of it.
            await asyncio.shield(tx.abandon())
            raise


def checked_tenant(tenant_id: object) -> UUID:
    """Return a tenant's id as the standard library's UUID.

    Raises:
        ValueError: it is none.
    """
    if type(tenant_id) is UUID:
        return tenant_id
    if isinstance(tenant_id, UUID):
        return UUID(int=tenant_id.int)
    if isinstance(tenant_id, str):
        return UUID(tenant_id)
    raise ValueError("tenant_id must be a UUID")


def binding_call(tenant_id: UUID) -> Call:
    """Return the call that makes a transaction of ours the tenant's, for whoever drives a connection by itself."""
    return SQL["bind"], {"tenant": str(tenant_id)}


def refuse_unsafe(row: Row) -> None:
    """Refuse the role of a row of `standing` or `login` that is not subject to the policies.

    Raises:
        UnsafeRoleError: the role is a superuser, has BYPASSRLS or owns the tables, or reaches a role that does, or
            inherits one of ours that it should have to ask for.
    """
    if row["is_superuser"]:
        raise UnsafeRoleError(f"role {row['role']} is a superuser: row-level security does not bind it")
    if row["bypasses_rls"]:
        raise UnsafeRoleError(f"role {row['role']} has BYPASSRLS: row-level security does not bind it")
    if row["owns_tables"]:
        raise UnsafeRoleError(f"role {row['role']} is the owner of the tables: it could switch row-level security off")
    if row["inherited"]:
        raise UnsafeRoleError(
            f"role {row['role']} inherits {', '.join(row['inherited'])}: it must be a direct, NOINHERIT member"
        )
