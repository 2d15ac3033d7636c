"""Tenants beside each other: a saturated one delays nobody, and weights hold."""

import asyncio
import time
from collections import Counter
from uuid import UUID

from tests.support import factories
from tests.support.arena import Arena
from tests.support.hosts import running, settings


async def test_ten_thousand_jobs_of_a_capped_tenant_delay_nobody(ring: Arena, other_tenant: UUID) -> None:
    await factories.limit_tenant(ring.superuser, ring.tenant_id, running_jobs=4)
    (run_id,) = await ring.start("nap", seconds=60)
    await ring.rows(
        "insert into tenantry.workflow_runs select (jsonb_populate_record(run, jsonb_build_object("
        "'run_id', gen_random_uuid()))).* from tenantry.workflow_runs as run, generate_series(1, 10000)"
        " where run.run_id = %(run)s returning 1",
        run=run_id,
    )
    async with running(settings(ring.urls, worker_concurrency=16)):
        await ring.noted("start", 4)
        await asyncio.sleep(0.5)
        for _ in range(3):
            before = len(ring.notes("start"))
            began = time.monotonic()
            await ring.start("nap", tenant_id=other_tenant)
            await ring.noted("start", before + 1)
            assert time.monotonic() - began < 0.4
        assert len(await ring.leases()) == 4
    await factories.set_tenant_status(ring.superuser, ring.tenant_id, "suspended")


async def test_weights_share_the_slots(ring: Arena) -> None:
    heavy = await factories.create_tenant(ring.superuser, weight=3)
    await ring.start("nap", 400, seconds=0.1, tenant_id=heavy)
    await ring.start("nap", 400, seconds=0.1)
    async with running(settings(ring.urls, worker_concurrency=8)):
        await ring.noted("start", 280)
    runs = await ring.rows("select tenant_id, run_id from tenantry.workflow_runs")
    of = {str(run["run_id"]): run["tenant_id"] for run in runs}
    shares = Counter(of[note[0]] for note in ring.notes("start")[:280])
    assert 0.66 < shares[heavy] / 280 < 0.84, shares
