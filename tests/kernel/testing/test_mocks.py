"""Steps as the test of a user wants them: results, errors and timeouts of its own, recorded like real ones."""

from typing import Any

import pytest

from kernel import (
    StageContext,
    StepTimeoutError,
)
from tests.kernel.testing.plays import Make, Sum, begin


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
