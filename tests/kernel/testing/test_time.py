"""The harness's clock: what comes due on the way is done at its time, and nothing wakes up for nothing."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from kernel import (
    RunStatus,
    StageContext,
    StepTimeoutError,
)
from kernel.testing.session import Session
from tenancy import load_sql
from tests.kernel.testing.plays import Make, begin, ten_steps

NOW = load_sql(__file__)


async def test_what_comes_due_on_the_way_is_done_at_its_time(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        for number in range(3):
            await ctx.step.sleep(f"rest-{number}", "8h")
        return "rested"

    harness = make(body)
    run = await begin(harness)
    await harness.advance("23h")
    assert await run.go() == "suspended"
    assert [name[1] for name in await run.steps()] == ["rest-0", "rest-1", "rest-2"]
    await harness.advance("2h")
    assert await run.output() == "rested"


async def test_what_comes_due_while_nobody_looks_is_done_at_its_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Session.next_due

    async def look_late(session: Session, run_ids: Sequence[UUID]) -> timedelta | None:
        # The database's clock goes on while a test is at it.
        await asyncio.sleep(0.4)
        return await look(session, run_ids)

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("short", 0.2)
        await ctx.step.sleep("long", "1h")
        return "rested"

    monkeypatch.setattr(Session, "next_due", look_late)
    harness = make(body)
    run = await begin(harness)
    await harness.advance("2h")
    assert await run.output() == "rested"


async def test_a_poll_every_minute_is_polled_sixty_times_an_hour(make: Make) -> None:
    polls: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.wait_for(
            "ready", poll=lambda: polls.append(1) or len(polls), ready=lambda n: n > 60, every="1m", timeout="24h"
        )

    harness = make(body)
    run = await begin(harness)
    await harness.advance("59m")
    assert len(polls) == 60
    await harness.advance("1m")
    assert await run.output() == 61
    assert run.calls["act", "ready"] == 61


async def test_a_signal_is_waited_for_without_waking_up_for_nothing(make: Make) -> None:
    bodies: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        bodies.append(1)
        try:
            return await ctx.step.wait_for_signal("approve", timeout="7d")
        except StepTimeoutError:
            return "late"

    harness = make(body)
    run = await begin(harness)
    await harness.advance("6d")
    assert await run.go() == "suspended"
    assert len(bodies) < 5
    await harness.advance("2d")
    assert await run.output() == "late"


async def test_a_run_of_the_future_starts_when_the_clock_is_there(make: Make) -> None:
    harness = make(ten_steps)
    async with harness.transaction() as tx:
        now = (await tx.fetch_all(NOW["now"]))[0]["now"]
    run = await begin(harness, run_at=now.replace(year=now.year + 1))
    assert await run.go() == "incomplete"
    await harness.advance("400d")
    assert await run.go() == "completed"
    [*_, last] = await run.events()
    assert (last.occurred_at.year - now.year, (last.occurred_at - now).days < 367) == (1, True)


async def test_a_clock_without_workers_leaves_what_is_due(make: Make) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1h")
        return "rested"

    harness = make(body)
    run = await begin(harness)
    assert await run.go() == "suspended"
    harness.stand_still("2h")
    assert await run.status() is RunStatus.RUNNING
    assert await run.go() == "completed"
    with pytest.raises(ValueError):
        await harness.advance("a while")
