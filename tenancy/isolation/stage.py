"""Plays the application's role on a superuser's connection: every attempt is made, looked at and undone.

The rows that a test needs are made in a transaction that is rolled back: nothing is left behind in the database. The
role is played by `set session authorization`, so that policies, grants and `session_user` are those of a connection of
its own.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from tenancy.isolation.catalog import Connection, Table, ask
from tenancy.isolation.errors import InconclusiveError
from tenancy.isolation.rows import owned_by
from tenancy.sql import Statement

Situation = Literal["other", "none", "ended", "empty"]
# Bound to another tenant; never bound; bound to the owner of the rows in a transaction that is over; bound to ''.
SITUATIONS: tuple[Situation, ...] = ("other", "none", "ended", "empty")


_SAVEPOINT = b"savepoint attempt"
_UNDO = b"rollback to savepoint attempt; release savepoint attempt"
# What is checked at the end of a transaction is checked now, as the player.
_EXIT = b"set constraints all immediate; set local session authorization default"


@dataclass(frozen=True, slots=True)
class Part:
    """Whom the stage plays: a login, what it says in each transaction, and what binds a transaction to a tenant.

    `bind` is given the tenant as `%(tenant)s`; `enter` is said unbound too, `set local role …` for instance.
    """

    login: str
    enter: Sequence[str]
    bind: Sequence[str]


@dataclass(frozen=True, slots=True)
class Reply:
    """All that a client learns from a statement: rows as texts, their number, or the error with everything it says."""

    state: str | None
    said: tuple[str | None, ...]
    count: int
    rows: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in a line."""
        if self.state is not None:
            return f"{self.state} {' / '.join(part for part in self.said if part)}"
        return f"{self.count} rows" + (f": {'; '.join(self.rows[:5])}" if self.rows else "")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A statement to be tried: `is_copy` streams out what it copies, or `data` in."""

    statement: sql.Composed
    is_copy: bool = False
    data: str | None = None
    # Whose rows of which tables are taken away before, past every trigger and foreign key.
    without: tuple[tuple[Table, object], ...] = ()
    # Foreign keys and triggers are silent: nothing but policies and grants stands in the way.
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was answered, and whether rows that are not the player's own are others than before."""

    reply: Reply
    has_changed: bool


class Stage:
    """One transaction of a superuser's, in one of the situations, with `mine` as the tenant whom `other` binds."""

    def __init__(self, connection: Connection, part: Part, situation: Situation, mine: object) -> None:
        self.connection = connection
        self.situation = situation
        self._mine = mine
        tenant = {"other": mine, "empty": ""}.get(situation)
        self._entrance = entrance(connection, part, tenant)
        self._fingerprints: dict[object, Any] = {}

    def try_(self, attempt: Attempt, watched: Table) -> Outcome:
        """Make an attempt as the player, look past all policies at what it changed in a table, and undo it."""
        before = self._before(attempt, watched)
        try:
            self._run_all([_SAVEPOINT, *_taking_away(attempt), self._entrance])
            reply = self._answer(attempt)
            self._run_all([_EXIT])
            return Outcome(reply, self._fingerprint(watched) != before)
        except psycopg.Error as error:
            return Outcome(_refusal(error), has_changed=False)
        finally:
            self._run_all([_UNDO])

    def asked(self, statement: Statement, **params: object) -> list[dict[str, Any]]:
        """Run a question of ours as the player; no rows when not even binding the empty tenant works.

        Raises:
            InconclusiveError: the role cannot be played, or the transaction not be bound.
        """
        try:
            self._run_all([_SAVEPOINT, self._entrance])
            return ask(self.connection, statement, **params)
        except psycopg.Error as error:
            if self.situation == "empty":
                return []
            raise InconclusiveError(f"the role cannot be played: {_refusal(error)}") from error
        finally:
            self._run_all([_UNDO])

    def _before(self, attempt: Attempt, watched: Table) -> Any:
        """Return the fingerprint that an attempt starts from, looked up once."""
        key = (watched.oid, tuple((table.oid, str(tenant)) for table, tenant in attempt.without))
        if key not in self._fingerprints:
            self._run_all([_SAVEPOINT, *_taking_away(attempt)])
            self._fingerprints[key] = self._fingerprint(watched)
            self._run_all([_UNDO])
        return self._fingerprints[key]

    def _answer(self, attempt: Attempt) -> Reply:
        with self.connection.cursor() as cursor:
            if attempt.is_copy:
                with cursor.copy(attempt.statement) as copy:
                    if attempt.data is not None:
                        copy.write(attempt.data)
                        rows: list[str] = []
                    else:
                        rows = b"".join(bytes(block) for block in copy).decode().splitlines()
            else:
                cursor.execute(attempt.statement)
                rows = [repr(row) for row in cursor.fetchall()] if cursor.description is not None else []
            return Reply(None, (), cursor.rowcount, tuple(sorted(rows)))

    def _fingerprint(self, table: Table) -> Any:
        """Return what tells whether rows changed that are not the player's: unbound, every row is another's."""
        is_others: sql.Composable = sql.SQL("true")
        if self.situation == "other" and table.tenant_column is not None:
            is_others = sql.SQL("{} is distinct from {}").format(
                sql.Identifier(table.tenant_column), sql.Literal(str(self._mine))
            )
        query = sql.SQL(
            "select count(*), md5(coalesce(string_agg(found::text, ' ' order by found::text), ''))"
            " from {} as found where {}"
        )
        return self.connection.execute(query.format(table.identifier, is_others)).fetchone()

    def _run_all(self, statements: Sequence[bytes]) -> None:
        """Send statements as one message."""
        self.connection.execute(b"; ".join(statements))


class Stages:
    """The connections of a suite: one on which nothing was ever bound, and one on which something was.

    A server connection tells the two apart for as long as it lives, whatever was rolled back on it.
    """

    def __init__(self, url: str, part: Part, mine: object, theirs: object) -> None:
        self._url = url
        self._part = part
        self._mine = mine
        self._theirs = theirs
        self._connections: dict[bool, Connection] = {}

    @contextmanager
    def opened(self, situation: Situation, *, afresh: bool = False) -> Generator[Stage]:
        """Open a stage; whatever happens on it is rolled back. `afresh` takes a new connection."""
        is_bound = situation != "none"
        connection = self._connections.pop(is_bound, None)
        if connection is None or afresh:
            if connection is not None:
                connection.close()
            connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        with _kept(connection, self._connections, key=is_bound):
            if situation == "ended":
                connection.execute("begin")
                connection.execute(entrance(connection, self._part, self._theirs))
                connection.execute("commit")
            connection.execute("begin")
            yield Stage(connection, self._part, situation, self._mine)
            connection.execute("rollback")

    def close(self) -> None:
        """Close what is open; a stage opened later connects again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


@contextmanager
def _kept(connection: Connection, connections: dict[bool, Connection], *, key: bool) -> Generator[None]:
    """Keep a connection for the next when all went well on it, and close it else."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
    connections[key] = connection


def entrance(connection: Connection, part: Part, tenant: object | None, *, is_played: bool = True) -> bytes:
    """Return what makes a transaction the player's, bound as the product binds it unless there is no tenant.

    Where the player has connected by itself (`is_played` is false), it need not be made out to be.
    """
    texts: list[str] = []
    if is_played:
        role = sql.SQL("set local session authorization {}").format(sql.Identifier(part.login))
        texts.append(role.as_string(connection))
    texts += part.enter
    if tenant is not None:
        # Client-side, so that all of it is one message.
        cursor = psycopg.ClientCursor(connection)
        texts += [cursor.mogrify(text.encode(), {"tenant": str(tenant)}) for text in part.bind]
    return "; ".join(text.strip().rstrip(";") for text in texts).encode()


def _taking_away(attempt: Attempt) -> list[bytes]:
    """Return the statements that remove rows past every trigger and foreign key; these stay silent if they shall."""
    steps = [b"set local session_replication_role = replica"]
    for table, tenant in attempt.without:
        steps.append(sql.SQL("delete from {} where {}").format(table.identifier, owned_by(table, tenant)).as_bytes())
    if not attempt.is_bare:
        steps.append(b"set local session_replication_role = origin")
    return steps


def _refusal(error: psycopg.Error) -> Reply:
    diag = error.diag
    said = (diag.message_primary or str(error), diag.message_detail, diag.message_hint, diag.constraint_name)
    return Reply(error.sqlstate or "?????", said, -1, ())
