"""Results of steps that their store has lost: whoever asks for one fails for good, and is never told that a step failed."""

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from kernel import StageContext, StepError
from tests.support.blobs import lose
from tests.support.looking import Look
from tests.support.stagehand import Make, finish, run_of

LARGE = "x" * 300_000


@pytest.mark.parametrize("is_swallowed", [False, True])
@pytest.mark.parametrize("how", ["met", "read"])
async def test_a_body_that_asks_for_a_result_that_is_lost_ends_its_stage_for_good(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, how: str, *, is_swallowed: bool
) -> None:
    """Swallowed or not: the effect has happened, and a body that took it for a failure would undo or repeat it."""
    went_on: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        if how == "read":
            await ctx.step.sleep("first", "1m")
        with suppress(StepError if is_swallowed else ZeroDivisionError):
            await ctx.step.wait_for_signal("told", timeout="1h")
        went_on.append("went on")
        await ctx.step.run("undo", lambda: went_on.append("undone"))

    hand = make(body)
    run_id = await hand.start()
    if how == "read":
        await hand.go()
    await hand.signal(run_id, "told", LARGE)
    hand.clock.advance(minutes=2)
    await lose(superuser, run_id)
    settled = await hand.go()
    assert (settled.stage_status, settled.run_status) == ("FAILED", "FAILED")
    assert str(settled.error).startswith("StepResultLostError: step 'told'")
    assert "undone" not in went_on


async def test_a_body_that_does_not_ask_for_what_is_lost_goes_on(
    make: Make, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    asked = ["once"]

    async def body(ctx: StageContext[Any]) -> Any:
        if asked:
            asked.clear()
            await ctx.step.run("large", lambda: LARGE)
        await ctx.step.sleep("rest", "1m")
        return "rested"

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    await lose(superuser, run_id)
    hand.clock.advance(minutes=2)
    await finish(hand)
    assert await run_of(look, run_id) == ("COMPLETED", "rested")
