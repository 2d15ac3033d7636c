"""The harness that users test their workflows with: runs to their end, what they tell, whose transactions they take."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from kernel import (
    Registry,
    RunNotFoundError,
    RunStatus,
    StageContext,
    Terminal,
    UnknownWorkflowError,
    stage,
    workflow,
)
from kernel.testing import Harness, HarnessRun
from tenancy import Database, TenantTransaction, bind
from tenancy.pools import sqlalchemy_url
from tests.kernel.testing.plays import Make, Sum, begin, play, ten_steps
from tests.support.environment import DatabaseUrls


async def test_a_run_goes_to_its_end_and_tells_everything(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return {"total": await ctx.step.run("add", lambda: 3)}

    harness = make(body)
    run = await begin(harness)
    assert await run.status() is RunStatus.PENDING
    assert await run.output() is None
    assert await run.go() == "completed"
    assert await run.status() is RunStatus.COMPLETED
    assert await run.output() == {"total": 3}
    assert await run.output(Sum) == Sum(total=3)
    assert await run.error() is None
    assert [(event.sequence, event.type, event.stage_id) for event in await run.events()] == [
        (1, "workflow:created", None),
        (2, "workflow:started", None),
        (3, "stage:started", "act"),
        (4, "stage:completed", "act"),
        (5, "workflow:completed", None),
    ]
    step = (await run.steps())["act", "add"]
    assert (step.kind, step.status, step.attempt, step.result, step.error) == ("run", "completed", 1, 3, None)
    assert (step.external_key or "").startswith("tny-")
    assert (await run.stages())["act"].attempt == 1
    assert run.calls == {("act", "add"): 1}
    with pytest.raises(ValidationError):
        await run.output(list[str])


async def test_parallel_stages_run_side_by_side(database: Database) -> None:
    met = asyncio.Barrier(2)

    @stage("left")
    async def left(ctx: StageContext, given: dict[str, int]) -> int:
        await met.wait()
        return await ctx.step.run("double", lambda: given["n"] * 2)

    @stage("right")
    async def right(ctx: StageContext, given: dict[str, int]) -> int:
        await met.wait()
        return given["n"] * 10

    @stage("never", when=lambda _ctx: False)
    async def never(ctx: StageContext) -> int:
        return -1

    @stage("joined", when=lambda _ctx: True)
    def joined(ctx: StageContext, both: dict[str, int]) -> Sum:
        return Sum(total=sum(both.values()))

    flow = workflow("fan", input=dict[str, int]).parallel(left, right, never).pipe(joined).build()
    harness = Harness(Registry([flow]), transactions=database.transaction)
    run = await harness.start("fan", {"n": 1})
    assert await run.go() == "completed"
    assert await run.output(Sum) == Sum(total=12)
    assert {name: stage.status for name, stage in (await run.stages()).items()}["never"] == "SKIPPED"


async def test_a_failed_run_says_why(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        raise Terminal("no such order")

    run = await begin(make(body))
    assert await run.go() == "failed"
    error = await run.error()
    assert error is not None
    assert (error.stage_id, error.message) == ("act", "Terminal: no such order")


async def test_what_a_body_says_is_kept(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        ctx.log("info", "counting", orders=3)
        ctx.progress(0.5, "half")
        ctx.annotate("shop", "north")

    run = await begin(make(body))
    assert await run.go() == "completed"
    [line] = await run.logs()
    assert (line.stage_id, line.attempt, line.level, line.message) == ("act", 1, "info", "counting")
    assert line.fields == {"orders": 3}
    types = [event.type for event in await run.events()]
    assert types[3:6] == ["stage:progress", "stage:completed", "annotation:created"]


async def test_a_retry_is_incomplete_until_its_time(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        if ctx.attempt == 1:
            raise LookupError("once")
        return ctx.attempt

    harness = make(body)
    run = await begin(harness)
    assert await run.go() == "incomplete"
    assert await run.go() == "incomplete"
    await harness.advance("2s")
    assert await run.go() == "completed"
    assert await run.output() == 2


async def test_start_takes_models_and_options_and_refuses_as_create_does(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return ctx.input

    harness = make(body)
    run = await harness.start("play", Sum(total=1), priority=9, tags=["a"], idempotency_key="k")
    again = await harness.start("play", {"total": 1}, priority=9, tags=["a"], idempotency_key="k")
    assert again.run_id == run.run_id
    await run.go()
    assert await run.output() == {"total": 1}
    with pytest.raises(UnknownWorkflowError):
        await harness.start("work", {})


async def test_each_harness_has_a_tenant_of_its_own(make: Make, database: Database) -> None:
    first, second = make(ten_steps), make(ten_steps)
    run = await begin(first)
    assert await (await begin(second)).go() == "completed"
    assert await run.status() is RunStatus.PENDING
    async with second.transaction() as tx:
        assert tx.tenant_id == second.tenant_id != first.tenant_id
    stranger = HarnessRun(second._session, run.run_id, "play")
    with pytest.raises(RunNotFoundError):
        await stranger.output()


@pytest.mark.parametrize("how", ["asyncpg", "psycopg", "owned"])
async def test_any_provider_of_transactions_will_do(
    api_database: Database, database_urls: DatabaseUrls, how: Literal["asyncpg", "psycopg", "owned"]
) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")
        return await ten_steps(ctx)

    driver = "asyncpg" if how == "asyncpg" else "psycopg"
    prepares_nothing: dict[str, dict[str, Any]] = {
        "asyncpg": {"statement_cache_size": 0, "prepared_statement_cache_size": 0},
        "psycopg": {"prepare_threshold": None},
    }
    url = sqlalchemy_url(database_urls.worker, driver)
    engine = create_async_engine(url, connect_args=prepares_nothing[driver])

    @asynccontextmanager
    async def bound(tenant_id: UUID) -> AsyncGenerator[TenantTransaction]:
        async with engine.begin() as connection:
            await connection.execute(text("set local role tenantry_tenant"))
            yield await bind(connection, tenant_id)

    harness = Harness(play(body), api_database.transaction if how == "owned" else bound)
    run = await begin(harness)
    await harness.advance("1h")
    assert await run.output() == 45
    await engine.dispose()


async def test_a_stage_that_repeats_without_delay_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.testing.session.MAX_ROUNDS", 5)

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.wait_for("never", poll=lambda: 0, ready=bool, every=0, timeout="1h")

    run = await begin(make(body))
    with pytest.raises(RuntimeError, match="repeated without delay"):
        await run.go()


async def test_a_tenant_may_be_given(database: Database, tenant: UUID) -> None:
    harness = Harness(play(ten_steps), database.transaction, tenant_id=tenant)
    assert harness.tenant_id == tenant
    assert await (await begin(harness)).go() == "completed"
