"""W5, how fast the API accepts runs, and W3, how soon a run on an idle system has begun and is over."""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import orjson

from kernel import Kernel, RunCreate
from service import tenants
from service.cli.dev import WORKER_URL
from tenancy import Database, DatabaseSettings
from tests.bench.http_client import HttpClient, post
from tests.bench.meter import Meter
from tests.bench.ours import Setting, fresh_database, workers
from tests.bench.peers.protocol import gaps
from tests.bench.report import OURS, Figure
from tests.bench.servers import BenchCluster
from tests.bench.spine import NotVerifiedError, Spine
from tests.bench.workflows import REFERENCE, REGISTRY, TIMED, Work, three, timed
from tests.support.environment import DatabaseUrls
from tests.support.processes import CHECKOUT, Process, answers
from tests.support.system import free_port

CLIENTS = 16
CREATED = 201
FRAMEWORK = "framework"
APART = "API and worker apart"
TOGETHER = "API and worker in one process"
KERNEL_HERE = "kernel here, worker apart"
# What the peers' best settings for latency poll at.
QUICK_POLLS = (("TENANTRY_POLL_INTERVAL_MIN", "10ms"), ("TENANTRY_POLL_INTERVAL_MAX", "10ms"))
# From just before the request to the body's first line, p50 and p95.
START_MS = {APART: (30, 60), TOGETHER: (10, 20)}
GIVE_UP_S = 20.0
LOOK_AGAIN_S = 0.002


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from just before the request to the body's first line, and until the run is seen to be over."""

    first_line: list[float]
    over: list[float]


def accepts(cluster: BenchCluster, seconds: float) -> list[Figure]:
    """W5: `POST /v1/runs` against the framework's plain route, one process each, no worker."""
    with fresh_database(cluster) as (urls, spine):
        (owner,) = spine.add_tenants()
        key = asyncio.run(_key(urls, owner))
        request = post("/v1/runs", {"workflow": three.id, "input": {"n": 1}}, {"Authorization": f"Bearer {key}"})
        with _api(urls) as (pid, port):
            ours = _flood(cluster, spine, (urls, owner), (pid, port, request), seconds)
        plain = post("/v1/runs", {"workflow": three.id, "input": {"n": 1}})
        theirs: dict[str, Figure] = {}
        for driver in ("sqlalchemy", "psycopg"):
            with _plain(urls, owner, driver) as (pid, port):
                theirs[driver] = _flood(cluster, spine, (urls, owner), (pid, port, plain), seconds)
    label = f"1 process, {CLIENTS} connections"
    figures = [(OURS, ours), *((f"{FRAMEWORK}, {driver}", figure) for driver, figure in theirs.items())]
    return [
        Figure("W5 accepts", name, label, figure.value, cost=figure.cost, runs=figure.runs, unit="requests/s")
        for name, figure in figures
    ]


def _flood(
    cluster: BenchCluster,
    spine: Spine,
    where: tuple[DatabaseUrls, UUID],
    server: tuple[int, int, bytes],
    seconds: float,
) -> Figure:
    """Keep every connection busy and count what was answered; what was answered must be there afterwards."""
    (urls, owner), (pid, port, request) = where, server
    asyncio.run(_keep_busy(port, request, 0.5))
    meter = Meter(cluster, urls.database, [pid])
    had = spine.row("created", tenants=[owner])["runs"]
    before = meter.read()
    accepted = asyncio.run(_keep_busy(port, request, seconds))
    cost = before.until(meter.read())
    meter.close()
    kept = spine.row("created", tenants=[owner])["runs"] - had
    if kept != accepted:
        raise NotVerifiedError(f"{accepted} runs were accepted and {kept} are there")
    return Figure("", "", "", accepted / cost.seconds, cost=cost, runs=accepted)


async def _keep_busy(port: int, request: bytes, seconds: float) -> int:
    until = time.monotonic() + seconds

    async def client() -> int:
        accepted = 0
        async with HttpClient(port) as connection:
            while time.monotonic() < until:
                status, body = await connection.send(request)
                if status != CREATED:
                    raise NotVerifiedError(f"{status}: {body[:200]!r}")
                accepted += 1
        return accepted

    return sum(await asyncio.gather(*(client() for _ in range(CLIENTS))))


def idle(cluster: BenchCluster, count: int) -> list[Figure]:
    """W3: runs at random moments on an idle system: API and worker apart, in one process, and from a program's own kernel."""
    figures: list[Figure] = []
    with fresh_database(cluster) as (urls, spine):
        (owner,) = spine.add_tenants()
        key = asyncio.run(_key(urls, owner))
        with workers(urls, Setting(), spine), _api(urls) as (_, port):
            figures += _told(asyncio.run(_by_api(spine, (port, key), count)), APART)
            figures += _told(asyncio.run(_by_kernel(spine, urls, owner, count)), KERNEL_HERE)
        with _one_process(urls) as port:
            figures += _told(asyncio.run(_by_api(spine, (port, key), count)), TOGETHER)
    with fresh_database(cluster) as (urls, spine):
        (owner,) = spine.add_tenants()
        with workers(urls, Setting(environment=QUICK_POLLS), spine):
            figures += _told(asyncio.run(_by_kernel(spine, urls, owner, count)), f"{KERNEL_HERE}, poll_s 0.01")
    return figures


def writes_of_one(spine: Spine, meter: Meter, count: int, work: Work = TIMED) -> float:
    """Return the writing transactions of a run that is alone on the system, its creation by the API included."""
    (owner,) = spine.add_tenants(prefix=f"alone-{work.workflow.id}-")
    key = asyncio.run(_key(spine.urls, owner))
    with _api(spine.urls) as (_, port):
        asyncio.run(_by_api(spine, (port, key), 3, work))
        before = meter.read()
        asyncio.run(_by_api(spine, (port, key), count, work, warm_up=0))
        cost = before.until(meter.read())
    spine.verify([owner], 6 + count, work)
    return cost.writing / count


def quantiles(latencies: Sequence[float]) -> tuple[float, float]:
    """Return median and 95th percentile in milliseconds."""
    cuts = statistics.quantiles(latencies, n=20, method="inclusive")
    return cuts[9] * 1000, cuts[18] * 1000


def _told(latencies: Latencies, setting: str) -> list[Figure]:
    figures = [
        Figure(f"W3 over {name}", OURS, setting, value, unit="ms")
        for name, value in zip(("p50", "p95"), quantiles(latencies.over), strict=True)
    ]
    for name, value, most in zip(
        ("p50", "p95"), quantiles(latencies.first_line), START_MS.get(setting, (None, None)), strict=True
    ):
        where = f"start latency {name}, {setting}"
        figures.append(Figure(f"W3 first line {name}", OURS, where, value, unit="ms", budget=most))
    return figures


async def _by_api(
    spine: Spine, where: tuple[int, str], count: int, work: Work = TIMED, *, warm_up: int = 3
) -> Latencies:
    port, key = where
    body = {"workflow": work.workflow.id, "input": {"n": 1}}
    request = post("/v1/runs", body, {"Authorization": f"Bearer {key}"})
    latencies = Latencies([], [])
    async with HttpClient(port) as connection:
        for gap in (*[0.2] * warm_up, *gaps(count)):
            await asyncio.sleep(gap)
            began = time.time()
            status, answer = await connection.send(request)
            if status != CREATED:
                raise NotVerifiedError(f"{status}: {answer[:200]!r}")
            await _see_it_over(spine, UUID(orjson.loads(answer)["id"]), began, latencies, work)
    return Latencies(latencies.first_line[warm_up:], latencies.over[warm_up:])


async def _by_kernel(spine: Spine, urls: DatabaseUrls, owner: UUID, count: int) -> Latencies:
    kernel, latencies = Kernel(REGISTRY), Latencies([], [])
    async with Database(DatabaseSettings(urls.worker, pool_size=1)) as database:
        for gap in (*[0.2] * 3, *gaps(count)):
            await asyncio.sleep(gap)
            began = time.time()
            async with database.transaction(owner) as tx:
                created = await kernel.dispatch(RunCreate(timed.id, {"n": 1}), tx)
            await _see_it_over(spine, created.run_id, began, latencies)
    return Latencies(latencies.first_line[3:], latencies.over[3:])


async def _see_it_over(spine: Spine, run_id: UUID, began: float, latencies: Latencies, work: Work = TIMED) -> None:
    """Look every 2 ms, as the peers' scripts do, until the run is over."""
    while not (rows := spine.rows("latency", run_id=run_id)):
        if time.time() - began > GIVE_UP_S:
            raise NotVerifiedError(f"not over after {GIVE_UP_S:g} s")
        await asyncio.sleep(LOOK_AGAIN_S)
    latencies.over.append(time.time() - began)
    latencies.first_line.append(rows[0]["first_line_at"] - began)
    if rows[0]["n"] != work.factor + work.shift:
        raise NotVerifiedError(f"the output is {rows[0]['n']}")


async def _key(urls: DatabaseUrls, tenant_id: UUID) -> str:
    async with Database(DatabaseSettings(urls.admin, pool_size=1)) as database, database.transaction(tenant_id) as tx:
        created = await tenants.create_key(tx, name="bench")
    return str(created["key"])


@contextmanager
def _api(urls: DatabaseUrls) -> Iterator[tuple[int, int]]:
    port = free_port()
    environment = {**urls.environment("api"), "TENANTRY_WORKFLOWS": REFERENCE, "TENANTRY_PORT": str(port)}
    with Process("api", environment=environment) as process:
        _await_ready(port, "/readyz")
        yield process.pid, port
        process.stop()


@contextmanager
def _one_process(urls: DatabaseUrls) -> Iterator[int]:
    """API and worker in one process, as `tenantry dev` has them."""
    port = free_port()
    environment = {
        **urls.environment("worker"),
        "TENANTRY_DATABASE_URL": urls.api,
        WORKER_URL: urls.worker,
        "TENANTRY_WORKFLOWS": REFERENCE,
        "TENANTRY_PORT": str(port),
    }
    with _python("service.dev", environment=environment):
        _await_ready(port, "/readyz")
        yield port


@contextmanager
def _plain(urls: DatabaseUrls, tenant_id: UUID, driver: str) -> Iterator[tuple[int, int]]:
    port = free_port()
    with _python("tests.bench.plain_route", str(port), urls.api, str(tenant_id), driver) as pid:
        _await_ready(port, None)
        yield pid, port


@contextmanager
def _python(module: str, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[int]:
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_ready(port: int, path: str | None) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if answers(f"http://127.0.0.1:{port}{path}") if path else _listens(port):
            return
        time.sleep(0.05)
    raise NotVerifiedError(f"nobody answers on port {port}")


def _listens(port: int) -> bool:
    try:
        asyncio.run(_touch(port))
    except OSError:
        return False
    return True


async def _touch(port: int) -> None:
    async with HttpClient(port):
        pass
