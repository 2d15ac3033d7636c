"""Death of the harness's workers between any two writes: what is recorded stays, what is not is done again."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from kernel import (
    StageContext,
    stage,
    workflow,
)
from kernel.testing import Harness
from tenancy import Database
from tests.kernel.testing.plays import TEN, Make, begin, ten_steps


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
