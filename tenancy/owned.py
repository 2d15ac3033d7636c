"""The transaction that a `Database` owns: the only runtime code that begins or commits.

It begins with its first statement, so that a connection found dead then is replaced without anybody noticing:
nothing had been done on it. Role and tenant are set for the transaction only; plain SET would leak to the pooler's
next client. A statement that did not come back well, cancelled ones included, ends the transaction's life: whoever
swallowed its error can neither go on nor commit.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from tenancy.errors import (
    CommitOutcomeUnknownError,
    DatabaseUnavailableError,
    NoTransactionError,
    TransactionAbortedError,
)
from tenancy.message import Answer, MessageConnection
from tenancy.pools import Pool
from tenancy.sql import Statement, load
from tenancy.transaction import Adapter, Call, Row, tell_all

logger = logging.getLogger(__name__)
SQL = load(str(__file__).replace("owned.py", "binding.py"))
BEGIN: Call = (SQL["begin"], {})
COMMIT: Call = (SQL["commit"], {})
# PgBouncer's own refusals and a server that goes away or comes up look like these.
AWAY_STATES = frozenset({"57P01", "57P02", "57P03", "53300", "08P01", "25P03", "28P01", "3D000"})
ROLLBACK_S = 5.0
# A pooler whose server is away keeps its clients waiting without a word. The opening message may also carry a statement
# that waits for a lock, which a worker's lock_timeout ends after 10 s.
OPENING_S = 15.0
# A path that drops packets never says so. Longer than any COMMIT of ours takes; its outcome is then asked for.
# Statements in between may take their time.
REPLY_S = 30.0


class OwnedTransaction(Adapter):
    """On a pooled psycopg connection.

    BEGIN, binding and first statements in one message, last writes and COMMIT in one.
    """

    def __init__(
        self, pool: Pool, tenant_id: UUID | None, opening: Sequence[Call], *, in_one_message: bool = False
    ) -> None:
        super().__init__(tenant_id)
        self._opening = opening
        self._in_one_message = in_one_message
        self._is_over = False
        self._is_committed = False
        self._afterwards: list[Callable[[], None]] = []
        self._has_failed = False
        self._pool = pool
        self._has_begun = False
        self._connection: MessageConnection | None = None
        self._held: list[Call] = []
        self._foreseen: list[Call] = []
        self._answers: list[tuple[Call, list[Row]]] = []

    def foresee(self, calls: Sequence[Call]) -> None:
        """Ask for these reads with the next message: whoever wants one later in this transaction has its rows then."""
        self._foreseen += calls

    async def confirm(self, *, writes: bool) -> None:
        """Refuse a transaction that has failed or is over; nobody but us binds it, so nothing else is asked."""
        del writes
        self._check()

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Call `tell` once COMMIT has been answered; at once when it has been."""
        if self._is_committed:
            tell()
        else:
            self._afterwards.append(tell)

    async def fetch_batch(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run statements in order in one message, with what was held back before them.

        In a transaction of one message it is the only one, and carries the COMMIT.
        """
        async with self._lock:
            if not self._held and (known := self._take_answer(calls)) is not None:
                return [known]
            foreseen, self._foreseen = self._foreseen, []
            answers = await self._next([*self._take_held(), *calls, *foreseen])
            rows = [answer.rows for answer in answers[len(answers) - len(calls) - len(foreseen) :]]
            self._answers += zip(foreseen, rows[len(calls) :], strict=True)
            return rows[: len(calls)]

    async def execute(self, statement: Statement, **params: object) -> int:
        """Run a statement and return how many rows it wrote."""
        async with self._lock:
            answers = await self._next([*self._take_held(), (statement, params)])
            return answers[-1].count

    async def last(self, call: Call) -> list[Row]:
        """Run the only statement of a transaction that reads, between BEGIN and COMMIT in one message."""
        async with self._lock:
            (answer,) = await self._run([call], closing=True, is_read=True)
            await self._give_back()
            return answer.rows

    async def send(self, calls: Sequence[Call]) -> None:
        """Hold the writes back: they travel with the next statement or with COMMIT."""
        self._check()
        self._held += calls

    async def commit(self) -> None:
        """Send what was held back and COMMIT, in one message.

        Raises:
            CommitOutcomeUnknownError: the connection broke before the reply.
            TransactionAbortedError: a failed statement's error was swallowed by whoever ran it.
        """
        if self._is_over or (self._connection is None and not self._held):
            self._check_failed()
            self._committed()
            return
        async with self._lock:
            await self._close(self._take_held())

    async def abandon(self) -> None:
        """Roll back, or close the connection when it is in the middle of something."""
        self._is_over = True
        connection = self._connection
        if connection is None:
            return
        status = connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            try:
                async with asyncio.timeout(ROLLBACK_S):
                    await connection.execute("rollback")
            except (psycopg.Error, TimeoutError, asyncio.CancelledError):
                await connection.close()
        elif status is not TransactionStatus.IDLE:
            await connection.close()
        await self._give_back()

    async def _next(self, calls: Sequence[Call]) -> list[Answer]:
        return await (self._close(calls) if self._in_one_message else self._run(calls))

    async def _close(self, calls: Sequence[Call]) -> list[Answer]:
        """Run the last calls and COMMIT; nothing may follow."""
        self._check()
        if self._connection is None:
            # Failing to get one is no unknown outcome.
            await self._acquire()
        try:
            answers = await self._run(calls, closing=True)
        except DatabaseUnavailableError as error:
            raise CommitOutcomeUnknownError("the connection broke while COMMIT was under way") from error
        self._committed()
        await self._give_back()
        return answers

    def _committed(self) -> None:
        """Note that it is done, and tell whoever waited for it."""
        self._is_over = self._is_committed = True
        waiting, self._afterwards = self._afterwards, []
        tell_all(waiting)

    def _check(self) -> None:
        self._check_failed()
        if self._is_over:
            raise NoTransactionError("the transaction is over")

    def _check_failed(self) -> None:
        if self._has_failed:
            raise TransactionAbortedError("a statement of this transaction failed: nothing is committed")

    @contextmanager
    def _careful(self) -> Generator[None]:
        """Count what happens inside as failed until it has gone well, so that cancellation counts too."""
        self._check()
        self._has_failed = True
        yield
        self._has_failed = False

    def _take_answer(self, calls: Sequence[Call]) -> list[Row] | None:
        """Return the rows of a foreseen read, once; a later repeat may see something else."""
        for position, (call, rows) in enumerate(self._answers):
            if [call] == [*calls]:
                self._check()
                del self._answers[position]
                return rows
        return None

    def _take_held(self) -> list[Call]:
        held, self._held = self._held, []
        return held

    async def _run(self, calls: Sequence[Call], *, closing: bool = False, is_read: bool = False) -> list[Answer]:
        """Run calls in one message, opening the transaction with the first and closing it with the last if asked.

        A connection that turns out dead is replaced while nothing can have been written on it.
        """
        give_up_at = asyncio.get_running_loop().time() + self._pool.timeout
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        with self._careful():
            while True:
                connection = self._connection or await self._acquire()
                try:
                    async with asyncio.timeout(None if self._has_begun else OPENING_S):
                        answers = await self._send(connection, calls, opening=not self._has_begun, closing=closing)
                except TimeoutError as error:
                    await connection.close()
                    raise DatabaseUnavailableError("the pooler has no server for us") from error
                except psycopg.Error as error:
                    if not isinstance(error, psycopg.OperationalError) and not _is_last_word(error):
                        raise
                    if _was_cancelled(cancels):
                        # The driver lost it: the connection broke while it waited for the cancelled statement's end.
                        raise asyncio.CancelledError from error
                    if not _is_away(error, connection):
                        raise
                    if self._has_begun or (closing and not is_read) or asyncio.get_running_loop().time() >= give_up_at:
                        raise DatabaseUnavailableError("the database cannot be reached") from error
                    # Dead since it was last used, and nothing had been done on it: take another.
                    await connection.close()
                    await self._give_back()
                else:
                    self._has_begun = True
                    return answers

    async def _send(
        self, connection: MessageConnection, calls: Sequence[Call], *, opening: bool, closing: bool
    ) -> list[Answer]:
        # What one message opens and closes needs neither word: up to its end (Sync) it is one transaction, which an
        # error rolls back, and set_config's "local" lasts as long.
        is_whole = opening and closing
        before = [*((BEGIN,) if not is_whole else ()), *self._opening] if opening else []
        after = [COMMIT] if closing and not is_whole else []
        message = [
            (statement, statement.arguments(self._bound(statement, params)))
            for statement, params in (*before, *calls, *after)
        ]
        with _hanging_up(connection, REPLY_S if opening or closing else None):
            answers = await connection.message(message)
        return answers[len(before) : len(before) + len(calls)]

    async def _acquire(self) -> MessageConnection:
        try:
            connection = await self._pool.getconn()
        except (PoolTimeout, PoolClosed, TooManyRequests) as error:
            raise DatabaseUnavailableError("no connection within the time to wait for one") from error
        self._connection = connection
        return connection

    async def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Cancelled on its way back, a connection would be lost to the pool for good.
            await asyncio.shield(self._pool.putconn(connection))


@contextmanager
def _hanging_up(connection: MessageConnection, after_s: float | None) -> Generator[None]:
    """Shut the connection down when it takes too long, since cancelling would wait for the server's answer too."""
    if after_s is None:
        yield
        return
    hang_up = asyncio.get_running_loop().call_later(after_s, _shut, connection)
    try:
        yield
    finally:
        hang_up.cancel()


def _shut(connection: MessageConnection) -> None:
    if connection.closed:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as line, suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _was_cancelled(cancels_before: int) -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > cancels_before


def _is_last_word(error: psycopg.Error) -> bool:
    """Whether the server ended the session with it, whatever class the driver has for its code (25P03, XX000)."""
    return error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def _is_away(error: psycopg.Error, connection: MessageConnection) -> bool:
    return connection.closed or error.sqlstate is None or error.sqlstate in AWAY_STATES
