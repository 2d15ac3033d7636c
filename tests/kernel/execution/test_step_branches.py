"""Branches of a body beside one that waits: they go on as far as their steps are near, and lose what is not in a step."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from kernel import StageContext
from kernel.execution import flights
from tests.support.looking import Look
from tests.support.stagehand import Make, finish, output_of, steps_of

BOTH = pytest.mark.parametrize("how", ["gather", "group"])


async def beside(how: str, *branches: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run branches side by side and return what they return."""
    if how == "gather":
        return await asyncio.gather(*branches)
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(branch) for branch in branches]
    return [task.result() for task in made]


@BOTH
async def test_a_branch_that_awaits_something_else_between_its_steps_goes_on_beside_a_wait(
    make: Make, look: Look, how: str
) -> None:
    """Else it would stand still until the wait ends: each replay suspends before it comes to its next step."""
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        async def branch() -> str:
            for name in ("one", "two", "three"):
                await asyncio.sleep(0.03)
                await ctx.step.run(name, lambda name=name: calls.update([name]))
            return "branch"

        return await beside(how, ctx.step.wait_for_signal("approve", timeout="7d", keepalive="7d"), branch())

    hand = make(body)
    run_id = await hand.start()
    await finish(hand)
    assert calls == {"one": 1, "two": 1, "three": 1}
    (stage,) = await look("select status, waiting_for from tenantry.workflow_stages where run_id = %s", run_id)
    assert (stage["status"], stage["waiting_for"]["step_id"]) == ("SUSPENDED", "approve")
    await hand.signal(run_id, "approve", "yes")
    await finish(hand)
    assert await output_of(look, run_id) == ["yes", "branch"]
    assert set(calls.values()) == {1}


@BOTH
async def test_what_takes_long_outside_of_a_step_is_dropped_beside_a_wait_and_begun_anew(
    make: Make, look: Look, how: str
) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def branch() -> str:
            begun.append("outside")
            await may_end.wait()
            return await ctx.step.run("after", lambda: "after")

        return await beside(how, ctx.step.wait_for_signal("approve", timeout="7d"), branch())

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    assert set(await steps_of(look, run_id)) == {"approve"}
    may_end.set()
    await hand.signal(run_id, "approve", "yes")
    await finish(hand)
    assert await output_of(look, run_id) == ["yes", "after"]
    assert begun == ["outside", "outside"]


@BOTH
async def test_the_same_in_a_step_is_brought_to_its_end_first(make: Make, look: Look, how: str) -> None:
    begun: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def inside() -> str:
            begun.append("inside")
            # Not to wait for anything: a function that takes longer than its body is held.
            await asyncio.sleep(2 * flights.HOLD_S)
            return "inside"

        async def branch() -> list[str]:
            return [await ctx.step.run("long", inside), await ctx.step.run("after", lambda: "after")]

        return await beside(how, ctx.step.wait_for_signal("approve", timeout="7d"), branch())

    hand = make(body)
    run_id = await hand.start()
    await finish(hand)
    assert {name: row["status"] for name, row in (await steps_of(look, run_id)).items()} == {
        "approve": "pending", "long": "completed", "after": "completed",
    }  # fmt: skip
    assert begun == ["inside"]


async def test_a_wait_that_its_body_awaits_alone_leaves_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "HOLD_S", 3600.0)

    async def body(ctx: StageContext[Any]) -> Any:
        async with asyncio.timeout(3600):
            await ctx.step.wait_for_signal("approve", timeout="7d")

    hand = make(body, timeout="1h")
    await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"


@BOTH
async def test_a_wait_that_is_cancelled_while_it_lets_others_go_on_waits_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A timeout around it, or around the body, is none of a month's sleep: that has begun, and takes no worker."""
    monkeypatch.setattr(flights, "HOLD_S", 3600.0)

    async def body(ctx: StageContext[Any]) -> Any:
        async def rest() -> None:
            async with asyncio.timeout(0.05):
                await ctx.step.sleep("rest", "30d")

        await beside(how, rest(), ctx.step.wait_for_signal("approve", timeout="30d"))

    hand = make(body)
    await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"


@BOTH
async def test_a_failure_beside_a_wait_is_not_held(make: Make, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(flights, "HOLD_S", 3600.0)

    async def body(ctx: StageContext[Any]) -> Any:
        async def broken() -> None:
            await asyncio.sleep(0.02)
            raise LookupError("broken")

        await beside(how, ctx.step.wait_for_signal("approve", timeout="30d"), broken())

    hand = make(body)
    await hand.start()
    settled = await hand.go()
    assert (settled.stage_status, settled.error) == ("PENDING", "LookupError: broken")


@BOTH
async def test_a_stop_while_a_wait_lets_others_go_on_cancels_the_body(
    make: Make, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Taken for a wait it would be left to bring what is under way to its end."""
    monkeypatch.setattr(flights, "HOLD_S", 3600.0)
    has_begun = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def endless() -> None:
            has_begun.set()
            await asyncio.Event().wait()

        await beside(how, ctx.step.wait_for_signal("approve", timeout="30d"), ctx.step.run("endless", endless))

    hand = make(body)
    await hand.start()
    performing = asyncio.create_task(hand.perform(await hand.lease()))
    await has_begun.wait()
    performing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await performing
