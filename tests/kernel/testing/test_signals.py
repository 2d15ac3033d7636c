"""Signals and cancellation through the harness."""

from typing import Any

import pytest

from kernel import (
    SignalRefusedError,
    StageContext,
)
from kernel.testing import HarnessRun
from tests.kernel.testing.plays import Make, Sum, begin


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
