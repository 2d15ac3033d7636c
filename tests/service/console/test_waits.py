"""Why a run waits, on its page: in line for a moment, or left by all workers."""

from uuid import UUID

import httpx
import psycopg

from service.console.words import LEFT, REASONS, WaitReason
from tenancy import Database
from tests.service.console.visiting import start
from tests.support.console import REGISTRY, SignIn
from tests.support.workflows import HandWorker


async def test_a_run_that_is_due_and_that_no_worker_takes_says_so(
    signed_in: SignIn, api: httpx.AsyncClient, database: Database, tenant: UUID, superuser: psycopg.AsyncConnection
) -> None:
    client = await signed_in()
    run_ids = [await start(api) for _ in range(2)]

    async def pages() -> list[str]:
        return [(await client.get(f"/console/runs/{run_id}")).text for run_id in run_ids]

    assert [REASONS[WaitReason.PRIORITY] in page for page in await pages()] == [True, True]
    await superuser.execute(
        "update tenantry.workflow_runs set available_at = available_at - interval '1 minute' where tenant_id = %s",
        (tenant,),
    )
    assert [LEFT in page for page in await pages()] == [True, True]
    (job,) = await HandWorker(database, tenant, REGISTRY).tick(limit=1)
    at_work = run_ids.index(str(job.run_id))
    behind = (await pages())[1 - at_work]
    assert (LEFT in behind, REASONS[WaitReason.PRIORITY] in behind) == (False, True)
