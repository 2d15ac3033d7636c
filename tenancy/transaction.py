"""What the kernel sees of a database: one open transaction bound to one tenant, whoever owns and drives it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast
from uuid import UUID

from psycopg.pq.abc import PGconn

from tenancy.sql import Statement

logger = logging.getLogger(__name__)
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

    async def confirm(self, *, writes: bool) -> None:
        """Refuse to go on in a transaction that is not the one that was bound, or not the tenant's any more.

        Asked before each command, because between two of them a caller may do anything with its connection. Costs a
        statement there, and nothing on a transaction of our own. What it refuses stays usable for the caller.

        Raises:
            NoTransactionError: the transaction is over, or its connection closed.
            TenantMismatchError: another tenant is bound by now, or none.
            ReadOnlyTransactionError: it `writes`, and the transaction is read only.
            TransactionAbortedError: a statement failed; only ROLLBACK is left.
        """
        ...

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Call `tell` once what was done so far is committed, never when it is not; at once where it is already.

        A COMMIT whose reply was lost counts as none. A caller's transaction ends out of our sight, but for
        SQLAlchemy's: elsewhere `tell` is called at once, whatever becomes of the transaction.
        """
        ...


class Adapter:
    """What all adapters share: the lock, the tenant's parameter and the calls made of others."""

    def __init__(self, tenant_id: UUID | None, lock: asyncio.Lock | None = None) -> None:
        self._tenant_id = tenant_id
        self._lock = lock or asyncio.Lock()

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

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Call `tell` at once: the end of this transaction is out of sight."""
        tell()

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


def tell_all(waiting: Iterable[Callable[[], None]]) -> None:
    """Tell what a commit was waited for with; what goes wrong there is no failure of what is written."""
    for tell in waiting:
        try:
            tell()
        except Exception:
            logger.exception("after_commit_failed")


def in_utc(rows: Sequence[Row], pgconn: PGconn) -> list[Row]:
    """Return the rows that psycopg read on a connection, with times in UTC whatever the zone of its session."""
    if pgconn.parameter_status(b"TimeZone") in _UTC:
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
