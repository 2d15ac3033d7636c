"""Steps that are asked for inside of another one's function: the outer one waits with them, and is not called in vain."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from kernel import StageContext
from kernel.execution import flights
from tests.support.looking import Look
from tests.support.stagehand import Make, finish, output_of, steps_of


@pytest.mark.parametrize("inner", ["sleep", "signal", "poll", "retry"])
async def test_an_outer_step_is_called_again_when_the_inner_one_is_due_and_not_before(
    make: Make, look: Look, inner: str
) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def later() -> bool:
            calls["inner"] += 1
            if inner == "retry" and calls["inner"] == 1:
                raise ConnectionError("away")
            return calls["inner"] > 1

        async def outer() -> str:
            calls["outer"] += 1
            match inner:
                case "sleep":
                    await ctx.step.sleep("inner", "1h")
                case "signal":
                    await ctx.step.wait_for_signal("inner", timeout="2h", keepalive="1h")
                case "poll":
                    await ctx.step.wait_for("inner", poll=later, ready=bool, every="1h", timeout="9h")
                case _:
                    await ctx.step.run("inner", later, retries=1, retry_delay="1h")
            return "outer"

        return await ctx.step.run("outer", outer, lease="1m")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    for _ in range(3):
        assert await hand.tick() == (), "nothing is due"
        hand.clock.advance(minutes=19)
    assert calls["outer"] == 1
    (stage,) = await look("select waiting_for from tenantry.workflow_stages where run_id = %s", run_id)
    assert stage["waiting_for"]["step_id"] == "inner"
    if inner == "signal":
        await hand.signal(run_id, "inner", 1)
    hand.clock.advance(minutes=4)
    await finish(hand)
    assert await output_of(look, run_id) == "outer"
    assert calls["outer"] == 2
    assert {row["attempt"] for name, row in (await steps_of(look, run_id)).items() if name == "outer"} == {2}


@pytest.mark.parametrize("how", ["coroutine", "thread"])
async def test_an_outer_step_that_is_under_way_when_its_body_leaves_may_still_ask_for_inner_ones(
    make: Make, look: Look, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Else it would be called again at once, for ever: whenever it comes to them, the body has left."""
    monkeypatch.setattr(flights, "HOLD_S", 0.0)
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        loop = asyncio.get_running_loop()

        async def inside() -> None:
            calls["outer"] += 1
            await asyncio.sleep(0.05)
            await ctx.step.run("first", lambda: calls.update(["first"]))
            await ctx.step.sleep("rest", "1h")

        def in_thread() -> None:
            asyncio.run_coroutine_threadsafe(inside(), loop).result()

        approval = ctx.step.wait_for_signal("approve", timeout="7d", keepalive="7d")
        await asyncio.gather(approval, ctx.step.run("outer", inside if how == "coroutine" else in_thread))

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    assert calls == {"outer": 1, "first": 1}
    assert await hand.tick() == (), "all of it waits"
    await hand.later(hours=1, seconds=1)
    steps = await steps_of(look, run_id)
    assert {name: row["status"] for name, row in steps.items()} == {
        "approve": "pending", "outer": "completed", "first": "completed", "rest": "completed",
    }  # fmt: skip
    assert calls == {"outer": 2, "first": 1}
