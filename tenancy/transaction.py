"""What the kernel sees of a database: one open transaction bound to one tenant, whoever owns it and whatever drives it.

The adapters here run on a caller's connection. They never begin or end anything, and serialise the statements of
concurrent tasks, because a connection takes one at a time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast
from uuid import UUID

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from tenancy.sql import Statement

Row = Mapping[str, Any]
Call = tuple[Statement, Mapping[str, object]]


class RoleTransaction(Protocol):
    """An open transaction of one of our roles. Rows come as mappings with plain UUIDs and aware datetimes."""

    async def fetch_all(self, statement: Statement, **params: object) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    async def fetch_one(self, statement: Statement, **params: object) -> Row | None:
        """Run a statement and return its first row, if there is one."""
        ...

    async def execute(self, statement: Statement, **params: object) -> int:
        """Run a statement and return how many rows it wrote."""
        ...

    async def fetch_batch(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run statements in order, each with a snapshot of its own, in one round trip where the driver can."""
        ...

    async def send(self, calls: Sequence[Call]) -> None:
        """Run statements whose rows nobody needs: in order, before any later statement and before COMMIT.

        They may be held back until then, and their errors come then.
        """
        ...


class TenantTransaction(RoleTransaction, Protocol):
    """An open transaction bound to one tenant; statements that name `:tenant_id` are given it."""

    @property
    def tenant_id(self) -> UUID:
        """The tenant that the transaction is bound to."""
        ...


class Adapter:
    """What all adapters share: the lock, the tenant's parameter and the calls made of others."""

    def __init__(self, tenant_id: UUID | None) -> None:
        self._tenant_id = tenant_id
        self._lock = asyncio.Lock()

    @property
    def tenant_id(self) -> UUID:
        """The tenant that the transaction is bound to."""
        assert self._tenant_id is not None, "a role's transaction has no tenant"
        return self._tenant_id

    async def fetch_all(self, statement: Statement, **params: object) -> list[Row]:
        """Run a statement and return its rows."""
        (rows,) = await self.fetch_batch([(statement, params)])
        return rows

    async def fetch_one(self, statement: Statement, **params: object) -> Row | None:
        """Run a statement and return its first row, if there is one."""
        rows = await self.fetch_all(statement, **params)
        return rows[0] if rows else None

    async def execute(self, statement: Statement, **params: object) -> int:
        """Run a statement and return how many rows it wrote."""
        async with self._lock:
            return await self._execute(statement, self._bound(statement, params))

    async def fetch_batch(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run statements in order, one after the other."""
        async with self._lock:
            return [await self._fetch(statement, self._bound(statement, params)) for statement, params in calls]

    async def send(self, calls: Sequence[Call]) -> None:
        """Run statements at once: on a caller's connection nothing is held back."""
        async with self._lock:
            for statement, params in calls:
                await self._execute(statement, self._bound(statement, params))

    def _bound(self, statement: Statement, params: Mapping[str, object]) -> dict[str, object]:
        if self._tenant_id is not None and "tenant_id" in statement.parameters:
            return {**params, "tenant_id": self._tenant_id}
        return dict(params)

    async def _fetch(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        raise NotImplementedError

    async def _execute(self, statement: Statement, params: dict[str, object]) -> int:
        raise NotImplementedError


class PsycopgAdapter(Adapter):
    """On a caller's psycopg connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], tenant_id: UUID | None) -> None:
        super().__init__(tenant_id)
        self._connection = connection

    async def _fetch(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement.pyformat.encode(), params)
            return await rows_of(cursor)

    async def _execute(self, statement: Statement, params: dict[str, object]) -> int:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement.pyformat.encode(), params)
            return max(cursor.rowcount, 0)


class AsyncpgAdapter(Adapter):
    """On a raw asyncpg connection, the API's or a caller's."""

    def __init__(self, connection: "asyncpg.Connection[Any]", tenant_id: UUID | None) -> None:
        super().__init__(tenant_id)
        self._connection = connection

    async def _fetch(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        records = await self._connection.fetch(statement.numbered, *statement.arguments(params))
        return [plain(record) for record in records]

    async def _execute(self, statement: Statement, params: dict[str, object]) -> int:
        status = await self._connection.execute(statement.numbered, *statement.arguments(params))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0


class SqlAlchemyAdapter(Adapter):
    """On a caller's SQLAlchemy connection or session, with either driver.

    Begins it if nothing was sent yet, as any use of it does.
    """

    def __init__(self, connection: AsyncConnection | AsyncSession, tenant_id: UUID | None) -> None:
        super().__init__(tenant_id)
        self._source = connection

    async def connection(self) -> AsyncConnection:
        """Return the connection that carries the caller's transaction."""
        return await self._source.connection() if isinstance(self._source, AsyncSession) else self._source

    async def _fetch(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        result = await self._run(statement, params)
        return [plain(row) for row in result.mappings()] if result.returns_rows else []

    async def _execute(self, statement: Statement, params: dict[str, object]) -> int:
        result = await self._run(statement, params)
        return max(int(result.rowcount), 0)

    async def _run(self, statement: Statement, params: dict[str, object]) -> Any:
        connection = await self.connection()
        if connection.dialect.driver == "asyncpg":
            return await connection.exec_driver_sql(statement.numbered, tuple(statement.arguments(params)))
        return await connection.exec_driver_sql(statement.pyformat, params)


async def rows_of(cursor: psycopg.AsyncCursor[dict[str, Any]]) -> list[Row]:
    """Return what a psycopg cursor fetched, times in UTC whatever the zone of the session."""
    if not cursor.description:
        return []
    rows = await cursor.fetchall()
    if cursor.connection.pgconn.parameter_status(b"TimeZone") in _UTC:
        return list(rows)
    return [{name: _utc(value) for name, value in row.items()} for row in rows]


def plain(row: Mapping[str, Any]) -> Row:
    """Return a row with the standard library's UUIDs.

    Asyncpg has a subclass of its own, which serialisers stumble over.
    """
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    if isinstance(value, UUID) and type(value) is not UUID:
        return UUID(int=value.int)
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[object]", value)]
    return _utc(value)


def _utc(value: object) -> object:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo not in (None, UTC) else value


_UTC = (b"UTC", b"Etc/UTC", b"GMT")
