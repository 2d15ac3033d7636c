"""Cancels, two workers and lost replies on the same steps: one outcome is recorded, no body runs twice."""

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import RunCancel, StageContext
from tests.support.looking import Look
from tests.support.stagehand import PID, Make, finish, holding, run_of, steps_of
from tests.support.waiting import until, until_someone_blocked

# -- cancels ----------------------------------------------------------------------------------------------------------


async def test_a_step_that_ends_after_its_run_was_cancelled_is_recorded_as_failed_with_the_cancellation(
    make: Make, look: Look
) -> None:
    go_on = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("charge", go_on.wait)
        await ctx.step.run("next", lambda: "never")

    hand = make(body)
    run_id = await hand.start()
    performing = asyncio.create_task(hand.perform(await hand.lease()))
    await until(lambda: _is_running(look, run_id, "charge"), "the step runs")
    await hand.cancel(run_id)
    go_on.set()
    settled = await hand.conclude(await performing)
    assert (settled.status, settled.ghost_reason) == ("ghost", "orphan")
    steps = await steps_of(look, run_id)
    assert set(steps) == {"charge"}
    assert (steps["charge"]["status"], steps["charge"]["result"]) == ("failed", None)
    assert "cancelled" in steps["charge"]["error"]


async def _is_running(look: Look, run_id: UUID, step_id: str) -> bool:
    steps = await steps_of(look, run_id)
    return step_id in steps and steps[step_id]["status"] == "running"


@pytest.mark.parametrize("first", ["cancel", "claim"])
async def test_a_cancel_against_the_claim_of_a_step(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    calls: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("charge", lambda: calls.append("charge"))

    hand = make(body)
    run_id = await hand.start()
    job = await hand.lease()
    if first == "claim":
        act = await hand.perform(job)
        await hand.cancel(run_id)
    else:
        async with holding(hand) as (tx, pid):
            await hand.kernel.dispatch(RunCancel(run_id), tx)
            await tx.fetch_one(PID)
            performing = asyncio.create_task(hand.perform(job))
            await until_someone_blocked(superuser, by=pid)
        act = await performing
        assert act.abort.reason == "cancelled"
    assert (await hand.conclude(act)).ghost_reason == "orphan"
    assert calls == (["charge"] if first == "claim" else [])
    assert await look("select from tenantry.job_queue where run_id = %s", run_id) == []


# -- two workers ------------------------------------------------------------------------------------------------------


class Zombies:
    """A body whose first execution hangs in its step until it is let go; later ones do not."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.has_begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def body(self, ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("charge", self.charge, lease="10m")

    async def charge(self, step: Any) -> str:
        self.calls.append(f"{step.external_key} {step.attempt} {step.is_reclaim}")
        if len(self.calls) == 1:
            self.has_begun.set()
            await self.go_on.wait()
        return f"result {step.attempt}"


async def test_a_zombies_outcome_is_recorded_while_nobody_took_its_step_over(make: Make, look: Look) -> None:
    zombies = Zombies()
    first = make(zombies.body)
    second = first.second()
    run_id = await first.start()
    performing = asyncio.create_task(first.perform(await first.lease()))
    await zombies.has_begun.wait()
    await first.reap()
    # The other worker has the stage, meets the step's live lease and waits for it.
    settled = await second.go()
    assert settled.stage_status == "SUSPENDED"
    zombies.go_on.set()
    assert (await first.conclude(await performing)).status == "superseded"
    step = (await steps_of(look, run_id))["charge"]
    assert (step["status"], step["result"], step["attempt"]) == ("completed", "result 1", 1)
    second.clock.advance(minutes=11)
    await finish(second)
    assert await run_of(look, run_id) == ("COMPLETED", "result 1")
    assert len(zombies.calls) == 1


@pytest.mark.parametrize("replies", ["heard", "lost"])
async def test_a_zombies_outcome_is_refused_once_another_worker_took_its_step_over(
    make: Make, look: Look, replies: str
) -> None:
    async def around(_ops: Any, write: Any) -> Any:
        await write()
        return await write()

    zombies = Zombies()
    first = make(zombies.body)
    second = first.second()
    run_id = await first.start()
    performing = asyncio.create_task(first.perform(await first.lease()))
    await zombies.has_begun.wait()
    await first.reap()
    second.clock.advance(minutes=11)
    await second.go()
    assert await run_of(look, run_id) == ("COMPLETED", "result 2")
    first.around = around if replies == "lost" else None
    zombies.go_on.set()
    act = await performing
    assert (await first.conclude(act)).status == "superseded"
    if replies == "lost":
        assert (await first.conclude(act)).status == "superseded"
    step = (await steps_of(look, run_id))["charge"]
    assert (step["status"], step["result"], step["attempt"], step["is_reclaim"]) == ("completed", "result 2", 2, True)
    assert await run_of(look, run_id) == ("COMPLETED", "result 2")
    annotations = await look("select key, value from tenantry.workflow_annotations where run_id = %s", run_id)
    assert [(row["key"], row["value"]["step_id"]) for row in annotations] == [("step.outcome_conflict", "charge")]
    keys = {call.split()[0] for call in zombies.calls}
    assert len(keys) == 1, "the external key stays"


async def test_a_refused_outcome_abandons_its_execution_before_the_next_step(make: Make, look: Look) -> None:
    """The lease of a step ran out under a worker that goes on: no later step runs on a value the ledger lacks."""
    zombies = Zombies()
    later: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        got = await ctx.step.run("charge", zombies.charge, lease="1m")
        await ctx.step.run("next", lambda: later.append(got))
        return got

    first = make(body)
    second = first.second()
    run_id = await first.start()
    performing = asyncio.create_task(first.perform(await first.lease()))
    await zombies.has_begun.wait()
    await first.reap()
    second.clock.advance(minutes=2)
    job = await second.lease()
    taken = await second.perform(job)
    zombies.go_on.set()
    act = await performing
    assert (await first.conclude(act)).status == "superseded"
    await second.conclude(taken)
    assert later == ["result 2"]
    assert await run_of(look, run_id) == ("COMPLETED", "result 2")


# -- lost replies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["claim", "outcome", "settle", "open", "poll", "resolve", "pending"])
async def test_a_write_whose_reply_is_lost_is_asked_for_again_and_found_done(make: Make, look: Look, lost: str) -> None:
    """The host repeats it as it was: claim_id and the settled fence tell that it was done."""
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def flaky() -> int:
            calls["flaky"] += 1
            if calls["flaky"] == 1:
                raise LookupError("once")
            return calls["flaky"]

        got = await ctx.step.run("flaky", flaky, retries=1)
        polled = await ctx.step.wait_for(
            "poll", poll=lambda: calls.update(["poll"]) or calls["poll"], ready=lambda n: n == 2, every=0, timeout="1h"
        )
        return [got, polled, await ctx.step.run("last", lambda: calls.update(["last"]))]

    hand = make(body)
    run_id = await hand.start()
    repeats = 0

    async def around(ops: Any, write: Any) -> Any:
        nonlocal repeats
        names = {op.op for op in ops} | {op.values.get("status") for op in ops}
        if lost in names:
            repeats += 1
            await write()
        return await write()

    hand.around = around
    while jobs := await hand.tick():
        act = await hand.perform(jobs[0], linger_s=None if lost in ("poll", "resolve", "pending", "outcome") else 0.01)
        if lost in ("settle", "poll", "resolve", "pending"):
            repeats += 1
            await hand.conclude(act)
        assert (await hand.conclude(act)).status == "settled"
        # What polls as often as it may is due again in the next round.
        hand.clock.advance(seconds=1)
    assert repeats
    assert await run_of(look, run_id) == ("COMPLETED", [2, 2, None])
    assert calls == {"flaky": 2, "poll": 2, "last": 1}
    assert {row["status"] for row in (await steps_of(look, run_id)).values()} == {"completed"}
