"""The end of a harness: its own runs go, whatever they were at, and a test's own error stays what is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import RunCreate, RunNotFoundError, StageContext
from kernel.testing import Harness
from tenancy import Database, TenantTransaction
from tests.kernel.testing.plays import begin, play
from tests.support.looking import Look
from tests.support.purging import tables_of_runs


async def waits(ctx: StageContext[Any]) -> Any:
    ctx.log("info", "begun")
    if ctx.config["asks"]:
        await ctx.step.wait_for_signal("approve", timeout="1d")
    return await ctx.step.run("write", lambda: "x" * 300_000)


@pytest.fixture
def harness(database: Database, tenant: UUID) -> Harness:
    return Harness(play(waits), database.transaction, tenant_id=tenant)


async def begun(harness: Harness, *, asks: bool, **options: Any) -> UUID:
    run = await begin(harness, config={"act": {"asks": asks}}, **options)
    await run.go()
    return run.run_id


async def rows_of(superuser: psycopg.AsyncConnection, look: Look, tenant_id: UUID) -> dict[str, set[UUID]]:
    """The runs that each table has rows of; tables without any are left out."""
    found: dict[str, set[UUID]] = {}
    for table in await tables_of_runs(superuser):
        rows = await look(f"select distinct run_id from tenantry.{table} where tenant_id = %s", tenant_id)
        if rows:
            found[table] = {row["run_id"] for row in rows}
    return found


async def test_no_row_is_left_of_its_runs_and_anothers_stay(
    harness: Harness, database: Database, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    other = Harness(play(waits), database.transaction, tenant_id=harness.tenant_id)
    others = await begun(other, asks=True, idempotency_key="others")
    before = await rows_of(superuser, look, harness.tenant_id)
    async with harness:
        suspended = await begun(harness, asks=True, tags=["x"], idempotency_key="mine")
        completed = await begun(harness, asks=False)
        pending = (await begin(harness)).run_id
        led_to = await begin(harness, config={"act": {"asks": True}}, idempotency_key="others")
        assert led_to.run_id == others
        during = await rows_of(superuser, look, harness.tenant_id)
        assert during["workflow_runs"] == {suspended, completed, pending, others}
        assert {"idempotency_keys", "job_queue", "workflow_blobs", "workflow_logs", "workflow_run_tags"} <= set(during)
    assert await rows_of(superuser, look, harness.tenant_id) == before
    await harness.close()
    assert await rows_of(superuser, look, harness.tenant_id) == before


async def test_what_is_left_is_taken_by_a_close_and_a_run_of_the_tests_own_is_not(harness: Harness) -> None:
    async with harness.transaction() as tx:
        own = (await harness.kernel.dispatch(RunCreate("play", {}), tx)).run_id
    run = await begin(harness)
    await harness.close()
    assert await harness._session.outcome(own) == "incomplete"
    with pytest.raises(RunNotFoundError):
        await run.status()
    assert await begun(harness, asks=False) != run.run_id, "a harness that was closed begins anew"


async def test_bodies_under_way_are_told_and_write_nothing_more(
    database: Database, tenant: UUID, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    at_work, told = asyncio.Event(), asyncio.Event()

    async def body(ctx: StageContext[Any]) -> str:
        at_work.set()
        await ctx.abort_signal.wait()
        told.set()
        return "too late"

    harness = Harness(play(body), database.transaction, tenant_id=tenant)
    run = await begin(harness)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(harness._session.work())
        await at_work.wait()
        await harness.close()
        await told.wait()
    assert await rows_of(superuser, look, run._session.tenant_id) == {}


@pytest.mark.parametrize("own_error", [None, AssertionError("the test's own")])
async def test_a_failure_to_close_is_a_note_on_the_tests_own_error(
    database: Database, tenant: UUID, own_error: Exception | None
) -> None:
    is_away = False

    @asynccontextmanager
    async def transaction(tenant_id: UUID) -> AsyncGenerator[TenantTransaction]:
        if is_away:
            raise ConnectionError("away")
        async with database.transaction(tenant_id) as tx:
            yield tx

    async def use() -> None:
        nonlocal is_away
        async with Harness(play(waits), transaction, tenant_id=tenant) as harness:
            await begin(harness)
            is_away = True
            if own_error is not None:
                raise own_error

    with pytest.raises(ConnectionError if own_error is None else AssertionError) as caught:
        await use()
    notes = getattr(caught.value, "__notes__", [])
    expected = [] if own_error is None else ["Runs of this harness are left in the database: ConnectionError: away"]
    assert notes == expected
