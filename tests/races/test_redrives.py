"""Redrives against each other, cancel, purge, and the workers that still hold what was: two connections and a barrier each."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import (
    JobHeartbeat,
    JobSettle,
    JobSettleExpected,
    RunCancel,
    RunNotFoundError,
    RunNotTerminalError,
    RunPurge,
    RunRedrive,
    RunRedriven,
    Settlement,
    StageCompleted,
    StageContext,
    StageFailed,
    StepOp,
    StepWrite,
    Terminal,
)
from tests.support.looking import Look
from tests.support.stagehand import PID, Make, Stagehand, finish, holding, run_of, steps_of
from tests.support.waiting import until_someone_blocked

EVENTS = "select type from tenantry.outbox_events where run_id = %s order by sequence"
ONE = StageCompleted('"one"')


async def broken(_ctx: StageContext[Any]) -> Any:
    raise Terminal("told to")


async def failed(hand: Stagehand) -> UUID:
    run_id = await hand.start()
    await hand.go()
    return run_id


async def redrive(hand: Stagehand, run_id: UUID, *where: Any, key: str | None = None) -> RunRedriven:
    async with hand.transaction() as tx:
        return await hand.kernel.dispatch(RunRedrive(run_id, *where, idempotency_key=key), tx)


async def events(look: Look, run_id: UUID) -> list[str]:
    return [row["type"] for row in await look(EVENTS, run_id)]


async def test_of_two_redrives_at_once_one_redrives(make: Make, superuser: psycopg.AsyncConnection, look: Look) -> None:
    hand = make(broken)
    run_id = await failed(hand)
    async with holding(hand) as (tx, pid):
        await hand.kernel.dispatch(RunRedrive(run_id), tx)
        await tx.fetch_one(PID)
        second = asyncio.create_task(redrive(hand, run_id))
        await until_someone_blocked(superuser, by=pid)
    with pytest.raises(RunNotTerminalError):
        await second
    (row,) = await look("select redrive_count from tenantry.workflow_runs where run_id = %s", run_id)
    assert row["redrive_count"] == 1
    assert (await events(look, run_id)).count("workflow:started") == 2


async def test_of_two_redrives_under_one_key_the_second_is_answered_as_the_first(
    make: Make, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    hand = make(broken)
    run_id = await failed(hand)
    async with holding(hand) as (tx, pid):
        first = await hand.kernel.dispatch(RunRedrive(run_id, idempotency_key="k"), tx)
        await tx.fetch_one(PID)
        repeat = asyncio.create_task(redrive(hand, run_id, key="k"))
        await until_someone_blocked(superuser, by=pid)
    second = await repeat
    assert (first.replayed, second.replayed) == (False, True)
    assert (second.from_stage_id, second.superseded, second.redrive_count) == ("act", 1, 1)
    assert (await events(look, run_id)).count("workflow:started") == 2


async def test_a_repeat_takes_the_place_of_a_first_that_was_rolled_back(
    make: Make, superuser: psycopg.AsyncConnection
) -> None:
    class UndoError(Exception):
        pass

    hand = make(broken)
    run_id = await failed(hand)

    async def undone() -> "asyncio.Task[RunRedriven]":
        async with holding(hand) as (tx, pid):
            await hand.kernel.dispatch(RunRedrive(run_id, idempotency_key="k"), tx)
            await tx.fetch_one(PID)
            repeats.append(asyncio.create_task(redrive(hand, run_id, key="k")))
            await until_someone_blocked(superuser, by=pid)
            raise UndoError

    repeats: list[asyncio.Task[RunRedriven]] = []
    with pytest.raises(UndoError):
        await undone()
    assert not (await repeats[0]).replayed


@pytest.mark.parametrize("first", ["redrive", "cancel"])
async def test_a_redrive_against_a_cancellation(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    """Whichever is second acts on what the first one left."""
    hand = make(broken)
    run_id = await failed(hand) if first == "redrive" else await hand.start()
    async with holding(hand) as (tx, pid):
        await hand.kernel.dispatch(RunRedrive(run_id) if first == "redrive" else RunCancel(run_id), tx)
        await tx.fetch_one(PID)
        other: asyncio.Task[Any] = asyncio.create_task(
            hand.cancel(run_id) if first == "redrive" else redrive(hand, run_id)
        )
        await until_someone_blocked(superuser, by=pid)
    await other
    status, _ = await run_of(look, run_id)
    jobs = await look("select status from tenantry.job_queue where run_id = %s", run_id)
    if first == "redrive":
        assert (status, jobs) == ("CANCELLED", [])
        assert (await events(look, run_id))[-2:] == ["workflow:started", "workflow:cancelled"]
    else:
        assert (status, [job["status"] for job in jobs]) == ("RUNNING", ["PENDING"])
        assert (await events(look, run_id))[-2:] == ["workflow:cancelled", "workflow:started"]


@pytest.mark.parametrize("first", ["redrive", "purge"])
async def test_a_redrive_against_a_purge(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    """A purge leaves out what a redrive holds, a redrive that comes second finds no run."""
    hand = make(broken)
    run_id = await failed(hand)
    (row,) = await look("select completed_at from tenantry.workflow_runs where run_id = %s", run_id)
    purge = RunPurge(row["completed_at"] + timedelta(hours=1))
    async with holding(hand) as (tx, pid):
        if first == "redrive":
            await hand.kernel.dispatch(RunRedrive(run_id), tx)
            async with hand.transaction() as other:
                assert (await hand.kernel.dispatch(purge, other)).run_ids == ()
        else:
            assert (await hand.kernel.dispatch(purge, tx)).run_ids == (run_id,)
            await tx.fetch_one(PID)
            second = asyncio.create_task(redrive(hand, run_id, key="k"))
            await until_someone_blocked(superuser, by=pid)
    if first == "redrive":
        async with hand.transaction() as tx:
            assert (await hand.kernel.dispatch(purge, tx)).run_ids == (), "it is not over any more"
        assert (await run_of(look, run_id))[0] == "RUNNING"
        return
    with pytest.raises(RunNotFoundError):
        await second
    for table in ("workflow_runs", "workflow_stages", "job_queue", "workflow_annotations", "idempotency_keys"):
        assert await look(f"select from tenantry.{table} where run_id = %s", run_id) == [], table


@pytest.mark.parametrize("where", ["last_failure", "start"])
@pytest.mark.parametrize("outcome", [ONE, StageFailed("RuntimeError: late")])
async def test_the_late_settle_of_an_older_job_writes_nothing(
    make: Make, look: Look, where: Any, outcome: StageCompleted | StageFailed
) -> None:
    """The old job and the new one are both in their first attempt: what tells them apart is when they were leased."""
    old = make(broken)
    new = old.second()
    run_id = await old.start()
    ghost = await old.lease()
    await old.cancel(run_id)
    await redrive(old, run_id, where)
    before = await look("select * from tenantry.workflow_stages where run_id = %s", run_id)

    settled = await old.settle(ghost, outcome)
    assert (settled.status, settled.next_jobs) == ("superseded", ())
    assert await look("select * from tenantry.workflow_stages where run_id = %s", run_id) == before

    job = await new.lease()
    assert (job.fence.attempt, ghost.fence.attempt) == (1, 1)
    assert job.fence.started_at > ghost.fence.started_at
    assert (await old.settle(ghost, outcome)).status == "superseded"
    async with old.transaction() as tx:
        expected = JobSettleExpected(old.worker_id, [Settlement(ghost, ONE)], job.fence.started_at)
        assert (await old.kernel.dispatch(expected, tx)).settled is None
        (beat,) = await old.kernel.dispatch(JobHeartbeat([ghost.fence]), tx)
    assert beat.lease_held is False, "its body is told that it has lost its lease"
    assert (await new.settle(job, StageCompleted('"two"'))).run_status == "COMPLETED"
    assert await run_of(look, run_id) == ("COMPLETED", "two")


@pytest.mark.parametrize("first", ["redrive", "settle"])
async def test_a_redrive_against_the_settle_of_an_older_job(
    make: Make, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    """In neither order does the outcome of a cancelled body reach the run that goes on."""
    hand = make(broken)
    run_id = await hand.start()
    ghost = await hand.lease()
    await hand.cancel(run_id)
    settle = JobSettle(hand.worker_id, [Settlement(ghost, ONE)], wait=True)

    async def settle_late() -> str:
        async with hand.transaction() as tx:
            return (await hand.kernel.dispatch(settle, tx))[0].status

    async with holding(hand) as (tx, pid):
        if first == "redrive":
            await hand.kernel.dispatch(RunRedrive(run_id), tx)
            await tx.fetch_one(PID)
            other: asyncio.Task[Any] = asyncio.create_task(settle_late())
        else:
            assert (await hand.kernel.dispatch(settle, tx))[0].status == "ghost"
            await tx.fetch_one(PID)
            other = asyncio.create_task(redrive(hand, run_id))
        await until_someone_blocked(superuser, by=pid)
    answer = await other
    assert first == "settle" or answer == "superseded"
    (job,) = await look("select status, attempt, started_at from tenantry.job_queue where run_id = %s", run_id)
    assert job == {"status": "PENDING", "attempt": 0, "started_at": None}
    await finish(hand)
    assert (await run_of(look, run_id))[0] == "FAILED"


def effect_of(hand: Stagehand, job: Any, **values: Any) -> StepOp:
    return StepOp("outcome", job.fence, "effect", {"status": "completed", "result": '"done"', **values})


@pytest.mark.parametrize("where", ["last_failure", "start"])
async def test_an_effect_that_ends_after_the_redrive_is_kept_where_its_step_still_is(
    make: Make, look: Look, where: Any
) -> None:
    """In place the step is under the old lease still, so nobody runs it beside the old body; what that did counts."""
    calls: list[tuple[int, str]] = []

    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("effect", lambda step: calls.append((step.attempt, step.external_key)), lease="1h")

    old = make(body)
    new = old.second()
    run_id = await old.start()
    ghost = await old.lease()
    claim_id = UUID(int=7)
    claim = StepOp(
        "claim",
        ghost.fence,
        "effect",
        {
            "kind": "run", "seq": 1, "claim_id": str(claim_id), "lease_s": 3600.0, "external_key": "tny-old",
            "on_reclaim": "rerun", "stage_attempt": 1,
        },
    )  # fmt: skip
    (claimed,) = await old.write(claim)
    assert claimed.verdict == "mine"
    await old.cancel(run_id)
    await redrive(old, run_id, where)

    act = await new.perform(await new.lease())
    assert len(calls) == (where == "start"), "its lease is live: nobody else runs it"
    await new.conclude(act)
    async with old.transaction() as tx:
        (answer,) = await old.kernel.dispatch(
            StepWrite([effect_of(old, ghost, attempt=1, claim_id=str(claim_id))], wait=True), tx
        )

    if where == "start":
        assert answer.verdict == "conflict"
        assert [key for _, key in calls] != ["tny-old"]
        assert (await run_of(look, run_id))[0] == "COMPLETED"
        return
    assert answer.verdict == "done"
    row = (await steps_of(look, run_id))["effect"]
    assert (row["status"], row["result"], row["external_key"]) == ("completed", "done", "tny-old")
    new.clock.advance(hours=2)
    await finish(new)
    assert (calls, await run_of(look, run_id)) == ([], ("COMPLETED", "done"))


async def test_a_claim_given_back_after_its_run_had_ended_leaves_what_it_was_told(make: Make, look: Look) -> None:
    """It was to run beside what a vanished worker may have done, and never began: whoever does is told of that one."""
    told: list[tuple[int, bool]] = []

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("effect", lambda step: told.append((step.attempt, step.is_reclaim)))

    hand = make(body)
    run_id = await hand.start()
    job = await hand.lease()
    asking = {
        "kind": "run", "seq": 1, "lease_s": 60.0, "external_key": "tny-effect", "on_reclaim": "rerun", "stage_attempt": 1
    }  # fmt: skip
    for number in (1, 2):
        (claimed,) = await hand.write(
            StepOp("claim", job.fence, "effect", {**asking, "claim_id": str(UUID(int=number))})
        )
        assert claimed.row is not None
        assert (claimed.verdict, claimed.row.is_reclaim) == ("mine", number > 1)
        hand.clock.advance(seconds=61)
    await hand.cancel(run_id)
    given_back = {"attempt": 2, "claim_id": str(UUID(int=2)), "status": "pending", "delay_s": 0.0}
    (answer,) = await hand.write(StepOp("outcome", job.fence, "effect", given_back))
    assert answer.verdict == "done"

    await redrive(hand, run_id)
    await finish(hand)
    assert told == [(3, True)]
    assert (await run_of(look, run_id))[0] == "COMPLETED"
