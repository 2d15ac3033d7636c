"""Signals, settles, cancels and two workers on the same steps: no wake-up is lost, no body runs twice."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import JobSettle, RunCancel, SignalRefusedError, StageContext, StepSignal, StepTimeoutError, StepWrite
from tenancy import Database, TenantTransaction
from tenancy.sql import parse
from tests.races.conftest import Look
from tests.support.stagehand import Stagehand
from tests.support.waiting import until, until_someone_blocked

PID = parse("-- name: pid\nselect pg_backend_pid() as pid", "pid")["pid"]
Make = Callable[..., Stagehand]


@pytest.fixture
def make(database: Database, tenant: UUID) -> Make:
    return lambda body, **options: Stagehand(database, tenant, body, **options)


async def waiting_body(ctx: StageContext[Any]) -> Any:
    try:
        return await ctx.step.wait_for_signal("approve", timeout="1h")
    except StepTimeoutError:
        return "late"


@asynccontextmanager
async def holding(hand: Stagehand) -> AsyncIterator[tuple[TenantTransaction, int]]:
    """A transaction of the first connection, with the process id of its server side."""
    async with hand.transaction() as tx:
        row = await tx.fetch_one(PID)
        assert row is not None
        yield tx, row["pid"]


async def run_of(look: Look, run_id: UUID) -> tuple[str, Any]:
    (row,) = await look("select status, output from tenantry.workflow_runs where run_id = %s", run_id)
    return row["status"], row["output"]


async def steps_of(look: Look, run_id: UUID) -> dict[str, dict[str, Any]]:
    rows = await look("select * from tenantry.workflow_steps where run_id = %s", run_id)
    return {row["step_id"]: row for row in rows}


async def finish(hand: Stagehand) -> None:
    """Execute whatever is due until nothing is."""
    while jobs := await hand.tick():
        for job in jobs:
            await hand.conclude(await hand.perform(job))


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
async def test_signals_against_waits_in_any_order(make: Make, look: Look, seed: int) -> None:
    await Hammer(make, seed).strike(look, rounds=150)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
async def test_the_same_for_long(make: Make, look: Look, seed: int) -> None:
    await Hammer(make, seed).strike(look, rounds=100)


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

    async def body(self, ctx: StageContext[Any]) -> Any:
        self.under_way[ctx.run_id] += 1
        if self.under_way[ctx.run_id] > 1:
            self.doubled.append(ctx.run_id)
        try:
            await ctx.step.run("before", lambda: self.calls.update([(ctx.run_id, "before")]))
            got = await ctx.step.wait_for_signal("approve", timeout="1h", keepalive="1h")
            await ctx.step.run("after", lambda: self.calls.update([(ctx.run_id, "after")]))
            return got
        finally:
            self.under_way[ctx.run_id] -= 1

    async def send(self, run_id: UUID, word: str) -> None:
        for _ in range(self.rng.randrange(7)):
            await asyncio.sleep(0)
        # The other sender's signal may have ended the run already.
        with suppress(SignalRefusedError):
            if not (await self.first.signal(run_id, "approve", word)).already_completed:
                self.firsts[run_id].append(word)

    async def one(self) -> None:
        run_id = await self.first.start()
        self.firsts[run_id] = []
        await asyncio.gather(self.send(run_id, "left"), self.send(run_id, "right"))

    async def send_all(self, rounds: int) -> None:
        for _ in range(0, rounds, 5):
            await asyncio.gather(*(self.one() for _ in range(5)))

    async def work(self, hand: Stagehand, sending: "asyncio.Task[None]") -> None:
        idle = 0
        while not sending.done() or idle < 2:
            jobs = await hand.tick(limit=3)
            idle = 0 if jobs else idle + 1
            for act in [await hand.perform(job) for job in jobs]:
                await hand.conclude(act)

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


async def test_a_zombies_outcome_is_refused_once_another_worker_took_its_step_over(make: Make, look: Look) -> None:
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
    zombies.go_on.set()
    assert (await first.conclude(await performing)).status == "superseded"
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
    assert repeats
    assert await run_of(look, run_id) == ("COMPLETED", [2, 2, None])
    assert calls == {"flaky": 2, "poll": 2, "last": 1}
    assert {row["status"] for row in (await steps_of(look, run_id)).values()} == {"completed"}
