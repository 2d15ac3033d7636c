"""Behind every PgBouncer that we support: restarts, RECONNECT and an exhausted pool, under load, with runs that come through once.

The machine's own (Debian 12: 1.18), and one that keeps prepared statements, with them off and on.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from kernel import RunCancel
from service.app import create_app, opened
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database, DatabaseSettings, DatabaseUnavailableError
from tests.support import stress, waiting
from tests.support.arena import Arena, arena, started
from tests.support.environment import Cluster, DatabaseUrls
from tests.support.http import connect
from tests.support.pgbouncer import PgBouncer, program, programs, version_of
from tests.support.processes import Process, answers
from tests.support.system import free_port, missing

CAN_PREPARE = (1, 21)
KINDS = ("own", "newer", "newer-preparing")
RUNS = 80


def _program(kind: str) -> str:
    if kind == "own":
        return program() or missing("PgBouncer", "pgbouncer")
    newer = [found for found in programs() if version_of(found) >= CAN_PREPARE]
    if not newer:
        missing(
            "PgBouncer 1.21 or newer, in TENANTRY_TEST_PGBOUNCERS", "pgbouncer, of a newer release: .ci/newer-pgbouncer"
        )
    return newer[0]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _pooler(cluster: Cluster, kind: str, **options: Any) -> PgBouncer:
    found = _program(kind)
    settings = dict(options.pop("settings", {}))
    if version_of(found) >= CAN_PREPARE:
        settings["max_prepared_statements"] = "200" if kind == "newer-preparing" else "0"
    return PgBouncer(cluster.postgres, program_path=found, settings=settings, **options).start()


@pytest.fixture(scope="module")
def pooler(cluster: Cluster, kind: str) -> Iterator[PgBouncer]:
    """A pooler of the module's own, to restart."""
    made = _pooler(cluster, kind)
    yield made
    made.close()


@pytest.fixture
def narrow(cluster: Cluster, kind: str) -> Iterator[PgBouncer]:
    """A pooler with two server connections for each login, that keeps nobody waiting for longer than two seconds."""
    made = _pooler(cluster, kind, default_pool_size=2, settings={"query_wait_timeout": "2"})
    yield made
    made.close()


def _through(pooler: PgBouncer, urls: DatabaseUrls) -> DatabaseUrls:
    logins = ("api", "worker", "dispatcher", "admin")
    return replace(urls, **{login: pooler.url(f"tenantry_{login}", urls.database) for login in logins})


@asynccontextmanager
async def _ring(pooler: PgBouncer, urls: DatabaseUrls, tenant: Any, diary: Path) -> AsyncIterator[Arena]:
    async with arena(_through(pooler, urls), tenant, diary) as opened_arena:
        yield opened_arena


def _prepared(kind: str) -> str:
    return "on" if kind == "newer-preparing" else "off"


async def _start_all(client: httpx.AsyncClient, number: int) -> None:
    """Start runs, each under its key, until each was accepted: what a client does that meets an outage."""
    turns = asyncio.Semaphore(8)

    async def start(one: int) -> None:
        async with turns, asyncio.timeout(60):
            while True:
                body = {"workflow": "trio", "input": {"seconds": 0.02}}
                answer = await client.post("/v1/runs", json=body, headers={"Idempotency-Key": f"run-{one}"})
                if answer.status_code in (200, 201):
                    return
                assert (answer.status_code, "Retry-After" in answer.headers) == (503, True), answer.text
                await asyncio.sleep(0.05)

    await asyncio.gather(*(start(one) for one in range(number)))


async def _servers(pooler: PgBouncer) -> set[int]:
    rows = await asyncio.to_thread(pooler.console, "show servers")
    return {int(str(row["remote_pid"])) for row in rows}


async def test_every_run_completes_once_while_the_pooler_reconnects_and_restarts(
    kind: str, pooler: PgBouncer, database_urls: DatabaseUrls, tenant: Any, tmp_path: Path
) -> None:
    port = free_port()
    preparing = {"prepared_statements": _prepared(kind)}
    async with _ring(pooler, database_urls, tenant, tmp_path / "diary") as ring, AsyncExitStack() as stack:
        async with ring.database.transaction(tenant) as tx:
            key = (await create_key(tx))["key"]
        environment = {
            **ring.urls.environment("api"),
            "TENANTRY_PORT": str(port),
            "TENANTRY_WORKFLOWS": "tests.support.stress:REGISTRY",
            "TENANTRY_PREPARED_STATEMENTS": _prepared(kind),
        }
        api = stack.enter_context(Process("api", environment=environment))
        worker = stack.enter_context(ring.worker(worker_concurrency="16", **preparing))
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}, timeout=30
            )
        )
        await started(worker)
        await waiting.until(lambda: asyncio.to_thread(answers, f"http://127.0.0.1:{port}/readyz"), "the API is up", 30)

        creating = asyncio.create_task(_start_all(client, RUNS))
        for done, action in ((5, pooler.reconnect), (15, pooler.restart), (30, pooler.reconnect), (45, pooler.restart)):
            await waiting.until(lambda done=done: _completed(ring, done), f"{done} runs are over", 60)
            before = await _servers(pooler)
            await asyncio.to_thread(action)
            await waiting.until(lambda before=before: _are_gone(pooler, before), "the server connections are new", 30)
        await creating
        assert await ring.all_over(60) == {"COMPLETED": RUNS}
        assert (api.is_running, worker.is_running) == (True, True)
        assert (worker.stop(), api.stop()) == (0, 0)
        assert "Traceback" not in worker.output + api.output, worker.output + api.output
        await ring.assert_settled_once()
        assert (await ring.events())["stage:completed"] == 3 * RUNS


async def _completed(ring: Arena, number: int) -> bool:
    return (await ring.statuses())["COMPLETED"] >= number


async def _are_gone(pooler: PgBouncer, pids: set[int]) -> bool:
    return not pids & await _servers(pooler)


@asynccontextmanager
async def _holding(pooler: PgBouncer, urls: DatabaseUrls, login: str) -> AsyncIterator[list[psycopg.AsyncConnection]]:
    """Take both server connections of a login and keep them in open transactions."""
    async with AsyncExitStack() as stack:
        held = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(pooler.url(login, urls.database), prepare_threshold=None)
            )
            for _ in range(2)
        ]
        for connection in held:
            await connection.execute("select 1")
        yield held


async def _are_waiting(pooler: PgBouncer, login: str) -> bool:
    pools = await asyncio.to_thread(pooler.console, "show pools")
    return any(pool["user"] == login and int(str(pool["cl_waiting"])) > 0 for pool in pools)


async def test_an_exhausted_pool_makes_clients_wait_then_tells_them_and_loses_nothing(
    kind: str, narrow: PgBouncer, database_urls: DatabaseUrls, tenant: Any, tmp_path: Path
) -> None:
    async with _ring(narrow, database_urls, tenant, tmp_path / "diary") as ring:
        async with ring.database.transaction(tenant) as tx:
            key = (await create_key(tx))["key"]
        settings = Settings(database_url=ring.urls.api, prepared_statements=_prepared(kind) == "on")
        app = create_app(settings, stress.REGISTRY)
        async with opened(app), connect(app, key) as client:

            async def start(name: str) -> httpx.Response:
                body = {"workflow": "nap", "input": {}}
                return await client.post("/v1/runs", json=body, headers={"Idempotency-Key": name})

            async with _holding(narrow, ring.urls, "tenantry_api") as held:
                patient = asyncio.create_task(start("patient"))
                await waiting.until(lambda: _are_waiting(narrow, "tenantry_api"), "the request waits")
                await held[0].rollback()
                assert (await patient).status_code == 201

            async with _holding(narrow, ring.urls, "tenantry_api"):
                async with asyncio.timeout(15):
                    refused = await start("refused")
                assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
                assert int(refused.headers["Retry-After"]) > 0
                narrow_settings = DatabaseSettings(ring.urls.api, pool_timeout=1)
                async with Database(narrow_settings) as database:
                    with pytest.raises(DatabaseUnavailableError):
                        async with database.transaction(tenant) as tx:
                            await ring.kernel.dispatch(RunCancel(tenant), tx)
                assert sum((await ring.statuses()).values()) == 1

            accepted, again = await start("refused"), await start("refused")
            assert (accepted.status_code, again.status_code) == (201, 200)
            assert accepted.json()["id"] == again.json()["id"]
            assert sum((await ring.statuses()).values()) == 2


async def test_a_worker_whose_pool_is_exhausted_goes_on_when_it_has_room(
    kind: str, narrow: PgBouncer, database_urls: DatabaseUrls, tenant: Any, tmp_path: Path
) -> None:
    async with _ring(narrow, database_urls, tenant, tmp_path / "diary") as ring:
        with ring.worker(worker_concurrency="8", prepared_statements=_prepared(kind)) as worker:
            await started(worker)
            await ring.start("trio", 12, seconds=0.05)
            await ring.noted("end", 3)
            async with _holding(narrow, ring.urls, "tenantry_worker"):
                await waiting.until(lambda: "query_wait_timeout" in narrow.log, "the pooler turned somebody away", 30)
            assert await ring.all_over(60) == {"COMPLETED": 12}
            assert worker.stop() == 0
            assert "Traceback" not in worker.output, worker.output
        await ring.assert_settled_once()
        assert (await ring.events())["stage:completed"] == 36
