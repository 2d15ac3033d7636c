"""A client that costs next to nothing: requests made beforehand, kept-alive connections, answers read by length."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Self


class HttpClient:
    """One kept-alive connection to a server on loopback; use as an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        self._writer.close()

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer."""
        assert self._writer is not None
        assert self._reader is not None
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
        return int(lines[0].split(" ")[1]), await self._reader.readexactly(length)


def post(path: str, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a POST of JSON as bytes."""
    payload = json.dumps(body).encode()
    lines: dict[str, Any] = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Content-Length": len(payload),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + payload
