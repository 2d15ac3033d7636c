"""What a worker says of itself: healthy while its loop goes round, ready while it can work, and its figures."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from time import monotonic
from uuid import UUID

import httpx
import pytest

from service.probes import ReadinessGate
from service.settings import Settings
from service.worker.host import WorkerHost
from service.worker.metrics import HostMetrics
from service.worker.status import STALLED_AFTER_S, StatusApp
from tenancy import Database, DatabaseSettings
from tests.support import factories, stress
from tests.support.arena import Arena
from tests.support.environment import Cluster, DatabaseUrls


class Asked:
    """A worker's host that does not run, and its status routes."""

    def __init__(self, urls: DatabaseUrls, database: Database, dispatch_database: Database) -> None:
        self.stop = asyncio.Event()
        settings = Settings(database_url=urls.worker, dispatcher_database_url=urls.dispatcher)
        self.host = WorkerHost(settings, stress.NAPS_ONLY, database, dispatch_database)
        app = StatusApp(ReadinessGate(database), self.host, HostMetrics(self.host), self.stop)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker.test")  # type: ignore[arg-type]

    async def get(self, path: str) -> tuple[int, str]:
        answer = await self.client.get(path)
        return answer.status_code, answer.text

    async def metrics(self) -> dict[str, float]:
        _, text = await self.get("/metrics")
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}


@pytest.fixture
async def asked(database_urls: DatabaseUrls) -> AsyncIterator[Asked]:
    async with (
        Database(DatabaseSettings(database_urls.worker)) as database,
        Database(DatabaseSettings(database_urls.dispatcher, pool_size=1)) as dispatch_database,
    ):
        made = Asked(database_urls, database, dispatch_database)
        async with made.client:
            yield made


async def test_a_worker_whose_loop_stands_still_is_not_healthy(asked: Asked) -> None:
    assert await asked.get("/healthz") == (200, "ok")
    asked.host.pulse.lapsed_at = monotonic() - STALLED_AFTER_S + 5
    assert await asked.get("/healthz") == (200, "ok")
    asked.host.pulse.lapsed_at = monotonic() - STALLED_AFTER_S - 5
    status, text = await asked.get("/healthz")
    assert (status, "no round has begun for 12" in text) == (503, True)
    # It has stopped its loop by itself then.
    asked.stop.set()
    assert await asked.get("/healthz") == (200, "ok")


async def test_a_worker_that_stops_is_not_ready(asked: Asked) -> None:
    assert await asked.get("/readyz") == (200, "ready")
    asked.stop.set()
    assert await asked.get("/readyz") == (503, "stopping")


async def test_depth_and_age_are_told_over_all_tenants_and_of_what_is_served_here(
    asked: Asked, ring: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.worker.metrics.DEPTH_FRESH_S", 0.0)
    before = await asked.metrics()
    other = await factories.create_tenant(ring.superuser)
    await ring.start("nap", 3)
    await ring.start("nap", 2, tenant_id=other)
    await ring.start("trio", 4)
    later = await ring.rows("select tenantry.now() + interval '1 hour' as later")
    await ring.start("nap", 1, run_at=later[0]["later"])
    after = await asked.metrics()
    added = {name: after[name] - before[name] for name in ("tenantry_queue_depth", "tenantry_queue_served_depth")}
    assert added == {"tenantry_queue_depth": 9, "tenantry_queue_served_depth": 5}
    await ring.rows(
        "update tenantry.workflow_runs set available_at = available_at - interval '100 s'"
        " where tenant_id = %(tenant)s and workflow_id = 'nap' and ready returning run_id"
    )
    aged = await asked.metrics()
    assert 100 <= aged["tenantry_queue_served_oldest_age_seconds"] <= aged["tenantry_queue_oldest_age_seconds"] < 160
    assert not [name for name in aged if str(ring.tenant_id) in name or "tenant" in name.replace("tenantry", "")]


async def test_an_unpinned_run_counts_as_served_and_another_version_does_not(
    asked: Asked, ring: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.worker.metrics.DEPTH_FRESH_S", 0.0)
    before = (await asked.metrics())["tenantry_queue_served_depth"]
    await ring.start("nap", 3)
    for version, run in zip(("", "sha256-gone"), await runs_of(ring), strict=False):
        await ring.rows(
            "update tenantry.workflow_runs set version = %(version)s where tenant_id = %(tenant)s and run_id = %(run)s"
            " returning run_id",
            version=version,
            run=run,
        )
    assert (await asked.metrics())["tenantry_queue_served_depth"] - before == 2


async def runs_of(ring: Arena) -> list[UUID]:
    return [
        row["run_id"]
        for row in await ring.rows("select run_id from tenantry.workflow_runs where tenant_id = %(tenant)s")
    ]


async def test_the_depth_is_read_once_for_scrapes_in_a_row_and_not_told_when_it_is_unknown(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = own_cluster.create()
    settings = DatabaseSettings(urls.straight("tenantry_worker"), pool_timeout=60)
    dispatch = DatabaseSettings(urls.straight("tenantry_dispatcher"), pool_timeout=60, pool_size=1)
    async with Database(settings) as database, Database(dispatch) as dispatch_database:
        asked = Asked(urls, database, dispatch_database)
        async with asked.client:
            monkeypatch.setattr("service.worker.metrics.DEPTH_FRESH_S", 3600.0)
            assert (await asked.metrics())["tenantry_queue_depth"] == 0
            own_cluster.postgres.kill()
            assert (await asked.metrics())["tenantry_queue_depth"] == 0
            monkeypatch.setattr("service.worker.metrics.DEPTH_FRESH_S", 0.0)
            # A scrape of Prometheus waits ten seconds.
            async with asyncio.timeout(8):
                metrics = await asked.metrics()
            assert metrics["tenantry_database_away"] == 1
            assert not [name for name in metrics if name.startswith("tenantry_queue") and "wait" not in name]
            assert [name for name in metrics if name.startswith("tenantry_build_info")]
            assert (await asked.get("/healthz"))[0] == 200
            assert (await asked.get("/readyz"))[0] == 503


async def test_connections_of_a_pool_are_replaced_when_they_are_old(database_urls: DatabaseUrls) -> None:
    lifetime = timedelta(milliseconds=300)
    settings = DatabaseSettings(
        database_urls.straight("tenantry_worker"), pool_size=1, max_lifetime=lifetime.total_seconds()
    )
    async with Database(settings) as database:
        pids = set()
        async with asyncio.timeout(20):
            while len(pids) < 2:
                async with database._pool.connection() as connection:
                    pids.add(connection.info.backend_pid)
