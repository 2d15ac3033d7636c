"""The one-shot entry points: what a function that is started for one call does, and over HTTP."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from kernel import (
    JobNotAvailableError,
    Kernel,
    KernelLimits,
    Registry,
    RunClaimPending,
    RunCreate,
    StageContext,
    stage,
    workflow,
)
from kernel.queries.run_get import run_get
from service.serverless import Serverless
from service.serverless_app import ServerlessApp
from tenancy import Database, DatabaseSettings
from tests.support.environment import DatabaseUrls
from tests.support.factories import limit_tenant, set_tenant_status
from tests.support.waiting import until, until_someone_blocked
from tests.support.workflows import REGISTRY as NUMBERS
from tests.support.workflows import HandWorker

TOKEN = "a-token-for-tests"


@pytest.fixture
def entry(database_urls: DatabaseUrls) -> Serverless:
    return Serverless(NUMBERS, DatabaseSettings(database_urls.worker, pool_size=2))


@pytest.fixture
def hand(database: Database, tenant: UUID) -> HandWorker:
    return HandWorker(database, tenant)


async def test_available_jobs_are_started_and_executed_to_the_end(entry: Serverless, hand: HandWorker) -> None:
    runs = [await hand.create("chain", n) for n in range(3)]
    processed = await entry.process_available_jobs(hand.tenant_id, 100)
    assert (processed.jobs, processed.outcomes["completed"], processed.has_more) == (9, 9, False)
    assert await _statuses(hand, runs) == {"COMPLETED"}
    assert (await entry.process_available_jobs(hand.tenant_id)).jobs == 0


async def test_it_stops_at_its_bound_and_goes_on_with_the_next_call(entry: Serverless, hand: HandWorker) -> None:
    runs = [await hand.create("chain", n) for n in range(2)]
    first = await entry.process_available_jobs(hand.tenant_id, 4)
    assert (first.jobs, first.has_more) == (4, True)
    assert (await entry.process_available_jobs(hand.tenant_id, 4)).jobs == 2
    assert await _statuses(hand, runs) == {"COMPLETED"}


async def test_one_named_job_is_executed_once(entry: Serverless, hand: HandWorker) -> None:
    run_id = await hand.create("single", 1)
    early = await entry.handle_job(hand.tenant_id, run_id, "first")
    assert (early.ghost, early.ghost_reason) == (True, "race")
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunClaimPending("hand"), tx)
    done = await entry.handle_job(hand.tenant_id, run_id, "first")
    assert (done.outcome, done.output) == ("completed", {"n": 2})
    again = await entry.handle_job(hand.tenant_id, run_id, "first")
    assert (again.ghost, again.ghost_reason) == (True, "orphan")


async def test_a_leased_job_is_not_taken(entry: Serverless, hand: HandWorker) -> None:
    run_id = await hand.create("chain", 1)
    await hand.tick()
    with pytest.raises(JobNotAvailableError):
        await entry.handle_job(hand.tenant_id, run_id, "first")


async def test_a_named_job_of_a_suspended_tenant_or_beyond_its_cap_waits(
    entry: Serverless, hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run_ids = [await hand.create("single", n) for n in range(2)]
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunClaimPending("hand"), tx)
    job = {"tenant_id": str(hand.tenant_id), "run_id": str(run_ids[0]), "stage_id": "first"}
    transport = httpx.ASGITransport(app=ServerlessApp(entry, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://functions", headers=headers) as client:
        await set_tenant_status(superuser, hand.tenant_id, "suspended")
        refused = await client.post("/jobs", json=job)
        assert (refused.status_code, refused.json()["code"]) == (403, "tenant_suspended")
        await set_tenant_status(superuser, hand.tenant_id, "active")
        await limit_tenant(superuser, hand.tenant_id, running_jobs=1)
        (leased,) = await hand.tick()
        job["run_id"] = str(next(run_id for run_id in run_ids if run_id != leased.run_id))
        refused = await client.post("/jobs", json=job)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        await hand.settle(leased)
        assert (await client.post("/jobs", json=job)).json()["outcome"] == "completed"


async def test_a_run_is_brought_to_its_end_in_one_transaction(entry: Serverless, hand: HandWorker) -> None:
    run_id = await hand.create("chain", 1)
    assert (await entry.run_to_completion(hand.tenant_id, run_id)).outcome == "completed"


async def test_a_body_longer_than_the_lease_keeps_it(database_urls: DatabaseUrls, hand: HandWorker) -> None:
    @stage("slow")
    async def slow(ctx: StageContext) -> str:
        # Twice the lease: what is shown is that it is kept alive meanwhile.
        await asyncio.sleep(1.2)
        return "done"

    registry = Registry([workflow("slow", input=dict[str, Any]).pipe(slow).build()])
    limits = KernelLimits(stale_lease_threshold=timedelta(seconds=0.6))
    entry = Serverless(registry, DatabaseSettings(database_urls.worker, pool_size=2), limits)
    async with hand.transaction() as tx:
        await Kernel(registry).dispatch(RunCreate("slow", {}), tx)
    working = asyncio.create_task(entry.process_available_jobs(hand.tenant_id))
    reaped = 0
    while not working.done():
        await asyncio.sleep(0.1)
        reaped += (await entry.run_maintenance_tick(hand.tenant_id)).reaped
    assert ((await working).outcomes, reaped) == ({"completed": 1}, 0)


async def test_a_heartbeat_that_fails_is_not_the_last(
    database_urls: DatabaseUrls, hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    """Whatever it fails with: a statement that the server ends is no loss of the connection."""
    begun, is_over = asyncio.Event(), asyncio.Event()

    @stage("long")
    async def long(ctx: StageContext) -> str:
        begun.set()
        await is_over.wait()
        return "done"

    registry = Registry([workflow("long", input=dict[str, Any]).pipe(long).build()])
    # A beat is a tenth of this.
    limits = KernelLimits(stale_lease_threshold=timedelta(seconds=1))
    entry = Serverless(registry, DatabaseSettings(database_urls.worker, pool_size=2), limits)
    async with hand.transaction() as tx:
        await Kernel(registry).dispatch(RunCreate("long", {}), tx)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        working = tasks.create_task(entry.process_available_jobs(hand.tenant_id))
        await begun.wait()
        async with superuser.transaction():
            await superuser.execute("lock table tenantry.job_queue in access exclusive mode")
            await until_someone_blocked(superuser, by=superuser.info.backend_pid)
            ended = await superuser.execute(
                "select pg_cancel_backend(pid), clock_timestamp() from pg_stat_activity"
                " where pg_backend_pid() = any(pg_blocking_pids(pid))"
            )
            (at,) = [row[1] for row in await ended.fetchall()]

        async def has_beaten() -> bool:
            beaten = await superuser.execute(
                "select from tenantry.job_queue where tenant_id = %s and locked_at > %s", (hand.tenant_id, at)
            )
            return beaten.rowcount > 0

        await until(has_beaten, "another heartbeat")
        is_over.set()
    assert working.result().outcomes == {"completed": 1}


async def test_maintenance_takes_back_what_a_killed_call_left(entry: Serverless, hand: HandWorker) -> None:
    await hand.create("single", 1)
    await hand.tick()
    quick = Serverless(NUMBERS, entry.settings, KernelLimits(stale_lease_threshold=timedelta(microseconds=1)))
    assert (await quick.run_maintenance_tick(hand.tenant_id)).reaped == 1
    assert (await entry.process_available_jobs(hand.tenant_id)).outcomes == {"completed": 1}


async def test_over_http_with_a_token(entry: Serverless, hand: HandWorker) -> None:
    run_id = await hand.create("chain", 1)
    transport = httpx.ASGITransport(app=ServerlessApp(entry, TOKEN))
    tenant = {"tenant_id": str(hand.tenant_id)}
    async with httpx.AsyncClient(transport=transport, base_url="http://functions") as client:
        assert (await client.post("/available-jobs", json=tenant)).status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        done = await client.post("/available-jobs", json={**tenant, "max_jobs": 2})
        assert (done.status_code, done.json()["jobs"], done.json()["has_more"]) == (200, 2, True)
        told = await client.post("/runs", json={**tenant, "run_id": str(run_id)})
        assert told.json()["outcome"] == "completed"
        assert (await client.post("/maintenance", json=tenant)).json()["reaped"] == 0
        wrong = await client.post("/jobs", json={**tenant, "run_id": "x", "more": 1})
        assert wrong.status_code == 422
        assert {error["pointer"] for error in wrong.json()["errors"]} == {"/run_id", "/stage_id", "/more"}
        assert (await client.post("/maintenance", content=b"{")).status_code == 400
        assert (await client.get("/maintenance")).status_code == 405
        assert (await client.post("/elsewhere", json=tenant)).status_code == 404
    with pytest.raises(ValueError, match="token"):
        ServerlessApp(entry, "")


async def _statuses(hand: HandWorker, runs: list[UUID]) -> set[str]:
    async with hand.transaction() as tx:
        found = [await run_get(tx, run_id) for run_id in runs]
    return {str(run.summary.status) for run in found if run is not None}
