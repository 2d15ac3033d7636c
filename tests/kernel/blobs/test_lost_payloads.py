"""Payloads that their store has lost: the run that needs one fails with a code of its own, nobody beside it does."""

import json
from uuid import UUID

import psycopg
import pytest

from kernel import (
    InvalidRequestError,
    JobExecute,
    JobSettle,
    RunCancel,
    RunReapStuck,
    RunRedrive,
    RunTransition,
    Settlement,
    StageCompleted,
    StepOp,
    StepSignal,
    StepWrite,
    WorkerTick,
)
from kernel.blobs import PAYLOAD_LOST
from kernel.queries.run_get import run_get
from kernel.queries.stage_get import stage_outputs
from kernel.queries.step_list import step_list
from tests.kernel.blobs.large import LARGE, create, settle_all, view_of
from tests.support.blobs import bring_back, lose
from tests.support.looking import Look
from tests.support.workflows import HandWorker

OTHER = "o" * len(LARGE) * 2


async def error_of(look: Look, run_id: UUID) -> tuple[str, str | None, str | None]:
    """Return how a run ended: its status, and the code and stage of its error."""
    (row,) = await look("select status, error from tenantry.workflow_runs where run_id = %s", run_id)
    error = row["error"] or {"code": None, "stage_id": None}
    return row["status"], error["code"], error["stage_id"]


@pytest.mark.parametrize("what", ["input", "config"])
async def test_a_run_without_its_input_fails_as_it_is_claimed_and_the_others_start(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look, what: str
) -> None:
    config = {"echo": {"table": LARGE}} if what == "config" else {}
    run_ids = [await create(worker, "echo", 1 if what == "config" else LARGE, config=config) for _ in range(3)]
    await lose(superuser, run_ids[1])
    async with worker.transaction() as tx:
        ticked = await worker.kernel.dispatch(WorkerTick(worker.worker_id, 10), tx)
    assert [job.run_id for job in ticked.leased] == [run_ids[0], run_ids[2]]
    assert ticked.runs.refused == (run_ids[1],)
    assert await error_of(look, run_ids[1]) == ("FAILED", PAYLOAD_LOST, None)
    (run,) = await look("select error ->> 'message' as told from tenantry.workflow_runs where run_id = %s", run_ids[1])
    assert run["told"].startswith(f"{PAYLOAD_LOST}: the run's {what} is not in the blob store")
    assert await look("select from tenantry.workflow_stages where run_id = %s", run_ids[1]) == []


async def test_a_stage_without_what_it_is_to_be_given_fails_as_it_is_leased_and_the_others_begin(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_ids = [await create(worker, "chain", LARGE) for _ in range(3)]
    for job in await worker.tick():
        await worker.settle(job, StageCompleted(job.input))
    await lose(superuser, run_ids[1])
    async with worker.transaction() as tx:
        ticked = await worker.kernel.dispatch(WorkerTick(worker.worker_id, 10), tx)
    assert [job.run_id for job in ticked.leased] == [run_ids[0], run_ids[2]]
    assert [json.loads(job.input) for job in ticked.leased] == [LARGE, LARGE]
    assert [(ghost.run_id, ghost.reason) for ghost in ticked.ghosts] == [(run_ids[1], "lost")]
    assert await error_of(look, run_ids[1]) == ("FAILED", PAYLOAD_LOST, "again")
    (job,) = await look("select status, last_error from tenantry.job_queue where run_id = %s", run_ids[1])
    assert job["status"] == "FAILED"
    assert job["last_error"].startswith(f"{PAYLOAD_LOST}: ")
    assert await worker.tick() == (), "and it is not tried again"


async def test_both_jobs_of_a_run_that_lacks_a_payload_are_cleared_away_at_once(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_id = await create(worker, "fan", LARGE)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(WorkerTick(worker.worker_id, 1), tx)
    (leased,) = await look("select stage_id from tenantry.job_queue where run_id = %s and status = 'RUNNING'", run_id)
    await lose(superuser, run_id)
    assert await worker.tick() == ()
    stages = await look("select stage_id, status from tenantry.workflow_stages where run_id = %s", run_id)
    # The one that a body is at work in is told to stop, as in any run that fails.
    assert {row["stage_id"]: row["status"] for row in stages} == {
        "left": "CANCELLED" if leased["stage_id"] == "left" else "FAILED",
        "right": "CANCELLED" if leased["stage_id"] == "right" else "FAILED",
    }
    assert (await error_of(look, run_id))[:2] == ("FAILED", PAYLOAD_LOST)


async def test_a_settle_that_needs_what_its_sibling_made_in_vain_is_kept_and_its_neighbours_go_on(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    lacking, whole = [await create(worker, "fan", 1) for _ in range(2)]
    jobs = {(job.run_id, job.stage_id): job for job in await worker.tick()}
    for run_id in (lacking, whole):
        await worker.settle(jobs[run_id, "left"], StageCompleted(json.dumps(LARGE)))
    await lose(superuser, lacking)
    settlements = [Settlement(jobs[run_id, "right"], StageCompleted('"right"')) for run_id in (lacking, whole)]
    async with worker.transaction() as tx:
        settled = await worker.kernel.dispatch(JobSettle(worker.worker_id, settlements), tx)
    assert [(each.status, each.stage_status, each.run_status) for each in settled] == [
        ("settled", "COMPLETED", "FAILED"),
        ("settled", "COMPLETED", "COMPLETED"),
    ]
    assert json.loads((await view_of(worker, whole)).output or "") == {"left": LARGE, "right": "right"}
    assert await error_of(look, lacking) == ("FAILED", PAYLOAD_LOST, None)
    (run,) = await look("select error ->> 'message' as told from tenantry.workflow_runs where run_id = %s", lacking)
    assert run["told"].startswith(f"{PAYLOAD_LOST}: the output of stage 'left' is not in the blob store")

    # Made anew it is there again, and what the other one made has stayed.
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(RunRedrive(lacking, "stage", "left"), tx)
    (job,) = await worker.tick()
    assert job.stage_id == "left"
    await worker.settle(job, StageCompleted('"anew"'))
    assert json.loads((await view_of(worker, lacking)).output or "") == {"left": "anew", "right": "right"}


async def test_a_run_goes_on_by_a_redrive_once_its_payload_is_back(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_id = await create(worker, "chain", LARGE)
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted(job.input))
    rows = await lose(superuser, run_id)
    for _ in range(2):
        assert await worker.tick() == ()
        assert await error_of(look, run_id) == ("FAILED", PAYLOAD_LOST, "again")
        async with worker.transaction() as tx:
            await worker.kernel.dispatch(RunRedrive(run_id), tx)
    await bring_back(superuser, rows)
    await settle_all(worker)
    assert json.loads((await view_of(worker, run_id)).output or "") == LARGE


async def test_a_run_that_cannot_be_checked_against_another_version_is_not_given_one(
    worker: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await create(worker, "echo", LARGE)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(RunCancel(run_id), tx)
    await lose(superuser, run_id)
    async with worker.transaction() as tx:
        with pytest.raises(InvalidRequestError, match="is not in the blob store") as refused:
            await worker.kernel.dispatch(RunRedrive(run_id), tx)
    assert refused.value.errors[0].pointer == "/definition_version"


@pytest.mark.parametrize("how", ["execute", "completion"])
async def test_whoever_executes_by_name_is_told_what_is_lost(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look, how: str
) -> None:
    run_id = await create(worker, "chain", LARGE)
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted(job.input))
    await lose(superuser, run_id)
    async with worker.transaction() as tx:
        if how == "execute":
            done = await worker.kernel.dispatch(JobExecute(run_id, "again"), tx)
            assert (done.outcome, done.ghost, done.will_retry) == ("failed", False, False)
            assert str(done.error).startswith(PAYLOAD_LOST)
        else:
            assert (await worker.kernel.bound_to(tx).run_to_completion(run_id)).outcome == "failed"
    assert await error_of(look, run_id) == ("FAILED", PAYLOAD_LOST, "again")


async def test_a_completion_of_a_run_that_lost_its_input_fails_it(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_id = await create(worker, "echo", LARGE)
    await lose(superuser, run_id)
    async with worker.transaction() as tx:
        assert (await worker.kernel.bound_to(tx).run_to_completion(run_id)).outcome == "failed"
    assert await error_of(look, run_id) == ("FAILED", PAYLOAD_LOST, None)


@pytest.mark.parametrize("how", ["transition", "sweep"])
async def test_a_transition_that_lacks_an_output_fails_its_run(
    worker: HandWorker, superuser: psycopg.AsyncConnection, look: Look, how: str
) -> None:
    lacking, whole = [await create(worker, "echo", LARGE) for _ in range(2)]
    await settle_all(worker)
    # As a crash of another release could leave it: all stages are done, the runs are not.
    for table in ("workflow_runs", "workflow_stages"):
        await superuser.execute(
            f"update tenantry.{table} set updated_at = updated_at - interval '1 day' where run_id = any(%s)".encode(),
            ([lacking, whole],),
        )
    await superuser.execute(
        "update tenantry.workflow_runs set status = 'RUNNING', completed_at = null, output_digest = null"
        " where run_id = any(%s)",
        ([lacking, whole],),
    )
    await lose(superuser, lacking)
    async with worker.transaction() as tx:
        if how == "transition":
            assert (await worker.kernel.dispatch(RunTransition(lacking), tx)).action == "failed"
            assert (await worker.kernel.dispatch(RunTransition(whole), tx)).action == "completed"
        else:
            await worker.kernel.dispatch(RunReapStuck(), tx)
    assert await error_of(look, lacking) == ("FAILED", PAYLOAD_LOST, None)
    assert json.loads((await view_of(worker, whole)).output or "") == LARGE


# -- steps ------------------------------------------------------------------------------------------------------------


async def test_a_step_whose_result_is_lost_says_so_and_its_neighbours_have_theirs(
    worker: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run_ids = [await create(worker, "echo", 1) for _ in range(3)]
    async with worker.transaction() as tx:
        for run_id in run_ids:
            await worker.kernel.dispatch(StepSignal(run_id, "echo", "told", LARGE), tx)
    opening = {"kind": "signal", "seq": 1, "stage_attempt": 1}
    ops = [StepOp("open", job.fence, "told", opening) for job in await worker.tick()]
    await lose(superuser, run_ids[1])
    async with worker.transaction() as tx:
        answers = await worker.kernel.dispatch(StepWrite(ops), tx)
    rows = {op.fence.run_id: answer.row for op, answer in zip(ops, answers, strict=True)}
    told = {run_id: row and (row.status, row.is_lost, row.result) for run_id, row in rows.items()}
    text = json.dumps(LARGE, ensure_ascii=False)
    assert [told[run_id] for run_id in run_ids] == [
        ("completed", False, text),
        ("completed", True, None),
        ("completed", False, text),
    ]


# -- looking ----------------------------------------------------------------------------------------------------------


async def test_who_looks_at_a_run_is_told_what_is_lost_of_it(
    worker: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await create(worker, "chain", LARGE)
    async with worker.transaction() as tx:
        await worker.kernel.dispatch(StepSignal(run_id, "echo", "told", OTHER), tx)
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted(job.input))
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted('"small"'))
    await lose(superuser, run_id)
    async with worker.transaction() as tx:
        view = await run_get(tx, run_id)
        (step,) = (await step_list(tx, run_id, limit=9)).steps
        outputs = await stage_outputs(tx, run_id, up_to_group=2)
    assert view is not None
    assert (view.input, view.output, set(view.lost)) == (None, '"small"', {"input"})
    assert (step.status, step.result, step.is_lost) == ("completed", None, True)
    assert outputs == {"echo": None, "again": '"small"'}
