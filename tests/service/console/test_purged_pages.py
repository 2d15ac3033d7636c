"""Pages of a run that is purged while they are read: there is no such run, and no page that has nothing to show."""

import asyncio

import httpx
import psycopg
import pytest

from tests.service.console.visiting import start
from tests.support.console import SignIn
from tests.support.purging import erase
from tests.support.waiting import until_someone_blocked


# The tables whose rows a page shows: locked, they stop it between its statements.
@pytest.mark.parametrize(
    ("below", "table"),
    [
        ("", "workflow_stages"),
        ("", "workflow_steps"),
        ("", "workflow_logs"),
        ("", "outbox_events"),
        ("/stage?id=say", "workflow_annotations"),
        ("/stage?id=say", "workflow_steps"),
        ("/steps", "workflow_steps"),
        ("/logs", "workflow_logs"),
        ("/logs?stage=say", "workflow_logs"),
        ("/events", "outbox_events"),
        ("/events?kind=run", "outbox_events"),
        ("/annotations", "workflow_annotations"),
        ("/trace", "spans"),
    ],
)
async def test_a_page_of_a_run_that_is_purged_meanwhile_is_not_found(
    signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, below: str, table: str
) -> None:
    run = await start(api)
    client = await signed_in()
    # A run that was claimed: its page reads its stages.
    await superuser.execute(
        "insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, attempt, max_attempts)"
        " select tenant_id, run_id, 'say', 1, 1, 'RUNNING', 1, 1 from tenantry.workflow_runs where run_id = %s",
        (run,),
    )
    await superuser.execute(
        "update tenantry.workflow_runs set status = 'RUNNING', ready = false where run_id = %s", (run,)
    )
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        await superuser.execute(f"lock table tenantry.{table}".encode())
        reading = tasks.create_task(client.get(f"/console/runs/{run}{below}"))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        await erase(superuser, run)
    assert (reading.result().status_code, "There is no such run" in reading.result().text) == (404, True)
