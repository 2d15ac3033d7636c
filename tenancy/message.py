"""Statements as one message: written to the server at once, and waited for once.

psycopg's own pipeline writes each statement by itself, which costs a system call, a turn of the event loop, and a
wake-up of pooler and server for each. This one is built from the same libpq calls and the same conversions of values.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import psycopg
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from tenancy.sql import Statement
from tenancy.transaction import Row, in_utc

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.NONFATAL_ERROR, ExecStatus.BAD_RESPONSE)
# A statement with the types of its values: what the server prepares.
_Prepared: TypeAlias = tuple[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement brought: its rows by column, with aware times in UTC, and how many rows it read or wrote."""

    rows: list[Row]
    count: int


@dataclass(frozen=True, slots=True)
class _Query:
    """A statement as libpq takes it: text, values, their types and their formats."""

    text: bytes
    values: Sequence[Buffer | None]
    types: tuple[int, ...]
    formats: Sequence[Format]


class MessageConnection(psycopg.AsyncConnection[Any]):
    """A psycopg connection that can send many statements as one message.

    With a `prepare_threshold` a statement is prepared once it was sent that often on this connection; they stand in
    files, so there are not many.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what psycopg gives."""
        super().__init__(*args, **options)
        self._sent: dict[_Prepared, int] = {}
        self._names: dict[_Prepared, bytes] = {}
        self._named = 0

    async def message(self, calls: Sequence[tuple[Statement, Sequence[object]]]) -> list[Answer]:
        """Run statements in order, each with the values of its `numbered` form; the first failure ends them all.

        Without BEGIN the message is one transaction by itself. Cancelling it cancels the statement at the server.

        Raises:
            psycopg.Error: a statement's failure, or the connection's.
        """
        pgconn = self.pgconn
        told: list[PGresult] = []
        asked: list[_Prepared | None] = []
        # First of all: a value that cannot be converted leaves the connection as it was.
        queries = [self._query(statement, values) for statement, values in calls]
        pgconn.enter_pipeline_mode()
        try:
            for query in queries:
                asked += self._put(query)
            pgconn.pipeline_sync()
            await self.wait(_exchange(pgconn, told))
        except psycopg.OperationalError:
            # The server's last word says more than that the line is dead.
            self._raise_failure(told)
            raise
        finally:
            self._forget(asked, told)
            # A broken or abandoned connection stays as it is, to be closed.
            with suppress(psycopg.Error):
                pgconn.exit_pipeline_mode()
        self._raise_failure(told)
        return [self._answer(result) for prepared, result in zip(asked, told, strict=True) if prepared is None]

    def _query(self, statement: Statement, values: Sequence[object]) -> _Query:
        adapting = Transformer(self)
        given = adapting.dump_sequence(values, [PyFormat.AUTO] * len(values))
        return _Query(statement.numbered.encode(), given, tuple(adapting.types or ()), adapting.formats or ())

    def _put(self, query: _Query) -> list[_Prepared | None]:
        """Queue a statement at libpq; returns, for each result that will come of it, what it says is prepared."""
        if self.prepare_threshold is None:
            self.pgconn.send_query_params(query.text, query.values, query.types, query.formats)
            return [None]
        key = query.text, query.types
        self._sent[key] = self._sent.get(key, 0) + 1
        results: list[_Prepared | None] = [None]
        if key not in self._names:
            if self._sent[key] <= self.prepare_threshold:
                self.pgconn.send_query_params(query.text, query.values, query.types, query.formats)
                return results
            # A name is never used again: what came of an earlier try to prepare is not known.
            self._named += 1
            self._names[key] = b"tenantry_%d" % self._named
            self.pgconn.send_prepare(self._names[key], *key)
            results = [key, None]
        self.pgconn.send_query_prepared(self._names[key], query.values, query.formats)
        return results

    def _forget(self, asked: Sequence[_Prepared | None], told: Sequence[PGresult]) -> None:
        """Take what the server does not say that it prepared for not prepared."""
        for key, result in zip_longest(asked, told):
            if key is not None and (result is None or result.status != ExecStatus.COMMAND_OK):
                self._names.pop(key, None)

    def _raise_failure(self, results: Sequence[PGresult]) -> None:
        for result in results:
            if result.status in _FAILED:
                raise error_from_result(result, self.info.encoding)

    def _answer(self, result: PGresult) -> Answer:
        count = result.command_tuples or 0
        if result.status != ExecStatus.TUPLES_OK:
            return Answer([], count)
        encoding = self.info.encoding
        names = [(result.fname(column) or b"").decode(encoding) for column in range(result.nfields)]
        adapting = Transformer(self)
        adapting.set_pgresult(result)
        rows = adapting.load_rows(0, result.ntuples, lambda values: dict(zip(names, values, strict=True)))
        return Answer(in_utc(rows, self.pgconn), count)


def _exchange(pgconn: PGconn, told: list[PGresult]) -> PQGen[None]:
    """Write what is queued, and read into `told` what comes back up to the message's end."""
    while pgconn.flush():
        # psycopg says nothing of what is ready where it goes on after a cancellation, and waits for its effect.
        ready = yield Wait.RW
        if ready and ready & Ready.R:
            # A server that waits for us to read would never take the rest.
            pgconn.consume_input()
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return
        else:
            told.append(result)
