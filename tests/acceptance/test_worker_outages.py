"""Postgres and PgBouncer that stop and come back under load: nothing is lost, nothing happens twice."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import factories, waiting
from tests.support.arena import Arena, arena, started
from tests.support.environment import Cluster
from tests.support.pgbouncer import program
from tests.support.processes import answers
from tests.support.system import free_port, missing


@pytest.fixture(scope="module")
def apart() -> Iterator[Cluster]:
    """A cluster of the module's own, to stop and restart."""
    if program() is None:
        missing("PgBouncer", "pgbouncer")
    own = Cluster()
    yield own
    own.close()


@pytest.fixture
async def ring(apart: Cluster, tmp_path: Path) -> AsyncIterator[Arena]:
    urls = apart.create()
    async with await psycopg.AsyncConnection.connect(urls.direct, autocommit=True) as superuser:
        tenant_id = await factories.create_tenant(superuser)
    async with arena(urls, tenant_id, tmp_path / "diary") as opened:
        yield opened


@pytest.mark.parametrize("what", ["postgres", "postgres_killed", "pgbouncer"])
async def test_a_restart_under_load_loses_and_doubles_nothing(ring: Arena, apart: Cluster, what: str) -> None:
    with ring.worker(worker_concurrency="16") as first, ring.worker(worker_concurrency="16") as second:
        await started(first, second)
        await ring.start("trio", 150, seconds=0.1)
        await ring.noted("end", 60)
        if what == "pgbouncer":
            assert apart.pgbouncer is not None
            apart.pgbouncer.restart()
        else:
            (apart.postgres.stop if what == "postgres" else apart.postgres.kill)()
            await asyncio.sleep(0.5)
            apart.postgres.start()
            await ring.reconnect()
        assert await ring.all_over(60) == {"COMPLETED": 150}
        assert (first.is_running, second.is_running) == (True, True)
        assert (first.stop(), second.stop()) == (0, 0)
        assert "Traceback" not in first.output + second.output, first.output + second.output
    await ring.assert_settled_once()
    assert (await ring.events())["stage:completed"] == 450


async def test_a_stop_while_the_database_is_away_ends_in_time(ring: Arena, apart: Cluster) -> None:
    port = free_port()
    with ring.worker(worker_concurrency="8", worker_http_port=str(port)) as worker:
        await started(worker)
        await ring.start("nap", 8, seconds=2)
        await ring.noted("start", 8)
        apart.postgres.stop()
        try:
            await ring.noted("end", 8)
            assert await asyncio.to_thread(answers, f"http://127.0.0.1:{port}/healthz")
            assert not await asyncio.to_thread(answers, f"http://127.0.0.1:{port}/readyz")
            began = time.monotonic()
            assert await asyncio.to_thread(worker.stop, seconds=30) == 0
            assert time.monotonic() - began < 15
        finally:
            apart.postgres.start()
        assert "Traceback" not in worker.output, worker.output
    await ring.reconnect()
    with ring.worker() as worker:
        assert await ring.all_over() == {"COMPLETED": 8}
        assert worker.stop() == 0
    await ring.assert_settled_once()


async def test_a_worker_started_without_a_database_begins_when_it_comes(ring: Arena, apart: Cluster) -> None:
    apart.postgres.stop()
    with ring.worker() as worker:
        try:
            await waiting.until(lambda: "worker_not_ready" in worker.output, "it says that it waits", 30)
        finally:
            apart.postgres.start()
        await ring.reconnect()
        await ring.start("nap")
        assert await ring.all_over() == {"COMPLETED": 1}
        assert worker.stop() == 0
