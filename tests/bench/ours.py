"""W1, W2 and W4 of the product: real worker processes, through PgBouncer, under row-level security."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import uvloop

from kernel import Kernel, RunCreate
from tenancy import Database, DatabaseSettings, load_sql
from tests.bench.meter import Meter
from tests.bench.report import OURS, Figure
from tests.bench.servers import BenchCluster
from tests.bench.spine import NotVerifiedError, Spine
from tests.bench.workflows import REFERENCE, REGISTRY, THREE, Work
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process, answers
from tests.support.system import free_port

SQL = load_sql(__file__)
WARM_UP = 128
DRAIN_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How the workers run. `live_batch`: runs created in one transaction, by `live_clients` at a time.

    `live_by_sql`: created by `tenantry.enqueue()`, a statement for all runs of the transaction.
    """

    processes: int = 1
    concurrency: int = 64
    live_batch: int = 1
    live_clients: int = 8
    live_by_sql: bool = False
    environment: tuple[tuple[str, str], ...] = field(default=())

    @property
    def label(self) -> str:
        extra = "".join(f", {name.removeprefix('TENANTRY_').lower()} {value}" for name, value in self.environment)
        return f"{self.processes} x concurrency {self.concurrency}{extra}"


@contextmanager
def workers(urls: DatabaseUrls, setting: Setting, spine: Spine) -> Iterator[list[int]]:
    """Start the worker processes, let them do some runs of a tenant of their own, and yield their pids."""
    with ExitStack() as stack:
        started: list[tuple[Process, int]] = []
        for _ in range(setting.processes):
            port = free_port()
            environment = {
                **urls.environment("worker"),
                "TENANTRY_WORKFLOWS": REFERENCE,
                "TENANTRY_WORKER_CONCURRENCY": str(setting.concurrency),
                "TENANTRY_WORKER_HTTP_PORT": str(port),
                **dict(setting.environment),
            }
            started.append((stack.enter_context(Process("worker", environment=environment)), port))
        deadline = time.monotonic() + 60
        for process, port in started:
            while not answers(f"http://127.0.0.1:{port}/readyz"):
                if not process.is_running or time.monotonic() > deadline:
                    raise NotVerifiedError(f"a worker did not get ready: {process.output[-800:]}")
                time.sleep(0.05)
        _warm_up(spine, THREE)
        yield [process.pid for process, _ in started]
        for process, _ in started:
            if not process.is_running:
                raise NotVerifiedError(f"a worker ended by itself: {process.output[-800:]}")
            process.stop()


def _warm_up(spine: Spine, work: Work) -> None:
    warm = spine.add_tenants(prefix=f"warm-{work.workflow.id}-")
    spine.add_runs(warm, WARM_UP, work)
    spine.await_end(warm, 60)


def backlog(cluster: BenchCluster, setting: Setting, count: int, work: Work = THREE) -> Figure:
    """W1, W2: runs that appear all at once; from the first start to the last completion."""
    with fresh_database(cluster) as (urls, spine), workers(urls, setting, spine) as pids:
        if work is not THREE:
            _warm_up(spine, work)
        owners = spine.add_tenants()
        meter = Meter(cluster, urls.database, pids)
        with spine.connection.transaction():
            spine.add_runs(owners, count, work)
            before = meter.read()
        spine.await_end(owners, DRAIN_LIMIT_S)
        cost = before.until(meter.read())
        meter.close()
        spine.verify(owners, count, work)
        rate = count / spine.seconds(owners, count, since="started_at")
    return Figure(f"{work.title} backlog", OURS, setting.label, rate, cost=cost, runs=count)


def live(cluster: BenchCluster, setting: Setting, count: int) -> Figure:
    """W1: workers idle, runs created while they work; from the first creation to the last completion."""
    with fresh_database(cluster) as (urls, spine), workers(urls, setting, spine) as pids:
        owners = spine.add_tenants()
        meter = Meter(cluster, urls.database, [*pids, os.getpid()])
        before = meter.read()
        uvloop.run(create_runs(urls, owners[0], count, setting))
        spine.await_end(owners, DRAIN_LIMIT_S)
        cost = before.until(meter.read())
        meter.close()
        spine.verify(owners, count)
        rate = count / spine.seconds(owners, count, since="created_at")
    how = " by SQL" if setting.live_by_sql else ""
    label = f"{setting.label}, {setting.live_clients} clients x {setting.live_batch} a tx{how}"
    return Figure("W1 live", OURS, label, rate, cost=cost, runs=count)


def deep(cluster: BenchCluster, setting: Setting, depth: int, first: int) -> list[Figure]:
    """W4: the first runs of a deep backlog against as many runs of an empty queue."""
    with fresh_database(cluster) as (urls, spine), workers(urls, setting, spine) as pids:
        owners = spine.add_tenants()
        meter = Meter(cluster, urls.database, pids)
        with spine.connection.transaction():
            spine.add_runs(owners, depth)
            before, settled = meter.read(), spine.row("settled_jobs")["deleted"]
        _await_settled(spine, settled + first * THREE.stages)
        cost = before.until(meter.read())
        done = spine.row("span", tenants=owners, first=depth)["completed"]
        meter.close()
        spine.verify(owners, first, at_least=True)
        rate = first / spine.seconds(owners, first, since="started_at")
    flat = backlog(cluster, setting, first)
    label = f"{setting.label}, first {first:,} of "
    return [
        Figure("W4 deep backlog", OURS, f"{label}{depth:,}", rate, cost=cost, runs=done),
        Figure("W4 empty queue", OURS, f"{label}{first:,}", flat.value, cost=flat.cost, runs=first),
    ]


async def create_runs(urls: DatabaseUrls, tenant_id: UUID, count: int, setting: Setting) -> None:
    """Create runs as an application does that has the kernel in its process: several at a time, batched or not."""
    kernel = Kernel(REGISTRY)
    numbers = iter(range(1, count + 1))

    async def client(database: Database) -> None:
        while batch := [number for _, number in zip(range(setting.live_batch), numbers, strict=False)]:
            async with database.transaction(tenant_id) as tx:
                if setting.live_by_sql:
                    await tx.fetch_all(SQL["enqueue"], version=THREE.workflow.definition_version, numbers=batch)
                    continue
                for number in batch:
                    await kernel.dispatch(RunCreate("three", {"n": number}), tx)

    async with (
        Database(DatabaseSettings(urls.worker, pool_size=setting.live_clients)) as database,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(setting.live_clients):
            tasks.create_task(client(database))


def _await_settled(spine: Spine, jobs: int) -> None:
    deadline = time.monotonic() + DRAIN_LIMIT_S
    while spine.row("settled_jobs")["deleted"] < jobs:
        if time.monotonic() > deadline:
            raise NotVerifiedError(f"not drained after {DRAIN_LIMIT_S:g} s")
        time.sleep(0.2)


@contextmanager
def fresh_database(cluster: BenchCluster) -> Iterator[tuple[DatabaseUrls, Spine]]:
    """Yield a migrated database of a measurement, dropped afterwards, with a look into it."""
    urls = cluster.create()
    try:
        with Spine(urls) as spine:
            spine.connection.execute("checkpoint")
            yield urls, spine
    finally:
        cluster.drop(urls)
