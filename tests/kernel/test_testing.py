"""The harness that users test their workflows with: time, mocks, signals, death between any two writes, a look inside."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from kernel import (
    KernelLimits,
    Registry,
    RunNotFoundError,
    RunStatus,
    SignalRefusedError,
    StageContext,
    StepTimeoutError,
    Terminal,
    UnknownWorkflowError,
    Workflow,
    stage,
    workflow,
)
from kernel.testing import Harness, HarnessRun
from tenancy import Database, TenantTransaction, bind, load_sql
from tests.support.environment import DatabaseUrls

NOW = load_sql(__file__)
Body = Callable[[StageContext[Any]], Coroutine[Any, Any, Any]]
Make = Callable[..., Harness]
TEN = [f"s{n}" for n in range(10)]


class Sum(BaseModel):
    """What some of the workflows come to."""

    total: int


def play(body: Body, **options: Any) -> Workflow:
    """Return a workflow `play` of one stage, `act`."""

    @stage("act", **options)
    async def act(ctx: StageContext) -> Any:
        return await body(ctx)

    return workflow("play", input=dict[str, Any]).pipe(act).build()


@pytest.fixture
def make(database: Database) -> Make:
    def made(body: Body, limits: KernelLimits | None = None, outcome_linger: Any = None, **options: Any) -> Harness:
        return Harness(play(body, **options), database.transaction, limits=limits, outcome_linger=outcome_linger)

    return made


async def begin(harness: Harness, **options: Any) -> HarnessRun:
    return await harness.start("play", {}, **options)


async def ten_steps(ctx: StageContext[Any]) -> int:
    total = 0
    for number, name in enumerate(TEN):
        total += await ctx.step.run(name, partial(int, str(number)))
    return total


# -- going on ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("how", ["asyncpg", "bound"])
async def test_any_provider_of_transactions_will_do(
    api_database: Database, database_urls: DatabaseUrls, how: str
) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")
        return await ten_steps(ctx)

    engine = create_async_engine(database_urls.worker.replace("postgresql://", "postgresql+psycopg://"))

    @asynccontextmanager
    async def bound(tenant_id: UUID) -> AsyncGenerator[TenantTransaction]:
        async with engine.begin() as connection:
            await connection.execute(text("set local role tenantry_tenant"))
            yield await bind(connection, tenant_id)

    harness = Harness(play(body), api_database.transaction if how == "asyncpg" else bound)
    run = await begin(harness)
    await harness.advance("1h")
    assert await run.output() == 45
    await engine.dispose()


# -- time -------------------------------------------------------------------------------------------------------------


async def test_what_comes_due_on_the_way_is_done_at_its_time(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        for number in range(3):
            await ctx.step.sleep(f"rest-{number}", "8h")
        return "rested"

    harness = make(body)
    run = await begin(harness)
    await harness.advance("23h")
    assert await run.go() == "suspended"
    assert [name[1] for name in await run.steps()] == ["rest-0", "rest-1", "rest-2"]
    await harness.advance("2h")
    assert await run.output() == "rested"


async def test_a_poll_every_minute_is_polled_sixty_times_an_hour(make: Make) -> None:
    polls: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.wait_for(
            "ready", poll=lambda: polls.append(1) or len(polls), ready=lambda n: n > 60, every="1m", timeout="24h"
        )

    harness = make(body)
    run = await begin(harness)
    await harness.advance("59m")
    assert len(polls) == 60
    await harness.advance("1m")
    assert await run.output() == 61
    assert run.calls["act", "ready"] == 61


async def test_a_signal_is_waited_for_without_waking_up_for_nothing(make: Make) -> None:
    bodies: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        bodies.append(1)
        try:
            return await ctx.step.wait_for_signal("approve", timeout="7d")
        except StepTimeoutError:
            return "late"

    harness = make(body)
    run = await begin(harness)
    await harness.advance("6d")
    assert await run.go() == "suspended"
    assert len(bodies) < 5
    await harness.advance("2d")
    assert await run.output() == "late"


async def test_a_run_of_the_future_starts_when_the_clock_is_there(make: Make) -> None:
    harness = make(ten_steps)
    async with harness.transaction() as tx:
        now = (await tx.fetch_all(NOW["now"]))[0]["now"]
    run = await begin(harness, run_at=now.replace(year=now.year + 1))
    assert await run.go() == "incomplete"
    await harness.advance("400d")
    assert await run.go() == "completed"
    [*_, last] = await run.events()
    assert (last.occurred_at.year - now.year, (last.occurred_at - now).days < 367) == (1, True)


async def test_a_clock_without_workers_leaves_what_is_due(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")
        return "rested"

    harness = make(body)
    run = await begin(harness)
    assert await run.go() == "suspended"
    harness.stand_still("2h")
    assert await run.status() is RunStatus.RUNNING
    assert await run.go() == "completed"
    with pytest.raises(ValueError):
        await harness.advance("a while")


# -- steps as the test wants them -------------------------------------------------------------------------------------


async def test_mocked_results_are_recorded_like_real_ones(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        def refuse() -> None:
            raise AssertionError("the real thing was called")

        charged = await ctx.step.run("charge", refuse, model=Sum)
        await ctx.step.sleep("rest", "1h")
        state = await ctx.step.wait_for("state", poll=refuse, ready=lambda _: False, every="1m", timeout="1h")
        approval = await ctx.step.wait_for_signal("approve", timeout="1h", model=Sum)
        return [charged.total, state, approval.total]

    harness = make(body)
    harness.mock_result("act", "charge", Sum(total=1))
    harness.mock_result("act", "rest", None)
    harness.mock_result("act", "state", "ready")
    harness.mock_result("act", "approve", {"total": 2})
    run = await begin(harness)
    assert await run.go() == "completed"
    assert await run.output() == [1, "ready", 2]
    steps = await run.steps()
    assert {name[1]: (step.kind, step.status, step.result) for name, step in steps.items()} == {
        "charge": ("run", "completed", {"total": 1}),
        "rest": ("sleep", "completed", None),
        "state": ("wait", "completed", "ready"),
        "approve": ("signal", "completed", {"total": 2}),
    }
    assert run.calls == {("act", "charge"): 1, ("act", "state"): 1}


async def test_a_mock_answers_in_replays_from_the_ledger(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        charged = await ctx.step.run("charge", lambda: "real")
        await ctx.step.sleep("rest", "1h")
        return charged

    harness = make(body)
    harness.mock_result("act", "charge", "mock")
    run = await begin(harness)
    assert await run.go() == "suspended"
    harness.unmock("act", "charge")
    await harness.advance("1h")
    assert (await run.output(), run.calls["act", "charge"]) == ("mock", 1)


async def test_mocked_errors_are_raised_and_retried_like_real_ones(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("charge", lambda: "paid", retries=2, retry_delay="10s")

    harness = make(body)
    harness.mock_error("act", "charge", ConnectionError("bank is away"), times=2)
    run = await begin(harness)
    assert await run.go() == "suspended"
    assert (await run.steps())["act", "charge"].error == "ConnectionError: bank is away"
    await harness.advance("10s")
    assert await run.go() == "suspended"
    await harness.advance("10s")
    assert await run.output() == "paid"
    assert run.calls["act", "charge"] == 3


@pytest.mark.parametrize("kind", ["run", "wait", "signal", "sleep"])
async def test_a_mocked_error_ends_a_step_of_every_kind(make: Make, kind: str) -> None:
    seen: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        try:
            if kind == "run":
                await ctx.step.run("it", lambda: 1)
            elif kind == "wait":
                await ctx.step.wait_for("it", poll=lambda: 1, ready=bool, every=1, timeout=1)
            elif kind == "signal":
                await ctx.step.wait_for_signal("it", timeout="1h")
            else:
                await ctx.step.sleep("it", "1h")
        except LookupError as error:
            seen.append(str(error))
        await ctx.step.sleep("then", "1h")
        return seen

    harness = make(body)
    harness.mock_error("act", "it", LookupError("gone"))
    run = await begin(harness)
    assert await run.go() == "suspended"
    step = (await run.steps())["act", "it"]
    assert (step.kind, step.status, step.error) == (kind, "failed", "LookupError: gone")
    await harness.advance("1h")
    assert await run.go() == "completed"
    assert seen == ["gone", "gone"]


async def test_waits_time_out_at_the_tests_word(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        late: list[str] = []
        for step in ("state", "approve"):
            try:
                if step == "state":
                    await ctx.step.wait_for("state", poll=lambda: 1, ready=bool, every="1m", timeout="7d")
                else:
                    await ctx.step.wait_for_signal("approve", timeout="7d")
            except StepTimeoutError as error:
                late.append(error.step_id)
        return late

    harness = make(body)
    harness.mock_timeout("act", "state")
    harness.mock_timeout("act", "approve")
    run = await begin(harness)
    assert await run.go() == "completed"
    assert await run.output() == ["state", "approve"]
    assert (await run.steps())["act", "approve"].status == "failed"


async def test_sleeps_are_skipped_and_recorded(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("long", "30d")
        return "awake"

    harness = make(body)
    harness.skip_sleeps()
    run = await begin(harness)
    assert await run.go() == "completed"
    step = (await run.steps())["act", "long"]
    assert (step.kind, step.status) == ("sleep", "completed")


async def test_mocks_that_fit_nothing_are_errors_of_the_test(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")

    harness = make(body)
    with pytest.raises(ValueError, match="no workflow of this harness has a stage 'ack': it has 'act'"):
        harness.mock_result("ack", "rest", 1)
    with pytest.raises(ValueError, match="times"):
        harness.mock_error("act", "rest", LookupError(), times=0)
    harness.mock_timeout("act", "rest")
    run = await begin(harness)
    with pytest.raises(ValueError, match="mock_timeout: step 'rest' of stage 'act' is a sleep, not a wait"):
        await run.go()


# -- signals and cancellation -----------------------------------------------------------------------------------------


async def test_signals_wake_the_stage_and_are_refused_when_it_is_over(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return (await ctx.step.wait_for_signal("approve", timeout="7d", model=Sum)).total

    harness = make(body)
    run = await begin(harness)
    assert await run.go() == "suspended"
    assert not (await run.signal("act", "approve", Sum(total=7))).already_completed
    assert (await run.signal("act", "approve", {"total": 8})).already_completed
    assert await run.go() == "completed"
    assert await run.output() == 7
    with pytest.raises(SignalRefusedError):
        await run.signal("act", "approve", {"total": 9})


async def test_a_waiting_run_is_cancelled(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")

    harness = make(body)
    run = await begin(harness)
    await run.go()
    assert (await run.cancel("enough")).cancelled
    assert await run.go() == "cancelled"
    assert not (await run.cancel()).cancelled
    [*_, last] = await run.events()
    assert (last.type, last.data["reason"]) == ("workflow:cancelled", "enough")


async def test_a_body_under_way_hears_of_the_cancellation(make: Make) -> None:
    seen: list[str | None] = []
    runs: list[HarnessRun] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def effect(step: Any) -> str:
            await runs[0].cancel("enough")
            seen.append(step.abort_signal.reason)
            return "done"

        await ctx.step.run("effect", effect)
        seen.append("went on")
        await ctx.step.run("more", lambda: seen.append("and on"))

    harness = make(body)
    runs.append(await begin(harness))
    assert await runs[0].go() == "cancelled"
    assert seen[0] == "cancelled"
    assert "and on" not in seen
    effect = (await runs[0].steps())["act", "effect"]
    assert (effect.status, effect.error) == ("failed", "StageAbortedError: the stage was aborted: cancelled")


# -- death ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linger", [None, "1h"])
async def test_ten_steps_survive_death_in_every_gap(make: Make, linger: str | None) -> None:
    effects: Counter[str] = Counter()
    recorded: set[str] = set()

    async def body(ctx: StageContext[Any]) -> int:
        total = 0
        for number, name in enumerate(TEN):

            def effect(step: Any, number: int = number, name: str = name) -> int:
                assert name not in recorded, f"{name} ran again though it was completed"
                effects[step.external_key] += 1
                return number

            total += await ctx.step.run(name, effect)
        return total

    harness = make(body, outcome_linger=linger)
    gaps: list[str] = []
    for gap in harness.gaps():
        recorded.clear()
        effects.clear()
        run = await begin(harness)
        outcome = await run.go()
        if gap.happened:
            gaps.append(str(gap))
            done = {name[1] for name, step in (await run.steps()).items() if step.status == "completed"}
            if outcome != "completed":
                assert outcome == "incomplete", gap
                assert await run.go() == "incomplete", gap
            recorded.update(done)
            before = Counter(effects)
            await harness.advance("10m")
            assert all(effects[step.external_key or ""] <= 2 for step in (await run.steps()).values()), gap
            assert sum(effects.values()) - sum(before.values()) == (
                len(TEN) - len(done) if outcome != "completed" else 0
            )
        assert await run.go() == "completed", gap
        assert await run.output() == sum(range(len(TEN))), gap
        steps = await run.steps()
        assert [name[1] for name in steps] == TEN
        assert {step.status for step in steps.values()} == {"completed"}
        # One of them at most was under way; its effect has the same key both times.
        assert sum(count - 1 for count in effects.values()) <= 1, gap
        assert len(effects) == len(TEN), gap
    # Ten claims, ten outcomes, one settle; together an outcome and the next claim are one write.
    writes = 21 if linger is None else 11
    assert len(gaps) == 2 * writes
    assert gaps[-1] == f"after write {writes} (settle act)"


async def test_steps_side_by_side_survive_death_in_every_gap(make: Make) -> None:
    effects: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def effect(step: Any) -> str:
            effects[step.external_key] += 1
            return str(step.step_id)

        told = await asyncio.gather(*(ctx.step.run(name, effect) for name in TEN))
        await ctx.step.sleep("rest", "1h")
        return told

    harness = make(body)
    for gap in harness.gaps():
        effects.clear()
        run = await begin(harness)
        await harness.advance("3h")
        assert await run.output() == TEN, gap
        assert (len(effects), max(effects.values()) <= 2) == (len(TEN), True), gap


async def test_two_workers_die_one_after_the_other(make: Make) -> None:
    harness = make(ten_steps)
    for first, second in ((2, 1), (3, 2), (8, 5)):
        kills = [harness.kill_before(first)]
        run = await begin(harness)
        await run.go()
        kills.append(harness.kill_after(second))
        await harness.advance("1h")
        assert [kill.happened for kill in kills] == [True, True]
        assert await run.output() == 45
        # Of each death at most the step under way is called again.
        assert sum(run.calls.values()) <= len(TEN) + 2


async def test_a_body_that_always_kills_its_worker_fails_at_last(make: Make) -> None:
    harness = make(ten_steps)
    run = await begin(harness)
    for _ in range(3):
        harness.kill_before(1)
        assert await run.go() == "incomplete"
        harness.stand_still("6m")
    assert await run.go() == "failed"
    error = await run.error()
    assert error is not None
    assert error.code == "LEASE_HEARTBEAT_LOST"


async def test_a_dead_workers_lease_stays_until_the_clock_has_passed_it(make: Make) -> None:
    harness = make(ten_steps)
    kill = harness.kill_after(3)
    run = await begin(harness)
    assert await run.go() == "incomplete"
    assert (kill.happened, kill.write) == (True, "claim act/s1")
    steps = await run.steps()
    assert {name[1]: step.status for name, step in steps.items()} == {"s0": "completed", "s1": "running"}
    harness.stand_still("299s")
    assert await run.go() == "incomplete"
    harness.stand_still("2s")
    assert await run.go() == "completed"
    assert (await run.steps())["act", "s1"].is_reclaim
    assert run.calls["act", "s0"] == 1
    assert "stage:retrying" in [event.type for event in await run.events()]


async def test_a_step_that_must_not_run_twice_fails_after_death(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("charge", lambda: "paid", on_reclaim="fail")

    harness = make(body)
    harness.kill_before(2)
    run = await begin(harness)
    assert await run.go() == "incomplete"
    await harness.advance("10m")
    assert await run.go() == "failed"
    error = await run.error()
    assert error is not None
    assert "StepNotReplaySafeError" in error.message
    assert run.calls["act", "charge"] == 1


async def test_a_long_step_lease_is_waited_for(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("long", lambda: "done", lease="30m")

    harness = make(body)
    harness.kill_before(2)
    run = await begin(harness)
    assert await run.go() == "incomplete"
    await harness.advance("10m")
    assert await run.go() == "suspended"
    await harness.advance("20m")
    assert await run.output() == "done"


async def test_a_worker_dies_with_all_its_stages(database: Database) -> None:
    ends: list[str] = []

    @stage("busy")
    async def busy(ctx: StageContext) -> int:
        await ctx.step.run("claim", lambda: 1)
        return 1

    @stage("idle")
    async def idle(ctx: StageContext) -> int:
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("killed")
            raise
        return 2

    flow = workflow("pair", input=dict[str, int]).parallel(busy, idle).build()
    harness = Harness(flow, database.transaction)
    kill = harness.kill_before(2)
    run = await harness.start("pair", {})
    assert await run.go() == "incomplete"
    assert (kill.happened, ends) == (True, ["killed"])
    assert {stage.status for stage in (await run.stages()).values()} == {"RUNNING"}
    await harness.advance("10m")
    assert await run.output() == {"busy": 1, "idle": 2}


async def test_every_gap_of_waits_parallel_stages_and_whens_is_survived(database: Database) -> None:
    @stage("ask", when=lambda _ctx: True)
    async def ask(ctx: StageContext) -> Any:
        await ctx.step.sleep("rest", "1h")
        state = await ctx.step.wait_for("state", poll=lambda: "up", ready=bool, every="1m", timeout="1h")
        return [state, await ctx.step.wait_for_signal("approve", timeout="7d")]

    @stage("left")
    async def left(ctx: StageContext, asked: list[Any]) -> Any:
        return await ctx.step.run("one", lambda: asked[0])

    @stage("right")
    def right(ctx: StageContext, asked: list[Any]) -> Any:
        return asked[1]

    flow = workflow("mixed", input=dict[str, int]).pipe(ask).parallel(left, right).build()
    harness = Harness(flow, database.transaction)
    killed = 0
    for gap in harness.gaps():
        run = await harness.start("mixed", {})
        await run.signal("ask", "approve", "yes")
        await harness.advance("2h")
        assert await run.go() == "completed", gap
        assert await run.output() == {"left": "up", "right": "yes"}, gap
        sequence = [event.sequence for event in await run.events()]
        assert sequence == list(range(1, len(sequence) + 1)), gap
        killed += gap.happened
    assert killed >= 16


async def test_a_kill_needs_a_number(make: Make) -> None:
    harness = make(ten_steps)
    with pytest.raises(ValueError):
        harness.kill_before(0)
    never = harness.kill_after(100)
    run = await begin(harness)
    assert await run.go() == "completed"
    assert (never.happened, str(never)) == (False, "after write 100 (not reached)")


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
