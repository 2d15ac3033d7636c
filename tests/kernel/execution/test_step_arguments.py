"""What bodies hand to their steps: what cannot work is refused before anything is recorded, the rest is taken as it is meant."""

import asyncio
from collections import Counter
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from kernel import RunRedrive, StageContext, Step
from tests.support.looking import Look
from tests.support.stagehand import Make, finish, output_of, steps_of


class Quote(BaseModel):
    total: int


async def given() -> int:
    return 1


@pytest.mark.parametrize("which", ["fn", "coroutine", "poll", "ready", "model of run", "model of signal"])
async def test_what_cannot_be_called_or_validated_is_a_value_error_and_nothing_is_recorded(
    make: Make, look: Look, which: str
) -> None:
    """A function that has been called, or a misspelt model, is found before an effect is had whose result fits nothing."""
    waiting: dict[str, Any] = {"every": "1m", "timeout": "1h"}

    async def body(ctx: StageContext[Any]) -> Any:
        step: Any = ctx.step
        match which:
            case "fn":
                await step.run("s", None)
            case "coroutine":
                await step.run("s", given())
            case "poll":
                await step.wait_for("s", poll=1, ready=bool, **waiting)
            case "ready":
                await step.wait_for("s", poll=given, ready=True, **waiting)
            case "model of run":
                await step.run("s", given, model=object())
            case _:
                await step.wait_for_signal("s", timeout="1h", model=object())

    hand = make(body)
    run_id = await hand.start()
    settled = await hand.go()
    assert str(settled.error).startswith(f"ValueError: {which.split(maxsplit=1)[0].replace('coroutine', 'fn')}: ")
    assert await steps_of(look, run_id) == {}


async def test_a_model_may_be_any_type_that_pydantic_knows_hashable_or_not(make: Make, look: Look) -> None:
    positive = Annotated[int, Field(gt=0), {"not": "hashable"}]

    async def body(ctx: StageContext[Any]) -> Any:
        return [await ctx.step.run("a", given, model=positive), await ctx.step.run("b", given, model=int | None)]

    hand = make(body)
    run_id = await hand.start()
    await finish(hand)
    assert await output_of(look, run_id) == [1, 1]


async def test_a_result_that_does_not_fit_its_model_is_recorded_all_the_same(make: Make, look: Look) -> None:
    """The effect has been had: whoever mends the model goes on with it, where a failed step would be had again."""
    calls: Counter[str] = Counter()
    fits = False

    async def body(ctx: StageContext[Any]) -> Any:
        def quote() -> dict[str, Any]:
            calls["quote"] += 1
            return {"total": "a lot"}

        return await ctx.step.run("quote", quote, model=dict[str, str] if fits else Quote)

    hand = make(body)
    run_id = await hand.start()
    settled = await hand.go()
    assert (settled.run_status, str(settled.error).partition(":")[0]) == ("FAILED", "StepModelMismatchError")
    assert (await steps_of(look, run_id))["quote"]["status"] == "completed"
    fits = True
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunRedrive(run_id), tx)
    await finish(hand)
    assert await output_of(look, run_id) == {"total": "a lot"}
    assert calls["quote"] == 1


async def test_a_number_that_python_would_not_read_back_is_no_result(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("huge", lambda: 10**5_000, retries=3)

    hand = make(body, max_attempts=1)
    run_id = await hand.start()
    settled = await hand.go()
    assert str(settled.error).startswith("StepResultNotSerializableError: step 'huge': ")
    assert (await steps_of(look, run_id))["huge"]["attempt"] == 1


async def test_ready_may_be_a_coroutine_function(make: Make, look: Look) -> None:
    """Its coroutine is true whatever it would say: taken for an answer, the first poll would end the wait."""
    polls: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def ready(number: int) -> bool:
            return number == 2

        def poll() -> int:
            polls.append(1)
            return len(polls)

        return await ctx.step.wait_for("paid", poll=poll, ready=ready, every="1m", timeout="1h")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    await hand.later(minutes=2)
    assert await output_of(look, run_id) == 2


async def test_a_ready_whose_answer_is_neither_true_nor_false_is_a_poll_that_failed(make: Make, look: Look) -> None:
    """Like one that raises, and like the comparison of two arrays: it is asked again until the deadline."""

    class Ambiguous:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    async def body(ctx: StageContext[Any]) -> Any:
        ready: Any = lambda _value: Ambiguous()  # noqa: E731
        return await ctx.step.wait_for("paid", poll=given, ready=ready, every="1m", timeout="1h")

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    row = (await steps_of(look, run_id))["paid"]
    assert (row["status"], row["failures"], row["error"]) == ("pending", 1, "ValueError: ambiguous")


async def test_a_function_in_a_thread_may_beat_from_a_loop_of_its_own(make: Make, look: Look) -> None:
    """Answered in the body's loop it would wait for ever for the answer in its own, and keep its thread."""

    async def body(ctx: StageContext[Any]) -> Any:
        def long(step: Step) -> str:
            asyncio.run(step.heartbeat())
            return "beaten"

        return await ctx.step.run("long", long)

    hand = make(body)
    run_id = await hand.start()
    beats: Counter[str] = Counter()
    loop = asyncio.get_running_loop()

    async def around(ops: Any, write: Any) -> Any:
        beats.update(str(op.values.get("status")) for op in ops if op.op == "outcome")
        assert asyncio.get_running_loop() is loop
        return await write()

    hand.around = around
    await hand.go()
    assert await output_of(look, run_id) == "beaten"
    assert beats["running"] == 1


async def test_a_step_that_is_asked_for_in_another_loop_is_refused(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("outer", lambda: asyncio.run(ctx.step.sleep("inner", "1h")))

    hand = make(body)
    run_id = await hand.start()
    settled = await hand.go()
    assert str(settled.error).startswith("StepError: step 'inner': asked for in another event loop")
    assert set(await steps_of(look, run_id)) == {"outer"}
