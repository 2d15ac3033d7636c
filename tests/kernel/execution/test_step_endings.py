"""Steps against timeouts, aborts, stops and leases that run out: what has ended is kept, what has not is given back."""

import asyncio
import time
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from kernel import StageContext, StageFailed, StageSuspended, StepLeaseLostError
from tests.support.looking import Look
from tests.support.stagehand import Act, Make, finish, output_of, steps_of
from tests.support.waiting import until

# -- timeouts, aborts, stops ------------------------------------------------------------------------------------------


async def test_a_timeout_around_a_step_leaves_it_to_end_and_be_recorded(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        async def slow() -> str:
            await asyncio.sleep(0.1)
            return "slow"

        try:
            async with asyncio.timeout(0.05):
                return await ctx.step.run("slow", slow)
        except TimeoutError:
            return "too late"

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    assert await output_of(look, run_id) == "too late"
    assert (await steps_of(look, run_id))["slow"]["status"] == "completed"


async def test_a_stage_that_times_out_with_a_step_in_flight_records_the_step_first(make: Make, look: Look) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        async def slow() -> str:
            calls["slow"] += 1
            await asyncio.sleep(0.15)
            return "slow"

        return await ctx.step.run("slow", slow)

    hand = make(body, timeout="100ms")
    run_id = await hand.start()
    settled = await hand.go()
    assert (settled.stage_status, "StageTimeoutError" in str(settled.error)) == ("PENDING", True)
    assert (await steps_of(look, run_id))["slow"]["status"] == "completed"
    await hand.later(seconds=10)
    assert await output_of(look, run_id) == "slow"
    assert calls["slow"] == 1


@pytest.mark.parametrize("reason", ["shutdown", "lease-lost"])
async def test_a_step_that_heeds_an_abort_has_not_failed_and_gives_its_lease_back(
    make: Make, look: Look, reason: Any
) -> None:
    """Its worker stops, or has lost the stage: whoever goes on runs the step again, at once."""
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        async def heeding(step: Any) -> str:
            calls["heeding"] += 1
            if calls["heeding"] == 1:
                await step.abort_signal.wait()
                step.abort_signal.raise_if_aborted()
            return "heeded"

        return await ctx.step.run("heeding", heeding)

    hand = make(body)
    run_id = await hand.start()
    act = Act(await hand.lease())
    performing = asyncio.create_task(hand.perform(act.job, act))
    await until(lambda: calls["heeding"] == 1, "the step runs")
    act.abort.abort(reason)
    await performing
    await hand.write(*act.settlement.steps)
    step = (await steps_of(look, run_id))["heeding"]
    assert (step["status"], step["error"]) == ("running", None)
    await hand.reap()
    await hand.go()
    assert await output_of(look, run_id) == "heeded"
    assert calls["heeding"] == 2


@pytest.mark.parametrize("where", ["in the body", "while it concludes"])
async def test_a_cancelled_execution_gives_back_the_leases_of_steps_that_have_ended(
    make: Make, look: Look, where: str
) -> None:
    has_begun = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def endless() -> None:
            has_begun.set()
            await asyncio.Event().wait()

        if where == "in the body":
            await ctx.step.run("endless", endless)
        else:
            await asyncio.gather(ctx.step.run("endless", endless), ctx.step.sleep("rest", "1h"))

    hand = make(body)
    run_id = await hand.start()
    act = Act(await hand.lease())
    performing = asyncio.create_task(hand.perform(act.job, act))
    await has_begun.wait()
    if where != "in the body":
        await until(lambda: _has(look, run_id, "rest"), "the sleep is stored")
        await asyncio.sleep(0.02)
    performing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await performing
    assert act.steps is not None
    await hand.write(*act.steps.remaining)
    (row,) = await look(
        "select status, lease_expires_at <= tenantry.now() as is_over from tenantry.workflow_steps"
        " where run_id = %s and step_id = 'endless'",
        run_id,
    )
    assert row == {"status": "running", "is_over": True}


async def _has(look: Look, run_id: UUID, step_id: str) -> bool:
    return step_id in await steps_of(look, run_id)


# -- leases -----------------------------------------------------------------------------------------------------------


async def test_a_heartbeat_extends_the_lease_until_another_execution_has_the_step(make: Make, look: Look) -> None:
    errors: list[str] = []
    go_on = [asyncio.Event(), asyncio.Event()]
    beaten = asyncio.Event()
    calls: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def charge(step: Any) -> int:
            calls.append(step.attempt)
            if step.attempt == 1:
                await go_on[0].wait()
                await step.heartbeat()
                beaten.set()
                await go_on[1].wait()
                try:
                    await step.heartbeat()
                except StepLeaseLostError as error:
                    errors.append(error.step_id)
                    raise
            return int(step.attempt)

        return await ctx.step.run("charge", charge, lease="1m")

    first = make(body)
    second = first.second()
    run_id = await first.start()
    performing = asyncio.create_task(first.perform(await first.lease()))
    await until(lambda: len(calls) == 1, "the step runs")
    before = (await steps_of(look, run_id))["charge"]["lease_expires_at"]
    first.clock.advance(seconds=50)
    go_on[0].set()
    await beaten.wait()
    after = (await steps_of(look, run_id))["charge"]["lease_expires_at"]
    assert 49 < (after - before).total_seconds() < 60
    await first.reap()
    first.clock.advance(seconds=61)
    await second.go()
    go_on[1].set()
    act = await performing
    assert (await first.conclude(act)).status == "superseded"
    assert errors == ["charge"]
    assert await output_of(look, run_id) == 2


@pytest.mark.parametrize("how", ["coroutine", "thread"])
async def test_a_heartbeat_on_a_timer_keeps_a_long_step_its_own(make: Make, look: Look, how: str) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        async def long() -> str:
            await asyncio.sleep(0.5)
            return "long"

        return await ctx.step.run(
            "long", long if how == "coroutine" else lambda: time.sleep(0.5) or "long", lease="300ms", heartbeat="50ms"
        )

    hand = make(body)
    run_id = await hand.start()
    beats: Counter[str] = Counter()

    async def around(ops: Any, write: Any) -> Any:
        beats.update(str(op.values.get("status")) for op in ops if op.op == "outcome")
        return await write()

    hand.around = around
    act = await hand.perform(await hand.lease())
    assert not isinstance(act.outcome, StageFailed | StageSuspended)
    await hand.conclude(act)
    assert await output_of(look, run_id) == "long"
    assert beats["running"] >= 5
    step = (await steps_of(look, run_id))["long"]
    assert (step["status"], step["attempt"]) == ("completed", 1)


async def test_a_function_does_not_begin_under_a_lease_that_has_run_out_meanwhile(make: Make, look: Look) -> None:
    """The reply to the claim came late, or the process stood still: somebody else may have the step."""
    calls: list[tuple[int, bool]] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def charge(step: Any) -> None:
            calls.append((step.attempt, step.is_reclaim))

        await ctx.step.run("charge", charge, lease="50ms", on_reclaim="fail")

    hand = make(body)
    run_id = await hand.start()

    async def around(_ops: Any, write: Any) -> Any:
        answers = await write()
        await asyncio.sleep(0.1)
        return answers

    hand.around = around
    assert (await hand.go()).stage_status == "SUSPENDED"
    assert calls == []
    assert (await steps_of(look, run_id))["charge"]["status"] == "pending"
    hand.around = None
    await hand.go()
    assert calls == [(2, False)]


async def test_an_outcome_under_way_when_its_body_leaves_is_heard_although_its_lease_has_run_out(
    make: Make, look: Look
) -> None:
    """Its function has ended: what comes after it does not wait for what the others beside it wait for."""
    is_writing = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def branch() -> None:
            await ctx.step.run("second", is_writing.wait, lease="50ms")
            await ctx.step.run("next", lambda: "next")

        async def retried() -> None:
            await is_writing.wait()
            raise LookupError("once more in a month")

        await asyncio.gather(
            ctx.step.run("first", lambda: "first"),
            branch(),
            ctx.step.run("retried", retried, lease="50ms", retries=1, retry_delay="30d"),
        )

    hand = make(body)
    run_id = await hand.start()

    async def around(ops: Any, write: Any) -> Any:
        if any((op.op, op.step_id) == ("outcome", "first") for op in ops):
            # Both others end meanwhile, past their leases: their outcomes are written together, with the next write.
            await asyncio.sleep(0.1)
            is_writing.set()
            await asyncio.sleep(0.05)
        return await write()

    hand.around = around
    await finish(hand)
    steps = await steps_of(look, run_id)
    assert {name: row["status"] for name, row in steps.items()} == {
        "first": "completed",
        "second": "completed",
        "retried": "pending",
        "next": "completed",
    }
