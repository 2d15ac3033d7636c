"""A transaction cancelled at any moment leaves neither its tenant nor an open transaction on a pooled connection."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import psycopg
import pytest

from tenancy import Database, DatabaseSettings, Statements
from tests.support.environment import Cluster, DatabaseUrls
from tests.support.pgbouncer import PgBouncer
from tests.support.waiting import until

# A second cancellation that comes while the driver waits for the server to take the first one in leaves the generator of its
# pipeline to the collector, which says so. The connection is closed by then.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <generator object BasePipeline._exit_gen:pytest.PytestUnraisableExceptionWarning"
)
STEPS = 60
LATER = 100


@pytest.fixture
async def narrow(cluster: Cluster, pgbouncer: PgBouncer, database_urls: DatabaseUrls) -> AsyncIterator[Database]:
    """Two connections to a pooler that has two itself."""
    assert pgbouncer.port
    pooler = PgBouncer(cluster.postgres, default_pool_size=2).start()
    url = pooler.url("tenantry_worker", database_urls.database)
    async with Database(DatabaseSettings(url, pool_size=2)) as database:
        yield database
    pooler.close()
    # What the driver left to the collector is told of here, not in whatever test it would come by.
    gc.collect()


async def _work(database: Database, tenant: UUID, sql: Statements) -> None:
    async with database.transaction(tenant) as tx:
        await tx.send([(sql["add"], {"tag": "sent", "run_id": uuid4()})])
        await tx.fetch_batch([(sql["tags"], {}), (sql["wait"], {"seconds": 0.002})])
        await tx.execute(sql["add"], tag="written", run_id=uuid4())
        await tx.send([(sql["add"], {"tag": "sent", "run_id": uuid4()})])


async def _cancel(work: asyncio.Task[None], *, times: int) -> None:
    for _ in range(times):
        work.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([work])
    if not work.cancelled() and (error := work.exception()) is not None:
        raise error


async def _check_is_clean(
    database: Database, tenant: UUID, sql: Statements, superuser: psycopg.AsyncConnection
) -> None:
    both = asyncio.Barrier(2)

    async def look() -> tuple[str, str | None]:
        async with database._owned(None, []) as tx:
            row = await tx.fetch_one(sql["who"])
            await both.wait()
        assert row is not None
        return row["role"], row["tenant"]

    async with asyncio.timeout(10):
        assert await asyncio.gather(look(), look()) == [("tenantry_worker", None)] * 2

    async def nobody_is_in_a_transaction() -> bool:
        cursor = await superuser.execute(
            "select count(*) from pg_stat_activity where usename = 'tenantry_worker'"
            " and datname = current_database() and state <> 'idle'"
        )
        return await cursor.fetchone() == (0,)

    await until(nobody_is_in_a_transaction, "every server connection is idle")
    async with database.transaction(tenant) as tx:
        rows = await tx.fetch_all(sql["tags"])
    # What was kept was kept whole.
    assert len(rows) % 3 == 0


async def test_cancelled_after_every_step(
    narrow: Database, tenant: UUID, sql: Statements, superuser: psycopg.AsyncConnection
) -> None:
    await _work(narrow, tenant, sql)
    for steps in range(STEPS):
        for times in (1, 2):
            work = asyncio.create_task(_work(narrow, tenant, sql))
            for _ in range(steps):
                await asyncio.sleep(0)
            await _cancel(work, times=times)
    await _check_is_clean(narrow, tenant, sql, superuser)


async def test_cancelled_at_any_time_in_a_crowd(
    narrow: Database, tenant: UUID, sql: Statements, superuser: psycopg.AsyncConnection
) -> None:
    chance = random.Random(20)

    async def one() -> None:
        work = asyncio.create_task(_work(narrow, tenant, sql))
        await asyncio.sleep(chance.uniform(0, 0.03))
        await _cancel(work, times=chance.randint(1, 3))

    for _ in range(LATER // 4):
        await asyncio.gather(*(one() for _ in range(4)))
    await _check_is_clean(narrow, tenant, sql, superuser)


async def test_a_cancelled_commit_keeps_everything_or_nothing(
    narrow: Database, tenant: UUID, sql: Statements, superuser: psycopg.AsyncConnection
) -> None:
    for steps in range(25):
        ready = asyncio.Event()

        async def work(reached: asyncio.Event = ready) -> None:
            async with narrow.transaction(tenant) as tx:
                for _ in range(2):
                    await tx.execute(sql["add"], tag="written", run_id=uuid4())
                await tx.send([(sql["add"], {"tag": "sent", "run_id": uuid4()})])
                reached.set()

        task = asyncio.create_task(work())
        await ready.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        await _cancel(task, times=1)
    await _check_is_clean(narrow, tenant, sql, superuser)
