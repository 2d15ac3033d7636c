"""Signals against waits, settles and timeouts: no wake-up is lost, no body runs twice."""

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import JobSettle, SignalRefusedError, StageContext, StepSignal, StepTimeoutError, StepWrite
from tests.support.looking import Look
from tests.support.stagehand import PID, Make, Stagehand, finish, holding, run_of
from tests.support.waiting import until_someone_blocked


async def waiting_body(ctx: StageContext[Any]) -> Any:
    try:
        return await ctx.step.wait_for_signal("approve", timeout="1h")
    except StepTimeoutError:
        return "late"


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["signal", "wait"])
async def test_a_signal_against_the_first_use_of_its_wait(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    """Whoever has the run's lock first writes the row; the other one meets it."""
    hand = make(waiting_body)
    run_id = await hand.start()
    job = await hand.lease()

    async with holding(hand) as (tx, pid):
        if first == "signal":
            await hand.kernel.dispatch(StepSignal(run_id, "act", "approve", "yes"), tx)
            await tx.fetch_one(PID)
            performing = asyncio.create_task(hand.perform(job))
            signalling = None
        else:
            opened = asyncio.Event()

            async def around(ops: Any, _write: Any) -> Any:
                answers = await hand.kernel.dispatch(StepWrite(ops, wait=True), tx)
                opened.set()
                return answers

            hand.around = around
            performing = asyncio.create_task(hand.perform(job))
            await opened.wait()
            signalling = asyncio.create_task(hand.signal(run_id, "approve", "yes"))
        await until_someone_blocked(superuser, by=pid)
    hand.around = None
    act = await performing
    if signalling is not None:
        assert (await signalling).already_completed is False
    await hand.conclude(act)
    await finish(hand)
    assert await run_of(look, run_id) == ("COMPLETED", "yes")


@pytest.mark.parametrize("first", ["signal", "settle"])
async def test_a_signal_against_the_settle_that_suspends_its_stage(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    """Either the settle sees the step completed, or the signal finds the job parked: the stage is due at once."""
    hand = make(waiting_body)
    run_id = await hand.start()
    act = await hand.perform(await hand.lease())

    async with holding(hand) as (tx, pid):
        if first == "signal":
            await hand.kernel.dispatch(StepSignal(run_id, "act", "approve", "yes"), tx)
            await tx.fetch_one(PID)
            other: asyncio.Task[Any] = asyncio.create_task(hand.conclude(act))
        else:
            await hand.kernel.dispatch(JobSettle(hand.worker_id, [act.settlement], wait=True), tx)
            await tx.fetch_one(PID)
            other = asyncio.create_task(hand.signal(run_id, "approve", "yes"))
        await until_someone_blocked(superuser, by=pid)
    await other
    (job,) = await look("select status, ready, replay from tenantry.job_queue where run_id = %s", run_id)
    assert job == {"status": "PENDING", "ready": True, "replay": True}
    await finish(hand)
    assert await run_of(look, run_id) == ("COMPLETED", "yes")


async def test_a_signal_to_a_leased_stage_leaves_its_lease_alone_and_wakes_it_when_it_suspends(
    make: Make, look: Look
) -> None:
    hand = make(waiting_body)
    run_id = await hand.start()
    job = await hand.lease()
    act = await hand.perform(job)
    assert (await hand.signal(run_id, "approve", "yes")).already_completed is False
    (leased,) = await look("select status, started_at from tenantry.job_queue where run_id = %s", run_id)
    assert leased == {"status": "RUNNING", "started_at": job.fence.started_at}
    assert await hand.tick() == ()
    settled = await hand.conclude(act)
    assert (settled.stage_status, await run_of(look, run_id)) == ("SUSPENDED", ("RUNNING", None))
    await finish(hand)
    assert await run_of(look, run_id) == ("COMPLETED", "yes")


@pytest.mark.parametrize("first", ["signal", "timeout"])
async def test_a_signal_against_the_timeout_of_its_wait(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    """Delivered before the deadline it beats a timeout that comes later; refused once the timeout is recorded."""
    hand = make(waiting_body)
    run_id = await hand.start()
    await hand.go()

    if first == "signal":
        # Sent in time by a transaction that is still open when the deadline passes and the stage is woken.
        async with holding(hand) as (tx, pid):
            await hand.kernel.dispatch(StepSignal(run_id, "act", "approve", "yes"), tx)
            await tx.fetch_one(PID)
            hand.clock.advance(hours=2)
            assert await hand.tick() == (), "the run is held"
        await finish(hand)
        assert await run_of(look, run_id) == ("COMPLETED", "yes")
        return
    hand.clock.advance(hours=2)
    job = await hand.lease()
    async with holding(hand) as (tx, pid):

        async def around(ops: Any, _write: Any) -> Any:
            answers = await hand.kernel.dispatch(StepWrite(ops, wait=True), tx)
            signalling.append(asyncio.create_task(hand.signal(run_id, "approve", "yes")))
            return answers

        signalling: list[asyncio.Task[Any]] = []
        hand.around = around
        act = await hand.perform(job)
        await until_someone_blocked(superuser, by=pid)
    hand.around = None
    with pytest.raises(SignalRefusedError):
        await signalling[0]
    await hand.conclude(act)
    assert await run_of(look, run_id) == ("COMPLETED", "late")


@pytest.mark.parametrize("seed", range(2))
async def test_signals_against_waits_and_settles_in_both_orders(make: Make, look: Look, seed: int) -> None:
    await Hammer(make, seed).strike(look, rounds=100)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
async def test_the_same_for_long(make: Make, look: Look, seed: int) -> None:
    """A thousand of each moment."""
    await Hammer(make, seed).strike(look, rounds=400)


# When a run is signalled: at once, as its body asks for the signal, as its stage is settled, and when that is done.
MOMENTS = ("created", "asking", "settling", "settled")


class Hammer:
    """Two senders and two workers on many runs; every run completes with the payload that was first, woken by nothing else."""

    def __init__(self, make: Make, seed: int) -> None:
        self.rng = random.Random(seed)
        self.first = make(self.body, name=f"first-{seed}")
        self.hands = [self.first, self.first.second(f"second-{seed}")]
        self.calls: Counter[tuple[UUID, str]] = Counter()
        self.under_way: Counter[UUID] = Counter()
        self.doubled: list[UUID] = []
        self.firsts: dict[UUID, list[str]] = {}
        self.moments: dict[tuple[UUID, str], asyncio.Event] = defaultdict(asyncio.Event)

    async def body(self, ctx: StageContext[Any]) -> Any:
        self.under_way[ctx.run_id] += 1
        if self.under_way[ctx.run_id] > 1:
            self.doubled.append(ctx.run_id)
        try:
            await ctx.step.run("before", lambda: self.calls.update([(ctx.run_id, "before")]))
            self.moments[ctx.run_id, "asking"].set()
            got = await ctx.step.wait_for_signal("approve", timeout="1h", keepalive="1h")
            await ctx.step.run("after", lambda: self.calls.update([(ctx.run_id, "after")]))
            return got
        finally:
            self.under_way[ctx.run_id] -= 1

    async def send(self, run_id: UUID, moment: str, word: str) -> None:
        await self.moments[run_id, moment].wait()
        for _ in range(self.rng.randrange(7)):
            await asyncio.sleep(0)
        # The other sender's signal may have ended the run already.
        with suppress(SignalRefusedError):
            if not (await self.first.signal(run_id, "approve", word)).already_completed:
                self.firsts[run_id].append(word)

    async def one(self, moment: str) -> None:
        run_id = await self.first.start()
        self.firsts[run_id] = []
        self.moments[run_id, "created"].set()
        await asyncio.gather(self.send(run_id, moment, "left"), self.send(run_id, moment, "right"))

    async def send_all(self, rounds: int) -> None:
        for number in range(0, rounds, len(MOMENTS)):
            await asyncio.gather(*(self.one(moment) for moment in MOMENTS[: rounds - number]))

    async def work(self, hand: Stagehand, sending: "asyncio.Task[None]") -> None:
        idle = 0
        while not sending.done() or idle < 2:
            jobs = await hand.tick(limit=3)
            idle = 0 if jobs else idle + 1
            for act in [await hand.perform(job) for job in jobs]:
                self.moments[act.job.run_id, "settling"].set()
                await hand.conclude(act)
                self.moments[act.job.run_id, "settled"].set()

    async def strike(self, look: Look, rounds: int) -> None:
        sending = asyncio.create_task(self.send_all(rounds))
        await asyncio.gather(sending, *(self.work(hand, sending) for hand in self.hands))
        await finish(self.first)

        query = "select run_id, status, output from tenantry.workflow_runs where run_id = any(%s)"
        rows = await look(query, list(self.firsts))
        assert len(rows) == rounds
        assert {row["status"] for row in rows} == {"COMPLETED"}, "a wake-up was lost"
        assert {row["run_id"]: [row["output"]] for row in rows} == self.firsts, "another payload than the first"
        assert self.doubled == []
        assert (set(self.calls.values()), len(self.calls)) == ({1}, 2 * rounds)
        (orders,) = await look(ORDERS, list(self.firsts))
        assert min(orders.values()) >= rounds // 20, f"each order has come: {orders}"


# How many signals came before their wait, between the wait and the settle that suspends, and after that.
ORDERS = """
select
  count(*) filter (where step.seq is null) as before_the_wait,
  count(*) filter (where step.seq is not null and signalled.sequence < coalesce(suspended.sequence, 1000)) as before_the_settle,
  count(*) filter (where signalled.sequence > suspended.sequence) as after_the_settle
from tenantry.workflow_steps as step
join tenantry.outbox_events as signalled on signalled.run_id = step.run_id and signalled.type = 'step:signalled'
left join tenantry.outbox_events as suspended on suspended.run_id = step.run_id and suspended.type = 'stage:suspended'
where step.step_id = 'approve' and step.run_id = any(%s)
"""
