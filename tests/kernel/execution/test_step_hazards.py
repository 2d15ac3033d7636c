"""What bodies do to their steps at the worst moment: side by side, duplicated, raising, exiting, nested."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from kernel import StageContext
from tests.support.looking import Look
from tests.support.stagehand import Make, finish, output_of, steps_of

# -- steps side by side -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_a_claim_under_way_when_a_sibling_suspends_is_executed_and_recorded_before_the_settle(
    make: Make, look: Look, how: str
) -> None:
    """Else the row would stay under its lease with nobody at work, or the body run after the stage was parked."""
    calls: Counter[str] = Counter()
    rounds: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        rounds.append(1)
        first = ctx.step.wait_for_signal("approve", timeout="7d")
        if len(rounds) == 1:
            return await first
        second = ctx.step.run("charge", lambda: calls.update(["charge"]))
        if how == "gather":
            return (await asyncio.gather(first, second))[0]
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(step) for step in (first, second)]
        return made[0].result()

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    is_suspended = asyncio.Event()

    async def around(ops: Any, write: Any) -> Any:
        if any(op.op == "claim" for op in ops):
            asyncio.get_running_loop().call_later(0.05, is_suspended.set)
            await is_suspended.wait()
        return await write()

    hand.around = around
    hand.clock.advance(minutes=6)
    assert (await hand.go()).stage_status == "SUSPENDED"
    steps = await steps_of(look, run_id)
    assert (steps["charge"]["status"], calls["charge"]) == ("completed", 1)
    await hand.signal(run_id, "approve", "yes")
    await hand.go()
    assert await output_of(look, run_id) == "yes"
    assert calls["charge"] == 1


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_a_step_that_ends_after_its_body_left_has_the_stage_go_on_at_once(
    make: Make, look: Look, how: str
) -> None:
    """Else the rest of its branch would begin when the wait beside it ends, a month later."""
    calls: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def branch() -> str:
            await ctx.step.run("first", lambda: calls.append("first"))
            await ctx.step.run("second", lambda: calls.append("second"))
            return "branch"

        rest = ctx.step.sleep("rest", "30d")
        if how == "gather":
            return await asyncio.gather(rest, branch())
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(each) for each in (rest, branch())]
        return [task.result() for task in made]

    hand = make(body)
    run_id = await hand.start()
    await finish(hand)
    assert calls == ["first", "second"]
    (stage,) = await look("select status, waiting_for from tenantry.workflow_stages where run_id = %s", run_id)
    assert (stage["status"], stage["waiting_for"]["step_id"]) == ("SUSPENDED", "rest")
    assert await hand.tick() == (), "and then it sleeps"
    await hand.later(days=30, seconds=1)
    assert await output_of(look, run_id) == [None, "branch"]
    assert calls == ["first", "second"]


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_a_poll_that_takes_its_time_is_heard_beside_a_wait_that_suspends_at_once(
    make: Make, look: Look, how: str
) -> None:
    """Else it is made in every replay, and abandoned in every one."""
    polls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        async def poll() -> int:
            await asyncio.sleep(0.02)
            polls["made"] += 1
            return polls["made"]

        approval = ctx.step.wait_for_signal("approve", timeout="9d", keepalive="9d")
        polling = ctx.step.wait_for("paid", poll=poll, ready=lambda number: number == 2, every="1m", timeout="9d")
        if how == "gather":
            return await asyncio.gather(approval, polling)
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(each) for each in (approval, polling)]
        return [task.result() for task in made]

    hand = make(body)
    run_id = await hand.start()
    await finish(hand)
    assert polls["made"] == 1
    hand.clock.advance(seconds=61)
    await finish(hand)
    assert (await steps_of(look, run_id))["paid"]["status"] == "completed"
    await hand.signal(run_id, "approve", "yes")
    await finish(hand)
    assert await output_of(look, run_id) == ["yes", 2]
    assert polls["made"] == 2


async def test_the_earliest_of_many_waits_in_a_task_group_wakes_the_stage_again_and_again(
    make: Make, look: Look
) -> None:
    """In a replay, too, none is cancelled by the first that suspends before it has said when it is due."""

    async def body(ctx: StageContext[Any]) -> Any:
        async with asyncio.TaskGroup() as tasks:
            for number in (5, 4, 3, 2, 1):
                tasks.create_task(ctx.step.sleep(f"rest-{number}", f"{number}h"))
        return "rested"

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    for _ in range(4):
        settled = await hand.later(hours=1, seconds=1)
        assert settled.stage_status == "SUSPENDED"
    await hand.later(hours=1, seconds=1)
    assert await output_of(look, run_id) == "rested"


async def test_a_wait_that_the_body_gave_up_keeps_it_from_nothing(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        async def poll() -> None:
            await asyncio.Event().wait()

        try:
            async with asyncio.timeout(0.02):
                await ctx.step.wait_for("never", poll=poll, ready=bool, every="1m", timeout="9d")
        except TimeoutError:
            return await ctx.step.run("instead", lambda: "instead")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "COMPLETED"
    assert await output_of(look, run_id) == "instead"


async def test_a_failure_is_settled_after_the_outcomes_of_the_steps_in_flight(make: Make, look: Look) -> None:
    has_begun = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def slow() -> str:
            has_begun.set()
            await asyncio.sleep(0.05)
            return "slow"

        async def broken() -> None:
            await has_begun.wait()
            raise LookupError("broken")

        await asyncio.gather(ctx.step.run("slow", slow), ctx.step.run("broken", broken))

    hand = make(body)
    run_id = await hand.start()
    settled = await hand.go()
    assert (settled.stage_status, settled.error) == ("PENDING", "LookupError: broken")
    steps = await steps_of(look, run_id)
    assert {name: row["status"] for name, row in steps.items()} == {"slow": "completed", "broken": "failed"}


@pytest.mark.parametrize("order", ["wait-first", "twice-first"])
async def test_a_duplicate_key_beats_a_suspension_beside_it(make: Make, look: Look, order: str) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        twice = [ctx.step.run("same", lambda: 1), ctx.step.wait_for_signal("same", timeout="1h")]
        wait = ctx.step.sleep("rest", "1h")
        await asyncio.gather(*([wait, *twice] if order == "wait-first" else [*twice, wait]))

    hand = make(body)
    await hand.start()
    settled = await hand.go()
    assert (settled.stage_status, settled.run_status) == ("FAILED", "FAILED")
    assert "DuplicateStepKeyError" in str(settled.error)
    assert "as run and as signal" in str(settled.error)


async def test_a_step_asked_for_after_the_stage_has_concluded_starts_nothing(make: Make, look: Look) -> None:
    calls: list[str] = []
    late: list[asyncio.Task[Any]] = []
    go_on = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def afterwards() -> None:
            await go_on.wait()
            await ctx.step.run("late", lambda: calls.append("late"))

        late.append(asyncio.create_task(afterwards()))
        return "done"

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    go_on.set()
    await asyncio.wait(late)
    assert not isinstance(late[0].exception(), Exception), "control flow, not an error"
    assert calls == []
    assert await steps_of(look, run_id) == {}


async def test_a_heartbeat_that_nobody_awaits_does_not_cost_the_outcome(make: Make, look: Look) -> None:
    """Both wait for the write under way; one statement takes each step only once."""
    beats: list[asyncio.Task[None]] = []
    has_begun, go_on = asyncio.Event(), asyncio.Event()

    async def body(ctx: StageContext[Any]) -> Any:
        async def charge(step: Any) -> str:
            has_begun.set()
            await go_on.wait()
            beats.append(asyncio.create_task(step.heartbeat()))
            await asyncio.sleep(0)
            return "charged"

        async def other() -> str:
            await has_begun.wait()
            return await ctx.step.run("other", lambda: "other")

        return await asyncio.gather(ctx.step.run("charge", charge), other())

    hand = make(body)
    run_id = await hand.start()

    async def around(ops: Any, write: Any) -> Any:
        if any(op.op == "claim" and op.step_id == "other" for op in ops):
            go_on.set()
            await asyncio.sleep(0.03)
        return await write()

    hand.around = around
    settled = await hand.go()
    assert settled.stage_status == "COMPLETED"
    await asyncio.gather(*beats)
    assert await output_of(look, run_id) == ["charged", "other"]
    assert {row["status"] for row in (await steps_of(look, run_id)).values()} == {"completed"}


async def test_a_failure_beside_a_wait_in_a_task_group_is_that_failure(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        async def broken() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise LookupError("broken") from None

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(broken())
            tasks.create_task(ctx.step.sleep("rest", "1h"))

    hand = make(body)
    await hand.start()
    settled = await hand.go()
    assert (settled.stage_status, settled.error) == ("PENDING", "LookupError: broken")


# -- what functions raise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("how", ["coroutine", "thread", "gather"])
async def test_a_function_that_exits_or_cancels_fails_its_step_and_nothing_else(
    make: Make, look: Look, kind: type[BaseException], how: str
) -> None:
    seen: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        def leave() -> None:
            raise kind("by a step")

        async def leave_async() -> None:
            raise kind("by a step")

        try:
            if how == "gather":
                await asyncio.gather(ctx.step.run("leave", leave_async), ctx.step.run("other", lambda: 1))
            else:
                await ctx.step.run("leave", leave if how == "thread" else leave_async)
        except Exception as error:  # noqa: BLE001
            seen.append(f"{type(error).__name__}: {error}")
        await ctx.step.sleep("rest", "1m")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    step = (await steps_of(look, run_id))["leave"]
    assert (step["status"], step["error"]) == ("failed", f"{kind.__name__}: by a step")
    assert (await hand.later(minutes=2)).stage_status == "COMPLETED"
    assert len(seen) == 2
    assert seen[0] == seen[1], "a replay raises what the first execution did"


class Unpicklable(Exception):  # noqa: N818
    """Cannot be copied, sent or shown."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(one)
        self.two = two

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def __str__(self) -> str:
        return f"two is {self.two}"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\0b"),
        ValueError("a\ud800b"),
        Unpicklable(1, two=2),
        ValueError("x" * 5_000_000),
        ExceptionGroup("many", [ValueError("one"), LookupError("two")]),
        StopIteration("three"),
    ],
    ids=["nul", "surrogate", "unpicklable", "long", "group", "stop"],
)
async def test_any_exception_is_recorded_and_raised_again(make: Make, look: Look, error: Exception) -> None:
    seen: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        def broken() -> None:
            raise error

        try:
            await ctx.step.run("broken", broken)
        except Exception as raised:  # noqa: BLE001
            seen.append(str(raised))
        await ctx.step.sleep("rest", "1m")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    step = (await steps_of(look, run_id))["broken"]
    assert step["status"] == "failed"
    assert 0 < len(step["error"].encode()) <= 8192
    assert (await hand.later(minutes=2)).stage_status == "COMPLETED"
    assert len(seen) == 2


async def test_a_step_that_waits_inside_of_a_steps_function_gives_the_outer_claim_back(make: Make, look: Look) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        async def outer() -> str:
            calls["outer"] += 1
            await ctx.step.run("inner", lambda: calls.update(["inner"]))
            await ctx.step.sleep("rest", "1m")
            return "outer"

        return await ctx.step.run("outer", outer, on_reclaim="fail")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    steps = await steps_of(look, run_id)
    assert (steps["outer"]["status"], steps["inner"]["status"]) == ("pending", "completed")
    await hand.later(minutes=2)
    assert await output_of(look, run_id) == "outer"
    assert calls == {"outer": 2, "inner": 1}
    assert (await steps_of(look, run_id))["outer"]["is_reclaim"] is False
