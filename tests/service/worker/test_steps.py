"""Durable steps in a worker host: replies that are lost on the way, stops in the midst of a step."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from kernel import StageAbortedError, StageContext
from tests.support.arena import Arena
from tests.support.hosts import running, settings
from tests.support.proxy import LossyProxy
from tests.support.stagehand import Stagehand
from tests.support.stress import RUNGS
from tests.support.waiting import until

TOTAL = RUNGS * (RUNGS + 1) // 2
# What the messages with COMMIT carry: the first claim, a claim with the outcome before it, the last outcome's settle.
COMMITS = {
    "claim": lambda data: b"step_ledger" in data and b"claim" in data and b"outcome" not in data,
    "outcome": lambda data: b"step_ledger" in data and b"outcome" in data,
    "settle": lambda data: b"settle_expected" in data and b"workflow:completed" in data,
}


@pytest.mark.parametrize("which", sorted(COMMITS))
@pytest.mark.parametrize("silently", [False, True])
async def test_a_lost_reply_costs_no_second_call_of_a_step(
    ring: Arena, monkeypatch: pytest.MonkeyPatch, which: str, silently: bool
) -> None:
    """claim_id tells that the claim is had, and that the outcome is recorded."""
    monkeypatch.setattr("tenancy.owned.REPLY_S", 2.0)
    async with LossyProxy(ring.urls.worker) as proxy, running(settings(ring.urls, database_url=proxy.url)):
        await ring.start("nap", 1)
        await ring.all_over()
        proxy.lose(COMMITS[which], silently=silently)
        await ring.start("climb", 3)
        assert await ring.all_over(20) == {"COMPLETED": 4}
        assert proxy.lost == 1
    await ring.assert_settled_once()
    calls = Counter((run_id, step_id) for run_id, step_id, *_ in ring.notes("rung"))
    assert (len(calls), set(calls.values())) == (3 * RUNGS, {1})
    runs = await ring.rows(
        "select output from tenantry.workflow_runs where tenant_id = %(tenant)s and workflow_id = 'climb'"
    )
    assert [run["output"] for run in runs] == [{"total": TOTAL}] * 3
    assert {stage["attempt"] for stage in await ring.stages()} == {1}


async def test_a_stop_in_the_midst_of_a_step_gives_its_lease_back(ring: Arena) -> None:
    """The next worker runs the step at once, as a reclaim, in the same attempt of its stage."""
    quick = {"shutdown_grace": timedelta(milliseconds=100), "abort_grace": timedelta(milliseconds=100)}
    await ring.start("climb", hang_at=7, lease="1h")
    async with running(settings(ring.urls, **quick)):
        await ring.noted("hung")
    (step,) = await ring.rows(
        "select step_id, lease_expires_at <= clock_timestamp() as is_over, now() from tenantry.workflow_steps"
        " where tenant_id = %(tenant)s and status = 'running'"
    )
    assert (step["step_id"], step["is_over"]) == ("rung-3", True)
    assert {stage["attempt"] for stage in await ring.stages()} == {0}
    began = time.monotonic()
    async with running(settings(ring.urls, **quick)):
        await ring.noted("hung", 2)
        assert time.monotonic() - began < 5
    assert [note[3] for note in ring.notes("rung") if note[1] == "rung-3"] == ["1", "2"]
    assert len({note[2] for note in ring.notes("rung") if note[1] == "rung-3"}) == 1


async def test_a_database_that_is_away_while_a_replay_reads_its_ledger_costs_no_attempt(ring: Arena) -> None:
    async with LossyProxy(ring.urls.worker) as proxy, running(settings(ring.urls, database_url=proxy.url)):
        await ring.start("nap", 1)
        await ring.all_over()

        def is_read(data: bytes) -> bool:
            if b"order by step.seq" not in data:
                return False
            if proxy.lost < 5:
                asyncio.get_running_loop().call_soon(proxy.lose, is_read)
            return True

        proxy.lose(is_read)
        await ring.start("dozing", seconds=0.5)
        assert await ring.all_over(30) == {"COMPLETED": 2}
        assert proxy.lost == 6
    assert (await ring.events())["stage:retrying"] == 0


async def test_each_thread_of_a_step_that_does_not_stop_keeps_a_slot_until_it_returns(ring: Arena) -> None:
    async with running(settings(ring.urls, abort_grace=timedelta(milliseconds=100))) as host:
        (run_id,) = await ring.start("stubborn_steps", seconds=3)
        await ring.noted("start", 3)
        await ring.cancel(run_id)
        assert host.executor is not None
        executor = host.executor
        await until(lambda: executor.abandoned == 3 and not executor.executions, "the body is abandoned")
        assert executor.room == executor.concurrency - 3
        await ring.noted("end", 3)
        await until(lambda: executor.abandoned == 0, "the slots are free")


async def test_a_body_that_goes_on_when_a_step_tells_it_to_stop_has_the_grace_and_no_longer(ring: Arena) -> None:
    """The ledger knows of a cancellation before any look at the runs does; the slot is not the body's to keep."""
    is_over = asyncio.Event()

    async def body(ctx: StageContext[Any]) -> None:
        begun.set()
        await is_over.wait()
        with suppress(StageAbortedError):
            await ctx.step.run("late", lambda: None)
        await asyncio.Event().wait()

    begun = asyncio.Event()
    hand = Stagehand(ring.database, ring.tenant_id, body)
    run_id = await hand.start()
    async with running(settings(ring.urls, abort_grace=timedelta(milliseconds=100)), hand.registry) as host:
        await begun.wait()
        await ring.cancel(run_id)
        is_over.set()
        executor = host.executor
        assert executor is not None
        await until(lambda: not executor.executions, "the body is let go")
        assert (executor.room, executor.abandoned) == (executor.concurrency, 0)
    assert await ring.rows("select from tenantry.job_queue where tenant_id = %(tenant)s") == []


async def test_the_replay_of_a_worker_that_died_goes_on_within_a_moment_of_its_next_poll(ring: Arena) -> None:
    """Leases are looked for once a second. Its own lease would be stale four minutes later."""

    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.wait_for_signal("approve", timeout="1h")

    hand = Stagehand(ring.database, ring.tenant_id, body)
    # Its next poll is a minute behind the lease, and so comes while the other worker is looking already.
    hand.clock.advance(seconds=-57)
    run_id = await hand.start()
    await hand.go()
    await hand.signal(run_id, "approve", "yes")
    assert (await hand.lease()).replay
    (job,) = await ring.rows("select available_at from tenantry.job_queue where run_id = %(run)s", run=run_id)
    async with running(settings(ring.urls), hand.registry):
        assert await ring.all_over() == {"COMPLETED": 1}
    (run,) = await ring.rows(
        "select completed_at, output from tenantry.workflow_runs where run_id = %(run)s", run=run_id
    )
    assert run["output"] == "yes"
    late_s = (run["completed_at"] - job["available_at"]).total_seconds()
    assert 0 <= late_s < 3, "a look a second, a look for work, the body"
