"""What the dispatcher finds, read as the scheduler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from kernel import JobHeartbeat, KernelLimits, LeaseReapStale, StageContext, WorkerTick
from kernel.lanes import Look
from service.worker.dispatcher import PAGE, Dispatcher, DueTenant
from service.worker.floors import FloorMemory
from tenancy import Database, DatabaseSettings
from tests.support import stress
from tests.support.arena import Arena
from tests.support.stagehand import Stagehand

NAP = ("nap", dict(stress.REGISTRY.served)["nap"])
LAST = UUID("fffffffe-0000-4000-8000-000000000000")


@asynccontextmanager
async def asking(ring: Arena) -> AsyncIterator[Dispatcher]:
    async with Database(DatabaseSettings(ring.urls.dispatcher)) as database:
        yield Dispatcher(database, stress.REGISTRY, KernelLimits())


async def floor(ring: Arena, tenant_id: UUID, *, later: timedelta = timedelta(0)) -> dict[str, Any]:
    """The highest rank of a tenant's runs, and later, as the floor of its lane."""
    (row,) = await ring.rows(
        "select max(rank) as rank from tenantry.workflow_runs where tenant_id = %(one)s", one=tenant_id
    )
    lane = {"is_job": False, "tenant_id": tenant_id, "workflow_id": NAP[0], "version": NAP[1]}
    return {**lane, "floors": {"5": row["rank"] + later}}


def found(due: list[DueTenant], *tenants: UUID) -> set[UUID]:
    """Which of the tenants were found; the module's other tests have tenants in the same database."""
    return {tenant.tenant_id for tenant in due} & set(tenants)


async def test_a_due_tenant_comes_with_the_pairs_that_have_work(ring: Arena) -> None:
    await ring.start("nap")
    async with asking(ring) as dispatcher:
        (due,) = [tenant for tenant in await dispatcher.due() if tenant.tenant_id == ring.tenant_id]
    assert (due.is_ready, due.is_waiting, due.jobs, due.runs) == (True, False, (), (NAP,))


async def test_a_tick_asks_only_for_the_pairs_that_are_due_unless_it_makes_rows_ready(ring: Arena) -> None:
    await ring.start("nap")
    memory = FloorMemory()
    async with asking(ring) as dispatcher:
        await memory.due(dispatcher, 0.0)
    aimed = memory.aim(WorkerTick("worker", 1, reap=False, promote=False), ring.tenant_id)
    assert (aimed.job_lanes, aimed.run_lanes) == (Look(()), Look((NAP,)))
    for tick in (WorkerTick("worker", 1, reap=False), WorkerTick("worker", 1, promote=False)):
        aimed = memory.aim(tick, ring.tenant_id)
        assert (aimed.job_lanes, aimed.run_lanes) == (Look(), Look())


async def test_a_tenant_with_floors_is_probed_from_there_and_the_others_are_walked(
    ring: Arena, other_tenant: UUID
) -> None:
    tenants = (ring.tenant_id, other_tenant)
    for tenant_id in tenants:
        await ring.start("nap", tenant_id=tenant_id)
    async with asking(ring) as dispatcher:
        for floored, other in (tenants, tenants[::-1]):
            exactly = [await floor(ring, floored)]
            beyond = [await floor(ring, floored, later=timedelta(microseconds=1))]
            assert found(await dispatcher.due(), *tenants) == set(tenants)
            assert found(await dispatcher.due(exactly), *tenants) == set(tenants)
            assert found(await dispatcher.due(beyond), *tenants) == {other}
            # Another priority is another lane.
            await ring.start("nap", tenant_id=floored, priority=6)
            assert found(await dispatcher.due(beyond), *tenants) == set(tenants)


async def test_a_tenant_that_is_probed_does_not_move_the_page(ring: Arena) -> None:
    await ring.rows(
        "insert into tenantry.tenants (tenant_id, slug, name) values (%(one)s, 'z', 'z') returning 1", one=LAST
    )
    await ring.start("nap", tenant_id=LAST)
    crowd = await ring.rows(
        "insert into tenantry.workflow_runs"
        " (tenant_id, workflow_id, version, rank, ready, available_at, input, event_sequence)"
        " select gen_random_uuid(), %(workflow)s, %(version)s, now(), true, now(), '{}', 1"
        " from generate_series(1, %(number)s) returning tenant_id",
        workflow=NAP[0],
        version=NAP[1],
        number=PAGE + 20,
    )
    tenants = [row["tenant_id"] for row in crowd]
    try:
        async with asking(ring) as dispatcher:
            floors = [await floor(ring, LAST)]
            pages = [found(await dispatcher.due(floors), *tenants, LAST) for _ in range(2)]
    finally:
        await ring.rows(
            "delete from tenantry.workflow_runs where tenant_id = any(%(all)s) returning 1", all=[*tenants, LAST]
        )
    assert [LAST in page for page in pages] == [True, True]
    assert pages[0] | pages[1] == {*tenants, LAST}


async def test_a_lapsed_lease_is_found_among_more_than_a_page_of_its_tenants(ring: Arena) -> None:
    (run_id,) = await ring.start("nap")
    await ring.rows(
        "insert into tenantry.job_queue (tenant_id, run_id, stage_id, workflow_id, version, status, ready, rank,"
        " available_at, attempt, max_attempts, worker_id, locked_at, started_at)"
        " select %(tenant)s, case number when 1200 then %(run)s else gen_random_uuid() end, 'one', 'nap', 'v', 'RUNNING',"
        " false, now(), now(), 1, 3, 'w', case number when 1200 then now() - interval '1 hour' else now() end, now()"
        " from generate_series(1, 1200) as number returning 1",
        run=run_id,
    )
    limits = KernelLimits(stale_lease_threshold=timedelta(minutes=5), job_absolute_timeout=timedelta(0))
    async with Database(DatabaseSettings(ring.urls.dispatcher)) as database:
        assert await Dispatcher(database, stress.REGISTRY, limits).lapsed() == [ring.tenant_id]


async def test_a_dead_workers_replay_is_found_as_soon_as_its_next_poll_has_passed(
    ring: Arena, database: Database
) -> None:
    """Not only when its lease is stale, four minutes later: a tenant may have nothing else that is due."""

    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.wait_for_signal("approve", timeout="1h")

    hand = Stagehand(database, ring.tenant_id, body)
    hand.clock.advance(seconds=-70)
    run_id = await hand.start()
    await hand.go()
    await hand.signal(run_id, "approve", "yes")
    job = await hand.lease()

    async with asking(ring) as dispatcher:
        assert await _has_lapsed(dispatcher, ring.tenant_id)
        async with hand.transaction(timedelta(seconds=-30)) as tx:
            await hand.kernel.dispatch(JobHeartbeat([job.fence]), tx)
        assert not await _has_lapsed(dispatcher, ring.tenant_id), "its worker has beaten since"
        async with hand.transaction(timedelta(0)) as tx:
            assert (await hand.kernel.dispatch(LeaseReapStale(), tx)).leases == ()


async def _has_lapsed(dispatcher: Dispatcher, tenant_id: UUID) -> bool:
    """Look through two pages: the leases of another test's tenant fill one."""
    return tenant_id in [*await dispatcher.lapsed(), *await dispatcher.lapsed()]
