"""Entering the embedded database from a running loop."""

import asyncio
from contextlib import AsyncExitStack

from service.embedded.server import EmbeddedDatabase


async def entered(stack: AsyncExitStack, database: EmbeddedDatabase) -> EmbeddedDatabase:
    """Start the database in a thread and have the stack stop it in one.

    A cancelled start is waited for and undone: a half-started server would outlive us.
    """
    starting = asyncio.ensure_future(asyncio.to_thread(database.__enter__))
    stack.push_async_callback(_leave, starting)
    return await asyncio.shield(starting)


async def _leave(starting: asyncio.Future[EmbeddedDatabase]) -> None:
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await asyncio.to_thread(starting.result().__exit__)
