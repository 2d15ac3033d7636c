"""The pace of waits: whatever a body asks for, a stage that waits is replayed ten times a second at most."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from kernel import StageContext, Steps
from kernel.testing import Harness
from tenancy import Database
from tests.support.looking import Look
from tests.support.stagehand import Make, play_of, steps_of

LEAST = timedelta(milliseconds=100)


def never() -> bool:
    return False


def broken() -> bool:
    raise LookupError("broken")


WAITS: dict[str, Callable[[Steps], Coroutine[Any, Any, Any]]] = {
    "every": lambda step: step.wait_for("it", poll=never, ready=bool, every=0, timeout="1h"),
    "tiny every": lambda step: step.wait_for("it", poll=never, ready=bool, every="1ms", timeout="1h"),
    "poll_backoff": lambda step: step.wait_for(
        "it", poll=broken, ready=bool, every="1m", timeout="1h", poll_backoff=timedelta(0)
    ),
    "backoff of every": lambda step: step.wait_for("it", poll=broken, ready=bool, every=0, timeout="1h"),
    "keepalive": lambda step: step.wait_for_signal("it", timeout="1h", keepalive="1ms"),
}


@pytest.mark.parametrize("wait", WAITS)
async def test_a_stage_that_waits_is_not_replayed_at_once(make: Make, look: Look, wait: str) -> None:
    """Each replay writes: at 44 a second, which was the pace, one stage kept a worker and its database busy."""
    hand = make(lambda ctx: WAITS[wait](ctx.step))
    run_id = await hand.start()
    for _ in range(2):
        assert (await hand.later(seconds=1)).stage_status == "SUSPENDED"
        (stage,) = await look("select next_poll_at, updated_at from tenantry.workflow_stages where run_id = %s", run_id)
        step = (await steps_of(look, run_id))["it"]
        # A poll's time runs from its write, which may come before its stage's.
        begins_at = stage["updated_at"] if step["kind"] == "signal" else step["updated_at"]
        assert stage["next_poll_at"] - begins_at == LEAST


async def test_a_deadline_comes_in_time_all_the_same(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> None:
        await ctx.step.wait_for("it", poll=never, ready=bool, every=0, timeout="20ms")

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    (stage,) = await look("select next_poll_at from tenantry.workflow_stages where run_id = %s", run_id)
    assert stage["next_poll_at"] < (await steps_of(look, run_id))["it"]["due_at"]
    assert "StepTimeoutError" in str((await hand.later(seconds=1)).error)


async def test_retries_of_an_effect_keep_their_own_pace(make: Make, look: Look) -> None:
    """They end, after as many as were asked for."""

    async def body(ctx: StageContext[Any]) -> None:
        await ctx.step.run("it", broken, retries=5, retry_delay=0)

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    step = (await steps_of(look, run_id))["it"]
    assert step["due_at"] <= step["updated_at"]


async def test_a_harness_whose_clock_stands_still_does_not_pace(database: Database) -> None:
    polls: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        def poll() -> int:
            polls.append(len(polls))
            return len(polls)

        return await ctx.step.wait_for("it", poll=poll, ready=lambda n: n == 5, every=0, timeout="1h")

    run = await Harness(play_of(body), database.transaction).start("play", {"n": 1})
    assert await run.go() == "completed"
    assert await run.output() == 5
