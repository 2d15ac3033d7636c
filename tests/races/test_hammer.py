"""Random settles, cancels, ticks, reaps and heartbeats on the same runs: no deadlock, nothing lost, nothing twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from kernel import Fence, JobHeartbeat, JobSettle, LeaseReapStale, RunCancel, Settlement, StageCompleted
from tenancy import Database, TenantTransaction
from tests.support.looking import Look
from tests.support.workflows import HandWorker

DONE = StageCompleted('{"n": 1}')


@pytest.mark.parametrize("seed", [7, 11])
async def test_flushes_of_many_runs_against_cancels_reaps_and_heartbeats(
    database: Database, hand: HandWorker, look: Look, seed: int
) -> None:
    await hammer(database, hand, look, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
async def test_the_same_for_long(database: Database, hand: HandWorker, look: Look, seed: int) -> None:
    await hammer(database, hand, look, seed)


async def work(worker: HandWorker, rng: random.Random) -> None:
    for _ in range(40):
        jobs = list(await worker.tick(limit=5))
        while jobs:
            batch = [jobs.pop() for _ in range(min(3, len(jobs)))]
            async with worker.transaction() as tx:
                command = JobSettle(
                    worker.worker_id, [Settlement(job, DONE) for job in batch], lease_ahead=rng.randint(0, 2)
                )
                answers = await worker.kernel.dispatch(command, tx)
            for job, answer in zip(batch, answers, strict=True):
                if answer.status == "busy":
                    jobs.append(job)
                jobs += answer.next_jobs


async def hammer(database: Database, hand: HandWorker, look: Look, seed: int) -> None:
    """Many at once on the same runs; afterwards every run is whole, whatever order they came in."""
    rng = random.Random(seed)
    run_ids = [await hand.create(rng.choice(["chain", "fan", "single"]), number) for number in range(40)]
    workers = [HandWorker(database, hand.tenant_id, name=f"w{number}") for number in range(4)]

    async def disturb(act: Callable[[TenantTransaction], Awaitable[object]]) -> None:
        for _ in range(30):
            async with hand.transaction() as tx:
                await act(tx)

    async def cancel(tx: TenantTransaction) -> object:
        return await hand.kernel.dispatch(RunCancel(rng.choice(run_ids)), tx)

    async def beat(tx: TenantTransaction) -> object:
        rows = await look(
            "select run_id, stage_id, attempt, started_at from tenantry.job_queue"
            " where tenant_id = %s and status = 'RUNNING'",
            hand.tenant_id,
        )
        return await hand.kernel.dispatch(JobHeartbeat([Fence(**row) for row in rows]), tx)

    async def reap(tx: TenantTransaction) -> object:
        return await hand.kernel.dispatch(LeaseReapStale(), tx)

    await asyncio.gather(*(work(worker, rng) for worker in workers), disturb(cancel), disturb(reap), disturb(beat))
    await work(workers[0], rng)

    await assert_whole(look, hand.tenant_id, run_ids)


async def assert_whole(look: Look, tenant_id: UUID, run_ids: list[UUID]) -> None:
    """Every run has one end, no job is left, and no event is missing from any history."""
    rows = await look("select run_id, status from tenantry.workflow_runs where run_id = any(%s)", run_ids)
    assert {row["status"] for row in rows} <= {"COMPLETED", "CANCELLED"}
    assert await look("select from tenantry.job_queue where tenant_id = %s", tenant_id) == []
    gaps = await look(
        "select run_id from tenantry.outbox_events where tenant_id = %s group by run_id"
        " having max(sequence) <> count(*) or min(sequence) <> 1",
        tenant_id,
    )
    assert gaps == []
    ends = await look(
        "select run_id, count(*) as n from tenantry.outbox_events where tenant_id = %s"
        " and type in ('workflow:completed', 'workflow:cancelled', 'workflow:failed') group by run_id",
        tenant_id,
    )
    assert {row["n"] for row in ends} == {1}
