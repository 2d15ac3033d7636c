"""Waiting for a fact instead of for time: a race's test goes on when the other side is seen to wait."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from psycopg import AsyncConnection

LOOK_AGAIN_S = 0.005


class NeverHappenedError(AssertionError):
    """What a test waited for did not come about."""


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 15) -> None:
    """Look until the condition holds; NeverHappenedError saying `what` when it has not within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                holds = condition()
                if await holds if inspect.isawaitable(holds) else holds:
                    return
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        msg = f"not within {seconds} s: {what}"
        raise NeverHappenedError(msg) from None


async def until_blocked(superuser: AsyncConnection, pid: int, *, by: int | None = None) -> None:
    """Look until the server process `pid` waits for a lock (one that `by` holds, when it is given)."""

    async def blocked() -> bool:
        cursor = await superuser.execute(
            "select coalesce(wait_event_type = 'Lock', false), pg_blocking_pids(pid) from pg_stat_activity"
            " where pid = %s",
            (pid,),
        )
        row = await cursor.fetchone()
        return row is not None and bool(row[0]) and (by is None or by in row[1])

    await until(blocked, f"process {pid} waits for a lock of {by or 'anyone'}")


async def until_someone_blocked(superuser: AsyncConnection, *, by: int, number: int = 1) -> None:
    """Look until `number` server processes of this database wait for locks that the process `by` holds."""

    async def blocked() -> bool:
        cursor = await superuser.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            " and %s = any(pg_blocking_pids(pid))",
            (by,),
        )
        row = await cursor.fetchone()
        return row is not None and int(row[0]) >= number

    await until(blocked, f"{number} processes wait for a lock of {by}")
