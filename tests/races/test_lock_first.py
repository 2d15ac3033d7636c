"""Two connections and a barrier for each promise of "Lock first": what one transaction decides, the other one sees."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import (
    JobHeartbeat,
    JobSettle,
    LeasedJob,
    LeaseReapStale,
    RunCancel,
    RunCreate,
    RunTransition,
    Settled,
    Settlement,
    StageCompleted,
    StageOutcome,
    WorkerTick,
)
from tenancy import Database, TenantTransaction
from tenancy.sql import parse
from tests.support import factories
from tests.support.looking import Look
from tests.support.waiting import until_someone_blocked
from tests.support.workflows import HandWorker

PID = parse("-- name: pid\nselect pg_backend_pid() as pid", "pid")["pid"]


class UndoError(Exception):
    """Makes a transaction roll back."""


DONE = StageCompleted('{"n": 1}')


@asynccontextmanager
async def holding(hand: HandWorker) -> AsyncIterator[tuple[TenantTransaction, int]]:
    """A transaction of the first connection, with the process id of its server side."""
    async with hand.transaction() as tx:
        row = await tx.fetch_one(PID)
        assert row is not None
        yield tx, row["pid"]


async def settle_in(
    hand: HandWorker, tx: TenantTransaction, job: LeasedJob, outcome: StageOutcome = DONE, *, wait: bool = False
) -> Settled:
    (settled,) = await hand.kernel.dispatch(
        JobSettle(hand.worker_id, [Settlement(job, outcome)], lease_ahead=1, wait=wait), tx
    )
    return settled


async def run_status(look: Look, run_id: UUID) -> str:
    (row,) = await look("select status from tenantry.workflow_runs where run_id = %s", run_id)
    return str(row["status"])


async def test_two_siblings_that_settle_at_once_never_leave_their_run_behind(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    """The second settle waits for the first one's lock and then sees its sibling done: one of them opens the next group."""
    run_id = await hand.create("fan", 1)
    left, right = await hand.tick()

    async with holding(hand) as (tx, pid):
        await settle_in(hand, tx, left)
        second = asyncio.create_task(hand.settle(right, DONE, lease_ahead=1))
        # The held-back writes go out, the lock is had already.
        await until_someone_blocked(superuser, by=pid)

    settled = await second
    assert [job.stage_id for job in settled.next_jobs] == ["joined"]
    assert await run_status(look, run_id) == "RUNNING"


async def test_a_background_settle_waits_for_nobody(hand: HandWorker) -> None:
    await hand.create("fan", 1)
    left, right = await hand.tick()

    async with holding(hand) as (tx, _pid):
        await settle_in(hand, tx, left)
        async with asyncio.timeout(5):
            busy = await hand.settle(right, DONE, wait=False)

    assert busy.status == "busy"
    assert (await hand.settle(right, DONE, wait=False)).status == "settled"


@pytest.mark.parametrize("first", ["cancel", "complete"])
async def test_cancel_against_complete_has_exactly_one_end(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look, first: str
) -> None:
    run_id = await hand.create("single", 1)
    (job,) = await hand.tick()

    async def cancel() -> object:
        async with hand.transaction() as tx:
            return await hand.kernel.dispatch(RunCancel(run_id), tx)

    async with holding(hand) as (tx, pid):
        if first == "cancel":
            won: object = await hand.kernel.dispatch(RunCancel(run_id), tx)
            other: asyncio.Task[Any] = asyncio.create_task(hand.settle(job))
        else:
            won = await settle_in(hand, tx, job)
            other = asyncio.create_task(cancel())
        await until_someone_blocked(superuser, by=pid)
    lost = await other

    events = await look("select type from tenantry.outbox_events where run_id = %s", run_id)
    ends = [row["type"] for row in events if row["type"] in ("workflow:completed", "workflow:cancelled")]
    if first == "cancel":
        assert getattr(won, "cancelled") is True  # noqa: B009 - either kind of answer
        assert (lost.status, lost.ghost_reason) == ("ghost", "orphan")
        assert ends == ["workflow:cancelled"]
        (stage,) = await look("select status, output from tenantry.workflow_stages where run_id = %s", run_id)
        assert stage == {"status": "CANCELLED", "output": None}
    else:
        assert (lost.cancelled, lost.status) == (False, "COMPLETED")
        assert ends == ["workflow:completed"]
    assert await look("select from tenantry.job_queue where run_id = %s", run_id) == []


async def test_a_run_cancelled_while_a_tick_wants_it_has_no_live_stage(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("single", 1)

    async with holding(hand) as (tx, _pid):
        await hand.kernel.dispatch(RunCancel(run_id), tx)
        # Flush the cancel's writes, so that the row is locked and changed when the tick comes by.
        await tx.fetch_all(PID)
        async with asyncio.timeout(5):
            assert await hand.tick() == ()

    assert await hand.tick() == ()
    assert await run_status(look, run_id) == "CANCELLED"
    assert await look("select from tenantry.workflow_stages where run_id = %s", run_id) == []


async def test_a_tick_that_holds_a_run_makes_a_cancel_wait_and_then_cancel_everything(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_id = await hand.create("fan", 1)

    async def cancel() -> object:
        async with hand.transaction() as tx:
            return await hand.kernel.dispatch(RunCancel(run_id), tx)

    async with holding(hand) as (tx, pid):
        ticked = await hand.kernel.dispatch(WorkerTick("hand", 1), tx)
        other = asyncio.create_task(cancel())
        await until_someone_blocked(superuser, by=pid)
    await other

    assert len(ticked.leased) == 1
    stages = await look("select status from tenantry.workflow_stages where run_id = %s", run_id)
    assert [row["status"] for row in stages] == ["CANCELLED", "CANCELLED"]
    jobs = await look("select status from tenantry.job_queue where run_id = %s", run_id)
    assert [row["status"] for row in jobs] == ["RUNNING"], "only the leased body is still to be told"


async def test_a_cap_of_two_holds_against_four_workers_at_once(
    database: Database, hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    await factories.limit_tenant(superuser, hand.tenant_id, running_jobs=2)
    for number in range(20):
        await hand.create("single", number)
    workers = [HandWorker(database, hand.tenant_id, name=f"w{number}") for number in range(4)]
    most = 0
    done = 0
    while done < 20:
        leased = [job for jobs in await asyncio.gather(*(worker.tick() for worker in workers)) for job in jobs]
        (row,) = await look(
            "select count(*) as n from tenantry.job_queue where tenant_id = %s and status = 'RUNNING'", hand.tenant_id
        )
        most = max(most, row["n"])
        await asyncio.gather(*(hand.settle(job) for job in leased))
        done += len(leased)

    assert most == 2


async def test_a_job_is_leased_to_one_of_many_workers(database: Database, hand: HandWorker) -> None:
    for number in range(30):
        await hand.create("single", number)
    workers = [HandWorker(database, hand.tenant_id, name=f"w{number}") for number in range(6)]

    taken = await asyncio.gather(*(worker.tick(limit=10) for worker in workers for _ in range(2)))

    fences = [job.run_id for jobs in taken for job in jobs]
    assert len(fences) == len(set(fences))
    rest = await hand.tick()
    assert len(fences) + len(rest) == 30


async def test_a_reap_against_a_settle_leaves_one_outcome(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("single", 1)
    (job,) = await hand.tick()

    async with holding(hand) as (tx, _pid):
        await settle_in(hand, tx, job)
        async with asyncio.timeout(5), hand.transaction(timedelta(seconds=400)) as other:
            reaped = await hand.kernel.dispatch(LeaseReapStale(), other)
    assert (reaped.released, reaped.expired) == (0, 0), "the run is held: it is looked at again next time"

    assert await run_status(look, run_id) == "COMPLETED"


async def test_a_settle_after_the_reap_committed_writes_nothing(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("single", 1)
    (job,) = await hand.tick()
    async with hand.transaction(timedelta(seconds=400)) as tx:
        await hand.kernel.dispatch(LeaseReapStale(), tx)

    assert (await hand.settle(job)).status == "superseded"
    assert await run_status(look, run_id) == "RUNNING"


async def test_a_heartbeat_waits_for_no_settle_and_takes_nothing_from_it(hand: HandWorker) -> None:
    await hand.create("single", 1)
    (job,) = await hand.tick()

    async with holding(hand) as (tx, _pid):
        await settle_in(hand, tx, job)
        await tx.fetch_all(PID)
        async with asyncio.timeout(5), hand.transaction() as other:
            (beat,) = await hand.kernel.dispatch(JobHeartbeat([job.fence]), other)

    assert beat.lease_held, "a held row is not a lost lease"


async def test_transition_twice_at_once_opens_the_next_group_once(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_id = await hand.create("fan", 1)
    left, _right = await hand.tick()
    await hand.settle(left)
    await superuser.execute(
        "update tenantry.workflow_stages set status = 'COMPLETED', output = '{\"n\":1}' where run_id = %s", (run_id,)
    )

    async def transition() -> str:
        async with hand.transaction() as tx:
            return (await hand.kernel.dispatch(RunTransition(run_id), tx)).action

    actions = await asyncio.gather(*(transition() for _ in range(5)))

    assert sorted(actions) == ["advanced", "noop", "noop", "noop", "noop"]
    stages = await look("select stage_id from tenantry.workflow_stages where run_id = %s", run_id)
    assert len(stages) == 3


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_repeat_of_a_key_waits_for_its_owner_and_takes_its_place_if_it_rolled_back(
    hand: HandWorker, superuser: psycopg.AsyncConnection, ending: str
) -> None:
    async def repeat() -> tuple[UUID, bool]:
        async with hand.transaction() as tx:
            created = await hand.kernel.dispatch(RunCreate("single", {"n": 1}, idempotency_key="k"), tx)
        return created.run_id, created.replayed

    other: asyncio.Task[tuple[UUID, bool]] | None = None
    run_id: UUID | None = None
    try:
        async with holding(hand) as (tx, pid):
            created = await hand.kernel.dispatch(RunCreate("single", {"n": 1}, idempotency_key="k"), tx)
            run_id = created.run_id
            other = asyncio.create_task(repeat())
            await until_someone_blocked(superuser, by=pid)
            if ending == "rollback":
                raise UndoError  # noqa: TRY301 - it is this block that must end so
    except UndoError:
        pass
    assert other is not None

    repeated, replayed = await other

    assert replayed is (ending == "commit")
    assert (repeated == run_id) is (ending == "commit")
