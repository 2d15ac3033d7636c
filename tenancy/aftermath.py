"""What is told once a caller's SQLAlchemy transaction is committed, and forgotten when it, or its savepoint, is not.

SQLAlchemy says when a transaction ends; the drivers by themselves do not. It says so as COMMIT is sent: one that the
server then refuses (a deferred constraint, a serialization failure) has been told of all the same.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.transaction import tell_all


class Aftermath:
    """Listens to one connection for as long as it lives, however often it is bound."""

    def __init__(self, connection: Connection) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._marks: list[int] = []
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "savepoint", self._on_savepoint)
        event.listen(connection, "release_savepoint", self._on_release_savepoint)
        event.listen(connection, "rollback_savepoint", self._on_rollback_savepoint)

    def add(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the transaction that is open now is committed."""
        self._waiting.append(tell)

    def _on_commit(self, _connection: Connection) -> None:
        waiting, self._waiting = self._waiting, []
        self._marks.clear()
        tell_all(waiting)

    def _on_rollback(self, _connection: Connection) -> None:
        self._waiting.clear()
        self._marks.clear()

    def _on_savepoint(self, _connection: Connection, _name: str | None) -> None:
        # The innermost is the first to end; its name is not known yet.
        self._marks.append(len(self._waiting))

    def _on_release_savepoint(self, _connection: Connection, _name: str, _context: Any) -> None:
        if self._marks:
            self._marks.pop()

    def _on_rollback_savepoint(self, _connection: Connection, _name: str, _context: Any) -> None:
        # One that was set before anybody listened covers all that was heard.
        del self._waiting[self._marks.pop() if self._marks else 0 :]


_aftermaths: WeakKeyDictionary[Connection, Aftermath] = WeakKeyDictionary()


def aftermath_of(connection: AsyncConnection) -> Aftermath:
    """Return what listens to a connection, the same one for everybody who asks."""
    carrier = connection.sync_connection
    assert carrier is not None, "a bound connection is open"
    found = _aftermaths.get(carrier)
    if found is None:
        found = _aftermaths[carrier] = Aftermath(carrier)
    return found
