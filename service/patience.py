"""How long this process waits for the database before it says that it is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

# The driver asks the server to cancel what it does, and waits up to ten seconds to hear that it has. A server that
# stands still never says so: cancelled once more, the driver closes the connection at once.
LET_GO_S: Final = 2.0


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Cancel the block after that many seconds, and for good when it has not ended two seconds later.

    Raises:
        TimeoutError: it took too long.
    """
    async with asyncio.timeout(seconds + LET_GO_S), asyncio.timeout(seconds):
        yield
