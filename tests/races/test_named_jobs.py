"""Jobs that a caller names, against a tenant's cap: counted under its claim lock where others see the lease."""

import asyncio
from uuid import UUID

import psycopg
import pytest

from kernel import JobExecute, LeasedJob, RateLimitedError, RunClaimPending, TenantSuspendedError, claim_named
from tests.races.test_lock_first import holding
from tests.support import factories
from tests.support.looking import Look
from tests.support.waiting import until_someone_blocked
from tests.support.workflows import HandWorker


async def queued(hand: HandWorker, number: int) -> list[UUID]:
    """Runs whose first job nobody has leased yet."""
    run_ids = [await hand.create("single", n) for n in range(number)]
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunClaimPending("hand"), tx)
    return run_ids


async def test_a_cap_of_one_holds_against_two_jobs_that_are_named_at_once(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    first, second = await queued(hand, 2)
    await factories.limit_tenant(superuser, hand.tenant_id, running_jobs=1)

    async def claim() -> object:
        async with hand.transaction() as tx:
            return await claim_named(JobExecute(second, "first"), "second", tx, hand.kernel.scope)

    async with asyncio.timeout(20), holding(hand) as (tx, pid):
        taken = await claim_named(JobExecute(first, "first"), "first", tx, hand.kernel.scope)
        assert isinstance(taken, LeasedJob)
        other = asyncio.create_task(claim())
        await until_someone_blocked(superuser, by=pid)
        async with asyncio.timeout(5):
            assert await hand.tick() == (), "a tick waits for nobody"
    with pytest.raises(RateLimitedError):
        await other
    running = await look(
        "select worker_id from tenantry.job_queue where tenant_id = %s and status = 'RUNNING'", hand.tenant_id
    )
    assert running == [{"worker_id": "first"}]
    await hand.settle(taken)
    assert isinstance(await claim(), LeasedJob)


async def test_a_job_in_a_callers_transaction_keeps_no_worker_from_claiming(
    hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    first, second = await queued(hand, 2)
    await factories.limit_tenant(superuser, hand.tenant_id, running_jobs=1)
    async with holding(hand) as (tx, _pid):
        assert (await hand.kernel.dispatch(JobExecute(first, "first"), tx)).outcome == "completed"
        async with asyncio.timeout(5):
            (leased,) = await hand.tick()
    assert leased.run_id == second


@pytest.mark.parametrize("why", ["suspended", "capped"])
async def test_a_callers_transaction_is_refused_what_may_not_run_and_stays_usable(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look, why: str
) -> None:
    run_ids = await queued(hand, 2)
    if why == "suspended":
        await factories.set_tenant_status(superuser, hand.tenant_id, "suspended")
    else:
        await factories.limit_tenant(superuser, hand.tenant_id, running_jobs=1)
        (leased,) = await hand.tick()
        run_ids.remove(leased.run_id)
    async with hand.transaction() as tx:
        with pytest.raises(TenantSuspendedError if why == "suspended" else RateLimitedError):
            await hand.kernel.dispatch(JobExecute(run_ids[0], "first"), tx)
        completion = await hand.kernel.bound_to(tx).run_to_completion(run_ids[0])
    assert (completion.outcome, completion.jobs_processed) == ("incomplete", 0)
    (job,) = await look("select status, attempt from tenantry.job_queue where run_id = %s", run_ids[0])
    assert job == {"status": "PENDING", "attempt": 0}
