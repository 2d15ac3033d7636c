"""A TCP proxy in front of a server that loses replies: what the client sent arrives, what came back does not."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit

Matches = Callable[[bytes], bool]


class LossyProxy:
    """Passes bytes through until `lose` is asked; then the reply to the next matching message breaks the connection.

    With `silently` the connection stays open and says nothing more, like a path that drops packets. Nothing listens at
    its port before it is entered; without a `port` it finds one then.
    """

    def __init__(self, url: str, port: int = 0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._parts = parts
        self._port = port
        self._server: asyncio.Server | None = None
        self._matches: Matches | None = None
        self._is_silent = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.lost = 0

    @property
    def url(self) -> str:
        """Address of the database through the proxy."""
        return urlunsplit(self._parts._replace(netloc=f"{self._parts.username}@127.0.0.1:{self._port}"))

    def lose(self, matches: Matches, *, silently: bool = False) -> None:
        """Lose the reply to the next message for which `matches` holds."""
        self._matches, self._is_silent = matches, silently

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        is_lost = asyncio.Event()
        up = asyncio.create_task(self._up(reader, back, is_lost))
        down = asyncio.create_task(self._down(there, writer, is_lost))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for stream in (back, writer):
                stream.close()
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await stream.wait_closed()

    async def _up(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, is_lost: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if self._matches is not None and self._matches(data):
                self._matches = None
                self.lost += 1
                is_lost.set()
            back.write(data)
            await back.drain()

    async def _down(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, is_lost: asyncio.Event) -> None:
        while data := await there.read(1 << 16):
            if is_lost.is_set():
                if self._is_silent:
                    continue
                return
            writer.write(data)
            await writer.drain()
