"""What the dispatcher finds, read as the scheduler."""

from datetime import timedelta

from kernel import KernelLimits
from service.worker.dispatcher import Dispatcher
from tenancy import Database, DatabaseSettings
from tests.support import stress
from tests.support.arena import Arena


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
