"""The loopback ports of the servers: the same at each start, so that an address that somebody copied stays good."""

import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from service.embedded.errors import EmbeddedError

# Below what Linux and macOS deal out to connections: none of another program sits on one of these between two starts.
_CHOICE: Final = range(20_000, 32_000)
_HIGHEST: Final = 65_535


class Ports:
    """The ports in a file `{server: port}`, which whoever likes other ports may edit.

    The caller holds the lock on the file's directory. `moved` has a line for each server that lost its port.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; it is made when the first port is taken."""
        self._path = path
        self.moved: list[str] = []

    def take(self, server: str) -> int:
        """Return the server's port of last time if nobody has it now, else another one, which is recorded.

        Raises:
            EmbeddedError: what the file holds is no port, or none is free.
        """
        recorded = self._recorded()
        last = recorded.get(server)
        if last is not None and _is_free(last):
            return last
        port = _free_one(except_for=recorded.values())
        if last is not None:
            self.moved.append(
                f"Port {last}, where {server} was, is taken by another program: it is at {port} from now on."
            )
        self._record(recorded | {server: port})
        return port

    def _recorded(self) -> dict[str, int]:
        try:
            stored = json.loads(self._path.read_text()) if self._path.exists() else {}
        except ValueError:
            stored = None
        if not isinstance(stored, dict) or not all(map(_is_port, stored.values())):
            message = f'{self._path} must look like {{"Postgres": 25432}}: mend it, or remove it to have ports chosen.'
            raise EmbeddedError(message)
        return stored

    def _record(self, ports: dict[str, int]) -> None:
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(ports) + "\n")
        unfinished.rename(self._path)


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _HIGHEST


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: connections that are being forgotten do not hold the port of a server that was stopped.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_one(except_for: Iterable[int]) -> int:
    spoken_for = set(except_for)
    for port in random.sample(_CHOICE, len(_CHOICE)):
        if port not in spoken_for and _is_free(port):
            return port
    message = f"No port from {_CHOICE.start} to {_CHOICE.stop - 1} is free on 127.0.0.1."
    raise EmbeddedError(message)
