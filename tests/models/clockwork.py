"""The stage of a model test: one loop, one database and one clock, on which nothing happens that the test did not ask for.

The loop's time, the engine's and the workers' monotonic clock move together, and only between moves. A move is over when
`quiet` returns: whatever is under way then waits for the test.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tenancy import Database, DatabaseSettings, TenantTransaction
from tests.support import factories
from tests.support.environment import DatabaseUrls
from tests.support.workflows import CLOCK

T = TypeVar("T")
Row = dict[str, Any]


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop whose time can be moved, and that knows whether anything is left to do at this moment."""

    ahead = timedelta(0)

    def time(self) -> float:
        return super().time() + self.ahead.total_seconds()

    def has_work(self) -> bool:
        """Whether a callback is ready or a timer due; what waits for the network is not seen here."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        is_due = any(timer.when() <= self.time() and not timer.cancelled() for timer in timers)
        return is_due or bool(self._ready)  # type: ignore[attr-defined]


class World:
    """The database and the loop of one test; each example has a tenant of its own.

    `on_commit` is called after every transaction, before anybody hears of it; `errors` are those that no task should have.
    """

    def __init__(self, urls: DatabaseUrls) -> None:
        self.loop = Clockwork()
        self._runner = asyncio.Runner(loop_factory=lambda: self.loop)
        self._idle = asyncio.Event()
        self._busy = 0
        self.tenant_id = UUID(int=0)
        self.threads = Threads(self)
        self.errors: list[BaseException] = []
        self.on_commit: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._database = Database(DatabaseSettings(urls.straight("tenantry_worker"), pool_size=2))
        self._superuser = self.run(psycopg.AsyncConnection.connect(urls.direct, autocommit=True, row_factory=dict_row))
        self.run(self._database.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; other tasks of the loop go on only meanwhile."""
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self._database.close())
        self.run(self._superuser.close())
        self.threads.shutdown()
        self._runner.close()

    async def begin(self, on_commit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an example: a tenant nobody knows, a clock that is right."""
        self.loop.ahead = timedelta(0)
        self.errors = []
        self.on_commit = None
        self.tenant_id = await factories.create_tenant(self._superuser)
        self.on_commit = on_commit

    # -- time ---------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the engine's time; the server has the clock of this machine."""
        return datetime.now(UTC) + self.loop.ahead

    async def advance(self, **times: float) -> None:
        """Let time pass for everybody; what was to happen meanwhile begins at its end."""
        self.loop.ahead += timedelta(**times)
        await self.quiet()

    async def quiet(self) -> None:
        """Return when nothing happens any more by itself."""
        while self._busy or self.loop.has_work():
            if self._busy:
                self._idle.clear()
                await self._idle.wait()
            else:
                await asyncio.sleep(0)

    def begin_work(self) -> None:
        """Note that something goes on that the loop does not see."""
        self._busy += 1

    def end_work(self) -> None:
        """Note that it has ended, or waits for the test."""
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self.begin_work()
        try:
            yield
        finally:
            self.end_work()

    # -- the database -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TenantTransaction]:
        """Open a transaction of the example's tenant on the world's clock."""
        with self._under_way():
            async with self._database.transaction(self.tenant_id) as tx:
                await tx.fetch_all(CLOCK["advance"], offset=f"{self.loop.ahead.total_seconds()} seconds")
                yield tx
            if self.on_commit is not None:
                await self.on_commit()

    async def look(self, *queries: str, **params: object) -> list[list[Row]]:
        """Read past every policy: the rows of each query, all in one message."""
        async with self._superuser.pipeline():
            cursors = [await self._superuser.execute(query.encode(), params) for query in queries]
        return [await cursor.fetchall() for cursor in cursors]


class Threads(Executor):
    """Threads whose work counts as under way until its result is with the loop; what runs in them asks the loop to wait."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pool = ThreadPoolExecutor(32)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        told: Future[T] = Future()
        told.set_running_or_notify_cancel()
        self._world.begin_work()

        def tell(done: Future[T]) -> None:
            try:
                told.set_result(done.result())
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
                told.set_exception(error)
            self._world.end_work()

        work = self._pool.submit(fn, *args, **kwargs)
        work.add_done_callback(lambda done: self._world.loop.call_soon_threadsafe(tell, done))
        return told

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
