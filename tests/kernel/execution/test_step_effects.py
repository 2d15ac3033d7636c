"""Claims whose functions never begin: given back by whoever asked for them, and not for ever."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from kernel import RunRedrive, StageContext, StageFailed, Step, StepLeaseTooShortError, StepOp
from tests.support.looking import Look
from tests.support.stagehand import Act, Make, Stagehand, output_of, run_of, steps_of
from tests.support.waiting import until


def reply_late(hand: Stagehand, claims: Counter[str], late_s: float = 0.03) -> None:
    """Let the reply to each claim come when a lease of 20 ms has run out."""

    async def around(ops: Any, write: Any) -> Any:
        answers = await write()
        asked = [op.step_id for op in ops if op.op == "claim"]
        claims.update(asked)
        if asked:
            await asyncio.sleep(late_s)
        return answers

    hand.around = around


async def lapse(hand: Stagehand, times: int) -> None:
    for _ in range(times):
        assert (await hand.go()).stage_status == "SUSPENDED"


# -- a lease that is too short ----------------------------------------------------------------------------------------


async def test_a_step_whose_lease_is_always_over_before_its_function_begins_fails(make: Make, look: Look) -> None:
    """It was claimed and given back for ever: no call, no failure, no end."""
    claims, calls, raised = Counter[str](), Counter[str](), list[Exception]()

    async def body(ctx: StageContext[Any]) -> Any:
        try:
            return await ctx.step.run("charge", lambda: calls.update(["charge"]), lease="20ms", retries=3)
        except StepLeaseTooShortError as error:
            raised.append(error)
            raise

    hand = make(body)
    run_id = await hand.start()
    reply_late(hand, claims)
    await lapse(hand, 4)
    assert (await steps_of(look, run_id))["charge"]["lapses"] == 4
    settled = await hand.go()
    assert (settled.stage_status, claims, calls) == ("PENDING", {"charge": 5}, {})
    assert str(settled.error) == (
        "StepLeaseTooShortError: step 'charge': its lease of 0.02 s had run out before its function could begin, 5 times"
        " in a row; give it a longer lease"
    )
    step = (await steps_of(look, run_id))["charge"]
    assert (step["status"], step["attempt"], step["failures"], step["error"]) == ("failed", 5, 0, settled.error)
    # The next attempt of the stage tries again, and has as much patience.
    assert [error.step_id for error in raised] == ["charge"]
    hand.clock.advance(seconds=10)
    await lapse(hand, 1)
    hand.around = None
    await hand.go()
    assert (await run_of(look, run_id))[0] == "COMPLETED"
    assert ((await steps_of(look, run_id))["charge"]["lapses"], calls) == (0, {"charge": 1})


async def test_a_call_in_between_begins_the_count_anew(make: Make, look: Look) -> None:
    claims, calls = Counter[str](), Counter[str]()

    async def body(ctx: StageContext[Any]) -> Any:
        def charge() -> int:
            calls["charge"] += 1
            if calls["charge"] == 1:
                raise LookupError("once")
            return calls["charge"]

        return await ctx.step.run("charge", charge, lease="20ms", retries=1)

    hand = make(body)
    run_id = await hand.start()
    for _ in range(2):
        reply_late(hand, claims)
        await lapse(hand, 4)
        hand.around = None
        await hand.go()
    assert await output_of(look, run_id) == 2
    assert claims == {"charge": 8}


@pytest.mark.parametrize("how", ["retry", "redrive"])
async def test_what_became_of_an_earlier_claim_is_still_told_after_that(make: Make, how: str) -> None:
    told: list[bool] = []

    async def body(ctx: StageContext[Any]) -> Any:
        def charge(step: Step) -> None:
            told.append(step.is_reclaim)

        await ctx.step.run("charge", charge, lease="20ms")

    hand = make(body, max_attempts=2 if how == "retry" else 1)
    run_id = await hand.start()
    job = await hand.lease()
    # A worker that died in the function.
    values = {"kind": "run", "seq": 1, "claim_id": job.run_id, "lease_s": 0.02, "on_reclaim": "rerun"}
    await hand.write(StepOp("claim", job.fence, "charge", {**values, "external_key": "key", "stage_attempt": 1}))
    hand.clock.advance(seconds=1)
    reply_late(hand, Counter())
    assert (await hand.conclude(await hand.perform(job))).stage_status == "SUSPENDED"
    await lapse(hand, 3)
    assert (await hand.go()).stage_status == ("PENDING" if how == "retry" else "FAILED")
    hand.around = None
    if how == "redrive":
        async with hand.transaction() as tx:
            await hand.kernel.dispatch(RunRedrive(run_id), tx)
    await hand.later(seconds=10)
    assert told == [True]


# -- claims that come in vain -----------------------------------------------------------------------------------------


async def test_a_claim_is_given_back_however_often_its_task_is_cancelled(make: Make, look: Look) -> None:
    """As when a loop is torn down while a host stops: else the step stands still for its whole lease."""
    is_writing, may_write = asyncio.Event(), asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("charge", lambda: None, lease="1h")

    hand = make(body)
    run_id = await hand.start()

    async def around(_ops: Any, write: Any) -> Any:
        is_writing.set()
        await may_write.wait()
        return await write()

    hand.around = around
    act = Act(await hand.lease())
    performing = asyncio.create_task(hand.perform(act.job, act))
    await is_writing.wait()
    steps = act.steps
    assert steps is not None
    for _ in range(2):
        steps.flights.cancel()
        await asyncio.sleep(0)
    may_write.set()
    performing.cancel()
    await asyncio.wait([performing])

    async def is_open() -> bool:
        # What is left for the settle, or what the queue writes by itself.
        await hand.write(*steps.remaining)
        return bool((await steps_of(look, run_id))["charge"]["status"] == "pending")

    await until(is_open, "the claim was given back", seconds=3)


async def test_a_claim_is_given_back_when_an_earlier_outcome_could_not_be_written(make: Make, look: Look) -> None:
    """It was had, and its function does not begin: the next attempt of the stage need not wait for its lease."""
    is_writing = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def second() -> None:
            await is_writing.wait()
            await ctx.step.run("second", lambda: None, lease="1h")

        await asyncio.gather(ctx.step.run("first", lambda: "first"), second(), return_exceptions=True)

    hand = make(body)
    run_id = await hand.start()

    async def around(ops: Any, write: Any) -> Any:
        if any((op.op, op.step_id) == ("outcome", "first") for op in ops):
            is_writing.set()
            await asyncio.sleep(0.05)
            raise OSError("the disk is full")
        return await write()

    hand.around = around
    act = await hand.perform(await hand.lease())
    assert isinstance(act.outcome, StageFailed)
    assert act.outcome.error.startswith("StepLedgerWriteError: step 'first'")
    hand.around = None
    await hand.conclude(act)
    assert (await steps_of(look, run_id))["second"]["status"] == "pending"
