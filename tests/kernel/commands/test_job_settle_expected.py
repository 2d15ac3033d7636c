"""`job.settle_expected` writes what `job.settle` would have written, or nothing at all."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from kernel import (
    JobHeartbeat,
    JobRelease,
    JobReport,
    JobSettleExpected,
    LeasedJob,
    LeaseReapStale,
    Progress,
    RunCancel,
    SettledAsExpected,
    Settlement,
    StageCompleted,
    StageFailed,
    StepOp,
    is_expectable,
)
from kernel.execution.journal import Annotation
from tenancy import TenantTransaction
from tests.support.looking import Look
from tests.support.workflows import HandWorker

DONE = StageCompleted('{"n": 2}')
TABLES = ("workflow_runs", "workflow_stages", "job_queue", "outbox_events", "workflow_annotations")


async def expect(
    hand: HandWorker, *jobs: LeasedJob, at: datetime | None = None, lease_ahead: int = 9, annotated: bool = False
) -> SettledAsExpected:
    """Settle as a worker does: in one message, at the time of the lease if none is given."""
    notes = (Annotation("colour", '"red"', None),) if annotated else ()
    settlements = [Settlement(job, DONE, notes) for job in jobs]
    command = JobSettleExpected(hand.worker_id, settlements, at or jobs[0].fence.started_at, lease_ahead=lease_ahead)
    async with hand.database.transaction(hand.tenant_id, in_one_message=True) as tx:
        return await hand.kernel.dispatch(command, tx)


async def everything(look: Look, run_id: UUID) -> dict[str, list[dict[str, Any]]]:
    return {
        table: await look(f"select * from tenantry.{table} where run_id = %s order by 1, 2, 3", run_id)
        for table in TABLES
    }


def timeless(rows: dict[str, list[dict[str, Any]]]) -> object:
    """Leave out what two runs cannot have in common: their ids and the times."""
    return {
        table: [
            {name: value for name, value in row.items() if name != "run_id" and not isinstance(value, datetime)}
            for row in found
        ]
        for table, found in rows.items()
    }


async def test_it_writes_what_settling_with_a_look_writes(hand: HandWorker, look: Look) -> None:
    plain, expected = await hand.create("chain", 1), await hand.create("chain", 1)
    jobs = {job.run_id: job for job in await hand.tick()}
    one, other = jobs[plain], jobs[expected]
    for lease_ahead in (1, 0):
        settled = await hand.settle(one, DONE, lease_ahead=lease_ahead)
        answer = await expect(hand, other, lease_ahead=lease_ahead)
        assert answer.settled is not None
        (told,) = answer.settled
        assert replace(told, run_id=plain, next_jobs=()) == replace(settled, next_jobs=())
        assert timeless(await everything(look, expected)) == timeless(await everything(look, plain))
        if lease_ahead:
            (one,), (other,) = settled.next_jobs, told.next_jobs
            assert replace(other, fence=one.fence) == one
            assert answer.now - timedelta(seconds=1) <= other.fence.started_at <= answer.now


async def test_a_chain_goes_to_its_end_without_a_look(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 1)
    (job,) = await hand.tick()
    for _ in range(2):
        answer = await expect(hand, job, annotated=True)
        assert answer.settled is not None
        (job,) = answer.settled[0].next_jobs
    assert (await expect(hand, job)).settled is not None
    rows = await everything(look, run_id)
    assert rows["workflow_runs"][0]["status"] == "COMPLETED"
    assert rows["job_queue"] == []
    assert [row["sequence"] for row in rows["outbox_events"]] == list(range(1, 12))


@pytest.mark.parametrize("seconds", [1.5, -1.5])
async def test_a_time_that_is_not_the_databases_is_refused(hand: HandWorker, look: Look, seconds: float) -> None:
    run_id = await hand.create("chain", 1)
    (job,) = await hand.tick()
    before = await everything(look, run_id)

    answer = await expect(hand, job, at=job.fence.started_at + timedelta(seconds=seconds))

    assert answer.settled is None
    assert answer.now >= job.fence.started_at
    assert await everything(look, run_id) == before
    assert (await expect(hand, job, at=answer.now)).settled is not None


async def cancelled(hand: HandWorker, tx: TenantTransaction, job: LeasedJob) -> None:
    await hand.kernel.dispatch(RunCancel(job.run_id), tx)


async def told(hand: HandWorker, tx: TenantTransaction, job: LeasedJob) -> None:
    """An event of the run that changes nothing else."""
    await hand.kernel.dispatch(JobReport(progress=[Progress(job.fence, 0.5, None)]), tx)


async def beaten(hand: HandWorker, tx: TenantTransaction, job: LeasedJob) -> None:
    await hand.kernel.dispatch(JobHeartbeat([job.fence]), tx)


async def given_back(hand: HandWorker, tx: TenantTransaction, job: LeasedJob) -> None:
    await hand.kernel.dispatch(JobRelease(hand.worker_id, [], None), tx)


Deed = Callable[[HandWorker, TenantTransaction, LeasedJob], Awaitable[None]]


@pytest.mark.parametrize("deed", [cancelled, told, beaten, given_back])
async def test_a_run_that_somebody_is_at_is_left_alone(hand: HandWorker, look: Look, deed: Deed) -> None:
    """Two connections: the deed is done and not committed when the settle comes, which waits for nobody."""
    touched, untouched = await hand.create("chain", 1), await hand.create("chain", 1)
    jobs = await hand.tick()
    before = {run_id: await everything(look, run_id) for run_id in (touched, untouched)}
    async with hand.transaction() as tx:
        await deed(hand, tx, next(job for job in jobs if job.run_id == touched))
        async with asyncio.timeout(5):
            assert (await expect(hand, *jobs)).settled is None
        assert {run_id: await everything(look, run_id) for run_id in (touched, untouched)} == before


@pytest.mark.parametrize("deed", [cancelled, told])
async def test_a_run_that_has_moved_is_left_alone_with_its_neighbours(hand: HandWorker, look: Look, deed: Deed) -> None:
    moved, other = await hand.create("chain", 1), await hand.create("chain", 1)
    jobs = await hand.tick()
    async with hand.transaction() as tx:
        await deed(hand, tx, next(job for job in jobs if job.run_id == moved))
    before = {run_id: await everything(look, run_id) for run_id in (moved, other)}

    assert (await expect(hand, *jobs)).settled is None

    assert {run_id: await everything(look, run_id) for run_id in (moved, other)} == before
    assert (await expect(hand, *(job for job in jobs if job.run_id == other))).settled is not None


async def test_a_heartbeat_is_no_news(hand: HandWorker) -> None:
    await hand.create("chain", 1)
    (job,) = await hand.tick()
    async with hand.transaction() as tx:
        await beaten(hand, tx, job)
    assert (await expect(hand, job)).settled is not None


async def test_a_reaped_and_leased_again_job_is_its_new_holders_alone(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 1)
    (job,) = await hand.tick()
    async with hand.transaction(timedelta(seconds=301)) as tx:
        await hand.kernel.dispatch(LeaseReapStale(), tx)
    (again,) = await hand.tick(offset=timedelta(seconds=302))
    # Even a holder that knew of every event: the fence is another one.
    forger = replace(job, event_sequence=again.event_sequence)
    before = await everything(look, run_id)
    assert (await expect(hand, forger)).settled is None
    assert await everything(look, run_id) == before


async def test_settling_twice_writes_once(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 1)
    (job,) = await hand.tick()
    assert (await expect(hand, job)).settled is not None
    before = await everything(look, run_id)
    assert (await expect(hand, job)).settled is None
    assert await everything(look, run_id) == before
    repeated = await hand.settle(job, DONE)
    assert (repeated.status, repeated.stage_status) == ("settled", "COMPLETED")


async def test_what_needs_a_look_is_not_expectable(hand: HandWorker) -> None:
    await hand.create("fan", 3)
    await hand.create("chain", 1)
    jobs = await hand.tick()
    chain = next(job for job in jobs if job.workflow.id == "chain")
    assert is_expectable([Settlement(chain, DONE)])
    assert not is_expectable([Settlement(chain, StageFailed("no"))])
    assert not is_expectable([Settlement(chain, DONE), Settlement(chain, DONE)])
    assert not is_expectable([Settlement(replace(chain, begun=False), DONE)])
    assert not is_expectable([Settlement(replace(chain, redrive_count=1), DONE)])
    assert not is_expectable([Settlement(chain, DONE)], inline_bytes=1)
    result = StepOp("outcome", chain.fence, "step", {"result": "[1, 2, 3, 4, 5]"})
    assert is_expectable([Settlement(chain, DONE, steps=(result,))], inline_bytes=15)
    assert not is_expectable([Settlement(chain, DONE, steps=(result,))], inline_bytes=14)
    for fanned in (job for job in jobs if job.workflow.id == "fan"):
        assert not is_expectable([Settlement(fanned, DONE)])


async def test_another_tenants_job_is_nobodys(hand: HandWorker, other_tenant: UUID, look: Look) -> None:
    stranger = HandWorker(hand.database, other_tenant)
    run_id = await hand.create("chain", 1)
    (job,) = await hand.tick()
    before = await everything(look, run_id)
    assert (await expect(stranger, job)).settled is None
    assert await everything(look, run_id) == before
