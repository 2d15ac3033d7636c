"""Durable steps on a caller's transaction: a body is run again from the top, its completed steps from the ledger."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from kernel import (
    JobExecute,
    Kernel,
    RunCreate,
    SignalRefusedError,
    StageContext,
    StagePollSuspended,
    StageStatus,
    StepTimeoutError,
    UnknownStageError,
)
from tenancy import Database
from tests.kernel.execution.theatre import Theatre
from tests.support.looking import Look
from tests.support.workflows import CLOCK


class Approval(BaseModel):
    """A signal's payload."""

    by: str


@pytest.fixture
def theatre(database: Database, tenant: UUID, look: Look) -> Callable[..., Theatre]:
    return lambda body, **options: Theatre(database, tenant, look, body, **options)


Make = Callable[..., Theatre]


async def test_a_step_runs_once_and_its_result_is_what_json_gives_back(theatre: Make) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def first() -> dict[str, Any]:
            calls["first"] += 1
            return {"day": date(2026, 1, 2), "price": Decimal("1.50"), "pair": (1, 2), "raw": b"\xff"}

        async def second(step: Any) -> str:
            calls["second"] += 1
            return str(step.external_key)

        got = await ctx.step.run("first", first)
        return [got, await ctx.step.run("second", second), await ctx.step.run("none", lambda: None)]

    play = theatre(body)
    assert await play.go() == "completed"
    output = (await play.run())["output"]
    assert output[0] == {"day": "2026-01-02", "price": "1.50", "pair": [1, 2], "raw": "_w=="}
    assert output[1].startswith("tny-")
    assert len(output[1]) == 36
    assert output[2] is None
    steps = await play.steps()
    assert {name: (row["seq"], row["status"], row["attempt"]) for name, row in steps.items()} == {
        "first": (1, "completed", 1),
        "second": (2, "completed", 1),
        "none": (3, "completed", 1),
    }
    assert steps["second"]["external_key"] == output[1]
    assert calls == {"first": 1, "second": 1}


async def test_a_sleep_suspends_once_and_wakes_at_its_time(theatre: Make) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("before", lambda: calls.update(["before"]))
        await ctx.step.sleep("rest", "1h")
        return "rested"

    play = theatre(body)
    assert await play.go() == "suspended"
    stage = await play.stage()
    assert (stage["status"], stage["attempt"], stage["waiting_for"]["step_id"]) == ("SUSPENDED", 1, "rest")
    assert await play.later(minutes=59) == "suspended"
    assert await play.later(minutes=2) == "completed"
    assert calls["before"] == 1
    assert (await play.stage())["attempt"] == 1
    assert await play.events() == [
        "workflow:created",
        "workflow:started",
        "stage:started",
        "stage:suspended",
        "stage:completed",
        "workflow:completed",
    ]


async def test_a_failing_step_is_retried_after_its_delay_and_then_raises(theatre: Make) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def flaky() -> None:
            calls["flaky"] += 1
            raise LookupError(f"try {calls['flaky']}")

        try:
            await ctx.step.run("flaky", flaky, retries=2, retry_delay="10s", retry_backoff={"factor": 2})
        except LookupError as error:
            return str(error)

    play = theatre(body)
    assert await play.go() == "suspended"
    assert await play.later(seconds=9) == "suspended"
    assert await play.later(seconds=2) == "suspended"
    assert calls["flaky"] == 2
    assert await play.later(seconds=19) == "suspended"
    assert calls["flaky"] == 2
    assert await play.later(seconds=2) == "completed"
    assert (await play.run())["output"] == "try 3"
    assert (await play.steps())["flaky"]["status"] == "failed"


async def test_a_failed_step_is_raised_again_by_a_replay_as_it_was(theatre: Make) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def broken() -> None:
            calls["broken"] += 1
            raise LookupError("gone")

        try:
            await ctx.step.run("broken", broken)
        except LookupError as error:
            seen = str(error)
        await ctx.step.sleep("rest", "1m")
        return seen

    play = theatre(body)
    assert await play.go() == "suspended"
    assert await play.later(minutes=2) == "completed"
    assert ((await play.run())["output"], calls["broken"]) == ("gone", 1)


async def test_a_stage_retry_keeps_completed_steps_and_opens_failed_ones_again(theatre: Make) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        def second() -> str:
            calls["second"] += 1
            if calls["second"] == 1:
                raise LookupError("once")
            return "there"

        await ctx.step.run("first", lambda: calls.update(["first"]))
        return await ctx.step.run("second", second)

    play = theatre(body, max_attempts=2)
    assert await play.go() == "incomplete"
    assert await play.later(seconds=5) == "completed"
    assert calls == {"first": 1, "second": 2}
    assert (await play.steps())["second"]["attempt"] == 2


async def test_a_signal_is_waited_for_and_wakes_at_once(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        approval = await ctx.step.wait_for_signal("approve", timeout="7d", model=Approval)
        return approval.by

    play = theatre(body)
    assert await play.go() == "suspended"
    assert await play.signal("approve", {"by": "ada"}) == (True, False)
    assert await play.signal("approve", {"by": "bob"}) == (True, True)
    assert await play.go() == "completed"
    assert (await play.run())["output"] == "ada"
    assert "step:signalled" in await play.events()
    with pytest.raises(SignalRefusedError):
        await play.signal("approve", {"by": "eve"})


async def test_a_signal_before_the_wait_is_kept(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.wait_for_signal("approve", timeout="7d")

    play = theatre(body)
    await play.start()
    assert await play.signal("approve", None) == (True, False)
    assert await play.go() == "completed"
    assert (await play.run())["output"] is None


async def test_a_late_signal_is_refused_and_the_wait_times_out(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        try:
            await ctx.step.wait_for_signal("approve", timeout="1h")
        except StepTimeoutError:
            return "late"

    play = theatre(body)
    assert await play.go() == "suspended"
    play.offset += timedelta(hours=2)
    with pytest.raises(SignalRefusedError):
        await play.signal("approve", 1)
    assert await play.go() == "completed"
    assert (await play.run())["output"] == "late"


async def test_signals_to_what_does_not_exist_are_refused(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")

    play = theatre(body)
    assert await play.go() == "suspended"
    with pytest.raises(UnknownStageError):
        await play.signal("approve", 1, stage_id="nowhere")
    with pytest.raises(SignalRefusedError):
        await play.signal("rest", 1)


async def test_polls_come_at_their_pace_until_ready_or_too_late(theatre: Make) -> None:
    polls: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        def poll() -> int:
            polls.append(len(polls))
            if len(polls) == 2:
                raise ConnectionError("away")
            return len(polls)

        return await ctx.step.wait_for("ready", poll=poll, ready=lambda n: n >= 4, every="1m", timeout="1h")

    play = theatre(body)
    assert await play.go() == "suspended"
    assert await play.later(seconds=30) == "suspended"
    assert len(polls) == 1
    for _ in range(2):
        assert await play.later(seconds=61) == "suspended"
    assert await play.later(seconds=61) == "completed"
    assert ((await play.run())["output"], len(polls)) == (4, 4)
    assert (await play.events()).count("stage:suspended") == 1


async def test_steps_side_by_side_are_all_recorded_before_the_stage_suspends(theatre: Make) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        async def slow(name: str) -> str:
            await asyncio.sleep(0.05)
            calls[name] += 1
            return name

        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(ctx.step.run(f"slow-{n}", partial(slow, f"slow-{n}"))) for n in range(5)]
            tasks.create_task(ctx.step.sleep("rest", "1m"))
        return [task.result() for task in made]

    play = theatre(body)
    assert await play.go() == "suspended"
    assert {row["status"] for name, row in (await play.steps()).items() if name != "rest"} == {"completed"}
    assert await play.later(minutes=2) == "completed"
    assert (await play.run())["output"] == [f"slow-{n}" for n in range(5)]
    assert calls == {f"slow-{n}": 1 for n in range(5)}


async def test_a_swallowed_suspension_suspends_all_the_same(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        try:
            await ctx.step.sleep("rest", "1m")
        except BaseException:  # noqa: BLE001
            return "swallowed"
        return "rested"

    play = theatre(body)
    assert await play.go() == "suspended"
    assert await play.later(minutes=2) == "completed"
    assert (await play.run())["output"] == "rested"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("twice", "DuplicateStepKeyError"), ("nan", "StepResultNotSerializableError"), ("object", "NotSerializable")],
)
async def test_what_a_body_may_not_do_fails_with_a_typed_error(theatre: Make, kind: str, text: str) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        if kind == "twice":
            await ctx.step.run("same", lambda: 1)
            await ctx.step.sleep("same", 1)
        await ctx.step.run("result", lambda: float("nan") if kind == "nan" else object())

    play = theatre(body, max_attempts=1)
    assert await play.go() == "failed"
    assert text in (await play.run())["error"]["message"]


@pytest.mark.parametrize(
    "options",
    [
        {"lease": "42m30s"},
        {"lease": 0},
        {"retries": -1},
        {"retry_backoff": {"factor": 0.5}},
        {"heartbeat": "-1s"},
        {"retry_backoff": 5},
    ],
)
async def test_bad_options_are_value_errors_before_anything_is_recorded(theatre: Make, options: Any) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        with pytest.raises(ValueError):
            await ctx.step.run("bad", lambda: 1, **options)
        return "refused"

    play = theatre(body)
    assert await play.go() == "completed"
    assert await play.steps() == {}


async def test_job_execute_answers_suspended_with_the_next_poll(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")

    play = theatre(body)
    assert await play.go() == "suspended"
    async with play.database.transaction(play.tenant) as tx:
        executed = await play.kernel.dispatch(JobExecute(play.run_id, "act"), tx)
    assert (executed.outcome, (await play.stage())["status"]) == ("suspended", StageStatus.SUSPENDED)
    assert executed.next_poll_at == (await play.stage())["next_poll_at"]


async def test_the_readmes_example_waits_for_its_approval_and_pays(
    database: Database, tenant: UUID, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    example = readme.split("```python\n# billing.py\n", 1)[1].split("```", 1)[0]
    module = ModuleType("billing")
    monkeypatch.setitem(sys.modules, "billing", module)
    exec(compile(example, "billing.py", "exec"), module.__dict__)

    async def unused(ctx: StageContext[Any]) -> None: ...

    play = Theatre(database, tenant, look, unused)
    play.kernel = Kernel(module.registry)
    async with database.transaction(tenant) as tx:
        play.run_id = (await play.kernel.dispatch(RunCreate("billing", {"number": "A-1", "total": 2000}), tx)).run_id
    assert await play.go() == "suspended"
    assert await play.signal("approve", {"approved_by": "ada"}, stage_id="pay") == (True, False)
    assert await play.go() == "suspended"
    assert await play.later(hours=2) == "completed"
    assert (await play.run())["output"] == "charge-A-1"


async def test_a_replay_that_a_worker_has_is_incomplete(theatre: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")

    play = theatre(body)
    assert await play.go() == "suspended"
    play.offset += timedelta(hours=2)
    async with play.database.transaction(play.tenant) as tx:
        await tx.fetch_all(CLOCK["advance"], offset=f"{play.offset.total_seconds()} seconds")
        polled = await play.kernel.dispatch(StagePollSuspended("another"), tx)
    assert [job.stage_id for job in polled.claimed] == ["act"]
    assert await play.go() == "incomplete"
