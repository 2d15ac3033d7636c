"""A caller's own connection as a transaction of the kernel's: SQLAlchemy, asyncpg or psycopg.

Nothing is begun or ended here. The statements of concurrent tasks are serialised per connection, however often it was
bound, because a connection takes one at a time. What a driver raises becomes an error of ours, but for serialization
failures and deadlocks: they are the owner's to see, as they are.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

import asyncpg
import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy import PoolProxiedConnection
from sqlalchemy.exc import PendingRollbackError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from tenancy.aftermath import aftermath_of
from tenancy.errors import (
    REPEATABLE_STATES,
    DatabaseUnavailableError,
    NoTransactionError,
    ReadOnlyTransactionError,
    StatementFailedError,
    TenancyError,
    TenantMismatchError,
    TransactionAbortedError,
    sqlstate_of,
)
from tenancy.owned import AWAY_STATES
from tenancy.sql import Statement, load_file
from tenancy.transaction import Adapter, Row, in_utc, plain

CallerConnection: TypeAlias = (
    AsyncConnection
    | AsyncSession
    | async_scoped_session[AsyncSession]
    | psycopg.AsyncConnection[Any]
    | asyncpg.Connection
)
SQL = load_file(Path(__file__).with_name("binding.sql"))
ABORTED_STATE = "25P02"
CLOSED = "the connection is closed"
_DRIVER_ERRORS = (
    psycopg.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    SQLAlchemyError,
    OSError,
)
# One lock a connection: whoever bound it twice must not send two statements at once either.
_locks: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
T = TypeVar("T")


def lock_of(line: object) -> asyncio.Lock:
    """Return the lock of a driver's connection, the same one for everybody who asks."""
    return _locks.setdefault(line, asyncio.Lock())


class CallersTransaction(Adapter):
    """What the adapters share: the check before each statement, and the errors."""

    def __init__(self, line: object, tenant_id: UUID | None) -> None:
        super().__init__(tenant_id, lock_of(line))
        self._is_bound = False

    def keep(self) -> None:
        """Note that the transaction is bound: from now on it has to be the one that is open."""
        self._is_bound = True

    async def confirm(self, *, writes: bool) -> None:
        """Look whether the transaction is still the tenant's; see `TenantTransaction`."""
        row = await self.fetch_one(SQL["bound"])
        assert row is not None
        refuse_other(row["tenant"], self.tenant_id)
        if writes and row["is_read_only"]:
            raise ReadOnlyTransactionError("the transaction is read only")

    async def _fetch(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        self._check()
        try:
            return await self._fetch_on(statement, params)
        except _DRIVER_ERRORS as error:
            raise self._refusal(error) from error

    async def _execute(self, statement: Statement, params: dict[str, object]) -> int:
        self._check()
        try:
            return await self._execute_on(statement, params)
        except _DRIVER_ERRORS as error:
            raise self._refusal(error) from error

    def _check(self) -> None:
        """Refuse, without asking the server, a connection on which the bound transaction cannot be open."""
        if self._is_closed():
            raise NoTransactionError(CLOSED)
        if self._is_bound and not self._is_in_transaction():
            raise NoTransactionError("the transaction that was bound is over")

    def _refusal(self, error: Exception) -> Exception:
        state = sqlstate_of(error)
        if state in REPEATABLE_STATES:
            return error
        if state == ABORTED_STATE or isinstance(error, PendingRollbackError):
            return TransactionAbortedError("a statement of the transaction failed before: roll it back")
        # asyncpg's own state has failed when the server's last word was heard and the end of its line was not yet.
        if state in AWAY_STATES or isinstance(error, asyncpg.InternalClientError) or self._is_closed():
            return DatabaseUnavailableError("the connection broke: nothing of its transaction is kept")
        return StatementFailedError(state)

    def _is_closed(self) -> bool:
        raise NotImplementedError

    def _is_in_transaction(self) -> bool:
        raise NotImplementedError

    async def _fetch_on(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        raise NotImplementedError

    async def _execute_on(self, statement: Statement, params: dict[str, object]) -> int:
        raise NotImplementedError


class PsycopgAdapter(CallersTransaction):
    """On a caller's psycopg connection, in a pipeline of the caller's too."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], tenant_id: UUID | None) -> None:
        super().__init__(connection, tenant_id)
        self._connection = connection

    def _is_closed(self) -> bool:
        return self._connection.closed

    def _is_in_transaction(self) -> bool:
        return self._connection.info.transaction_status is not TransactionStatus.IDLE

    async def _fetch_on(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        async with self._run(statement, params) as cursor:
            rows = await cursor.fetchall() if cursor.description else []
            return in_utc(rows, self._connection.pgconn)

    async def _execute_on(self, statement: Statement, params: dict[str, object]) -> int:
        async with self._run(statement, params) as cursor:
            return max(cursor.rowcount, 0)

    @asynccontextmanager
    async def _run(
        self, statement: Statement, params: dict[str, object]
    ) -> AsyncGenerator[psycopg.AsyncCursor[dict[str, Any]]]:
        # Not `connection.cursor()`: a caller's cursor_factory may know other parameters than ours.
        async with psycopg.AsyncCursor(self._connection, row_factory=dict_row) as cursor:
            if self._connection.pgconn.pipeline_status == PipelineStatus.OFF:
                await cursor.execute(statement.pyformat.encode(), params)
            else:
                # The end of an inner pipeline waits for the results of all that was sent.
                async with self._connection.pipeline():
                    await cursor.execute(statement.pyformat.encode(), params)
            yield cursor


class AsyncpgAdapter(CallersTransaction):
    """On a caller's asyncpg connection, a pool's included."""

    def __init__(self, connection: "asyncpg.Connection[Any]", tenant_id: UUID | None) -> None:
        super().__init__(_driven(connection), tenant_id)
        self._connection = connection

    def _is_closed(self) -> bool:
        return is_asyncpg_closed(self._connection)

    def _is_in_transaction(self) -> bool:
        return self._connection.is_in_transaction()

    async def _fetch_on(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        records = await self._connection.fetch(statement.numbered, *statement.arguments(params))
        return [plain(record) for record in records]

    async def _execute_on(self, statement: Statement, params: dict[str, object]) -> int:
        status = await self._connection.execute(statement.numbered, *statement.arguments(params))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0


class SqlAlchemyAdapter(CallersTransaction):
    """On a caller's SQLAlchemy connection, or the one that carries a session's transaction, with either driver."""

    def __init__(self, connection: AsyncConnection, line: object, tenant_id: UUID | None) -> None:
        super().__init__(line, tenant_id)
        self._connection = connection

    def _is_closed(self) -> bool:
        return self._connection.closed or self._connection.invalidated

    def _is_in_transaction(self) -> bool:
        return self._connection.in_transaction()

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Call `tell` as the caller's transaction is committed; not when it or its savepoint is rolled back."""
        aftermath_of(self._connection).add(tell)

    async def _fetch_on(self, statement: Statement, params: dict[str, object]) -> list[Row]:
        result = await self._run(statement, params)
        return [plain(row) for row in result.mappings()] if result.returns_rows else []

    async def _execute_on(self, statement: Statement, params: dict[str, object]) -> int:
        result = await self._run(statement, params)
        return max(int(result.rowcount), 0)

    async def _run(self, statement: Statement, params: dict[str, object]) -> Any:
        # A caller's connection may stream by default; our results are read at once.
        options = {"stream_results": False}
        if self._connection.dialect.driver == "asyncpg":
            arguments = tuple(statement.arguments(params))
            return await self._connection.exec_driver_sql(statement.numbered, arguments, options)
        return await self._connection.exec_driver_sql(statement.pyformat, params, options)


async def adapter_of(connection: Any, tenant_id: UUID) -> CallersTransaction:
    """Return the adapter of whatever connection a caller brings.

    Raises:
        NoTransactionError: the connection is closed, in autocommit or, where that can be told, without a transaction.
        TypeError: it is no connection that is known here.
    """
    connection = _unscoped(connection)
    kind = cast("type[object]", type(connection))
    if issubclass(kind, AsyncConnection | AsyncSession):
        return await _of_sqlalchemy(connection, tenant_id)
    if issubclass(kind, psycopg.AsyncConnection):
        _check_psycopg(connection)
        return PsycopgAdapter(connection, tenant_id)
    if _is_asyncpg(connection):
        if is_asyncpg_closed(connection):
            raise NoTransactionError(CLOSED)
        if not connection.is_in_transaction():
            raise NoTransactionError("no transaction is open on the connection")
        return AsyncpgAdapter(connection, tenant_id)
    message = f"a {type(connection).__name__} carries no transaction that can be bound"
    raise TypeError(message)


def _unscoped(connection: Any) -> Any:
    """Return the session of the moment for one that is looked up by its scope."""
    kind = cast("type[object]", type(connection))
    return connection() if issubclass(kind, async_scoped_session) else connection


def _is_asyncpg(connection: object) -> bool:
    # The class answers for the proxies of its pools too, but only to isinstance.
    return isinstance(connection, asyncpg.Connection)


@asynccontextmanager
async def turn(connection: CallerConnection) -> AsyncGenerator[None]:
    """Have a connection to oneself, for one's own statements while steps that share it may be writing theirs.

    Only a raw asyncpg connection needs it: the others let concurrent statements wait by themselves. No step and no
    command may be asked for inside.
    """
    connection = _unscoped(connection)
    line: object = connection
    if isinstance(connection, AsyncConnection | AsyncSession):
        line = (await _raw(await _carrier(connection))).driver_connection
    elif _is_asyncpg(connection):
        line = _driven(cast("asyncpg.Connection[Any]", connection))
    async with lock_of(line):
        yield


async def _of_sqlalchemy(source: AsyncConnection | AsyncSession, tenant_id: UUID) -> CallersTransaction:
    try:
        carrier = await _carrier(source)
        if carrier.closed:
            raise NoTransactionError(CLOSED)
        raw = await _raw(carrier)
    except SQLAlchemyError as error:
        raise _unusable(error) from error
    # Both dialects' connections say so themselves; asking SQLAlchemy would ask the server.
    if getattr(raw.dbapi_connection, "autocommit", False):
        raise NoTransactionError("the connection is in autocommit: each statement would be its own transaction")
    return SqlAlchemyAdapter(carrier, raw.driver_connection, tenant_id)


async def _carrier(source: AsyncConnection | AsyncSession) -> AsyncConnection:
    return await source.connection() if isinstance(source, AsyncSession) else source


async def _raw(connection: AsyncConnection) -> PoolProxiedConnection:
    return await connection.get_raw_connection()


def _unusable(error: SQLAlchemyError) -> TenancyError:
    if isinstance(error, PendingRollbackError):
        return TransactionAbortedError("a statement of the transaction failed before: roll it back")
    if sqlstate_of(error) in AWAY_STATES or getattr(error, "connection_invalidated", False):
        return DatabaseUnavailableError("the database cannot be reached")
    return NoTransactionError("the connection or session is closed, or was never opened")


def _check_psycopg(connection: psycopg.AsyncConnection[Any]) -> None:
    if connection.closed:
        raise NoTransactionError(CLOSED)
    is_piped = connection.pgconn.pipeline_status != PipelineStatus.OFF
    # In a pipeline the server has not been heard yet: what was sent may have begun a transaction.
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE and not is_piped:
        raise NoTransactionError("the connection is in autocommit and no transaction is open on it")


def is_asyncpg_closed(connection: "asyncpg.Connection[Any]") -> bool:
    """Whether a connection is closed, or went back to the pool that it came from."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def _driven(connection: "asyncpg.Connection[Any]") -> object:
    """Return the connection behind the proxy that a pool hands out, a new one each time."""
    return getattr(connection, "_con", None) or connection


def refuse_other(bound: UUID | None, tenant_id: UUID) -> None:
    """Refuse a transaction whose policies see another tenant, or none.

    Raises:
        TenantMismatchError: they do; neither id is told.
    """
    if bound is None:
        raise TenantMismatchError("no tenant is bound to the transaction")
    if bound != tenant_id:
        raise TenantMismatchError("the transaction is bound to another tenant")
