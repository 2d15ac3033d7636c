"""The API as its clients meet it, without a socket."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from litestar import Litestar

MakeKey = Callable[..., Awaitable[dict[str, Any]]]


def connect(app: Litestar, key: str | None = None) -> httpx.AsyncClient:
    """Return a client of the application that sends the key with every request; what the application raises it answers."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://api.test", headers=headers, timeout=30)
