"""Payloads beside what happens to their runs: purged while they are read, cancelled, rolled back, repeated, redriven."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import (
    JobSettle,
    Kernel,
    PostgresBlobs,
    PutAside,
    RunCancel,
    RunNotFoundError,
    RunPurge,
    RunRedrive,
    Settlement,
    StageCompleted,
    StepAnswer,
    StepOp,
    StepSignal,
    StepWrite,
    follow_up,
    needs_follow_up,
    read_steps,
)
from kernel.blobs import POSTGRES_BLOBS
from kernel.queries.run_get import run_get
from kernel.queries.stage_get import stage_outputs
from kernel.queries.step_list import step_list
from tenancy import load_sql
from tests.kernel.blobs.large import LARGE, WORKFLOWS, complete, create, settle_all, view_of
from tests.support.blobs import PurgedMeanwhile, purge_all, unmatched
from tests.support.stagehand import PID
from tests.support.waiting import until_someone_blocked
from tests.support.workflows import HandWorker

SQL = load_sql(__file__)


async def large_step(worker: HandWorker) -> tuple[UUID, StepOp]:
    """Signal a run's step with a large payload; returns the run and what its body would ask."""
    run_id = await create(worker, "echo", 1)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(StepSignal(run_id, "echo", "told", LARGE), tx)
    (job,) = await worker.tick()
    return run_id, StepOp("open", job.fence, "told", {"kind": "signal", "seq": 1, "stage_attempt": 1})


async def test_a_run_that_is_purged_while_it_is_read_is_not_there(worker: HandWorker) -> None:
    store = PurgedMeanwhile(elsewhere=worker)
    other = await complete(worker, "echo", LARGE)
    async with worker.transaction() as tx:
        assert await run_get(tx, other, store) is None
    other = await complete(worker, "echo", LARGE)
    async with worker.transaction() as tx:
        with pytest.raises(RunNotFoundError, match=str(other)):
            await stage_outputs(tx, other, up_to_group=1, blobs=store)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_step_whose_run_was_purged_is_answered_as_gone_and_its_neighbours_are_not(
    worker: HandWorker, is_late: bool
) -> None:
    run_id, op = await large_step(worker)
    _, neighbour = await large_step(worker)
    ops = [op, neighbour]
    async with worker.transaction() as tx:
        answers = await worker.kernel.dispatch(StepWrite(ops, follows_up=False), tx)
        assert needs_follow_up(ops, answers)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(RunCancel(run_id), tx)
    if not is_late:
        await purge_all(worker)
    store = PurgedMeanwhile(elsewhere=worker) if is_late else POSTGRES_BLOBS
    async with worker.transaction() as tx:
        gone, kept = await follow_up(ops, answers, tx, PutAside(store))
    assert (gone.verdict, gone.row) == ("gone", None)
    assert kept.row is not None
    assert json.loads(kept.row.result or "") == LARGE


async def test_an_effect_that_ends_while_its_run_is_being_purged_keeps_nothing(
    worker: HandWorker, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    run_id = await create(worker, "echo", LARGE)
    (job,) = await worker.tick()
    claim: dict[str, Any] = {"claim_id": str(UUID(int=7)), "attempt": 1}
    asking = {
        "kind": "run",
        "seq": 1,
        "lease_s": 3600.0,
        "external_key": "tny-7",
        "on_reclaim": "rerun",
        "stage_attempt": 1,
    }
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(StepWrite([StepOp("claim", job.fence, "effect", {**claim, **asking})]), tx)
        await worker.kernel.dispatch(RunCancel(run_id), tx)
    done = StepOp("outcome", job.fence, "effect", {**claim, "status": "completed", "result": json.dumps(LARGE)})

    async def record() -> StepAnswer:
        async with worker.transaction() as tx:
            (answer,) = await worker.kernel.dispatch(StepWrite([done], wait=True), tx)
        return answer

    async with asyncio.TaskGroup() as tasks, worker.transaction() as tx:
        purged = await worker.kernel.dispatch(RunPurge(datetime.now(UTC) + timedelta(days=1)), tx)
        assert purged.run_ids == (run_id,)
        row = await tx.fetch_one(PID)
        assert row is not None
        recording = tasks.create_task(record())
        await until_someone_blocked(superuser, by=row["pid"])
    assert recording.result().verdict == "gone"
    assert await unmatched(superuser, tenant) == []


async def test_steps_that_are_purged_while_they_are_read_are_those_of_no_run(worker: HandWorker) -> None:
    store = PurgedMeanwhile(elsewhere=worker)
    for read in (
        lambda tx, run_id: step_list(tx, run_id, limit=9, blobs=store),
        lambda tx, run_id: read_steps(tx, run_id, "echo", store),
    ):
        run_id, _ = await large_step(worker)
        async with worker.transaction() as tx:
            await worker.kernel.dispatch(RunCancel(run_id), tx)
        async with worker.transaction() as tx:
            with pytest.raises(RunNotFoundError, match=str(run_id)):
                await read(tx, run_id)


async def test_what_is_kept_and_what_is_referred_to_match_whatever_becomes_of_the_runs(
    worker: HandWorker, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    worker.kernel = Kernel(WORKFLOWS, blobs=PostgresBlobs(0))
    cancelled, _ = await large_step(worker)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(RunCancel(cancelled), tx)
    await complete(worker, "wide", 1)
    rolled_back = await create(worker, "chain", 2)
    (job,) = await worker.tick()
    settle = JobSettle(worker.worker_id, [Settlement(job, StageCompleted('"made"'))])
    with suppress(ConnectionError):
        async with worker.transaction() as tx:
            await worker.kernel.dispatch(settle, tx)
            raise ConnectionError
    assert await unmatched(superuser, tenant) == []
    # A reply is lost after the COMMIT; the repeat, though its body answered otherwise, keeps nothing more.
    for said in ('"made"', '"made again"'):
        await worker.settle(job, StageCompleted(said))
        assert await unmatched(superuser, tenant) == []
    await settle_all(worker)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(RunRedrive(rolled_back, "stage", "again"), tx)
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted('"otherwise"'))
    assert await unmatched(superuser, tenant) == []
    assert json.loads((await view_of(worker, rolled_back)).output or "") == "otherwise"
    await purge_all(worker)
    async with worker.transaction() as tx:
        assert await tx.fetch_all(SQL["kept"]) == []
    assert await unmatched(superuser, tenant) == []


async def test_what_does_not_match_is_found(
    worker: HandWorker, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    run_id = await create(worker, "echo", LARGE)
    await superuser.execute("update tenantry.workflow_blobs set digest = 'x' where run_id = %s", (run_id,))
    assert sorted(fault for _, _, fault in await unmatched(superuser, tenant)) == ["is not kept", "is not referred to"]
