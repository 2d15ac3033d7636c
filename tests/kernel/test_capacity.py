"""Every command that leases of itself keeps to the tenant's standing and to its cap on running jobs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from kernel import JobClaim, RunClaimPending, StageContext, StagePollSuspended, stage, workflow
from kernel.testing import Harness
from tenancy import Database, TenantTransaction
from tests.support import factories


@stage("act")
async def act(ctx: StageContext) -> Any:
    return await ctx.step.wait_for_signal("go", timeout="1d")


PLAY = workflow("play", input=dict).pipe(act).build()
Lease = Callable[[Harness, TenantTransaction], Awaitable[int]]


async def claim(harness: Harness, tx: TenantTransaction) -> int:
    return len((await harness.kernel.dispatch(JobClaim("worker"), tx)).leased)


async def poll(harness: Harness, tx: TenantTransaction) -> int:
    return len((await harness.kernel.dispatch(StagePollSuspended("worker"), tx)).claimed)


async def due(database: Database, superuser: psycopg.AsyncConnection, lease: Lease) -> Harness:
    """Return a harness with three runs whose job is due: their first, or the replay of a stage that was signalled."""
    tenant_id = await factories.create_tenant(superuser)
    harness = Harness(PLAY, database.transaction, tenant_id=tenant_id)
    runs = [await harness.start("play", {}) for _ in range(3)]
    if lease is claim:
        async with harness.transaction() as tx:
            await harness.kernel.dispatch(RunClaimPending("worker"), tx)
        return harness
    await runs[0].go()
    for run in runs:
        await run.signal("act", "go")
    return harness


async def lease_once(harness: Harness, lease: Lease) -> int:
    async with harness.transaction() as tx:
        return await lease(harness, tx)


@pytest.mark.parametrize("lease", [claim, poll])
async def test_a_suspended_tenants_jobs_stay_where_they_are(
    database: Database, superuser: psycopg.AsyncConnection, lease: Lease
) -> None:
    harness = await due(database, superuser, lease)
    await factories.set_tenant_status(superuser, harness.tenant_id, "suspended")
    assert await lease_once(harness, lease) == 0
    await factories.set_tenant_status(superuser, harness.tenant_id, "active")
    assert await lease_once(harness, lease) == 3


@pytest.mark.parametrize("lease", [claim, poll])
async def test_a_cap_of_two_is_claimed_up_to_and_by_one_at_a_time(
    database: Database, superuser: psycopg.AsyncConnection, lease: Lease
) -> None:
    harness = await due(database, superuser, lease)
    await factories.limit_tenant(superuser, harness.tenant_id, running_jobs=2)
    async with harness.transaction() as tx:
        assert await lease(harness, tx) == 2
        async with asyncio.timeout(5):
            assert await lease_once(harness, lease) == 0, "who claims meanwhile waits for nobody"
    assert await lease_once(harness, lease) == 0
    await factories.limit_tenant(superuser, harness.tenant_id, running_jobs=None)
    assert await lease_once(harness, lease) == 1
