"""What a tenant's runs have been doing, as those who look at it are told."""

from datetime import timedelta
from uuid import UUID

import psycopg

from kernel import RunRedrive, StageCompleted, StageFailed
from kernel.queries.activity_get import activity_get
from kernel.queries.job_list import job_list, worker_list
from kernel.queries.run_events import run_events
from kernel.queries.stage_get import stage_outputs
from kernel.states import JobStatus, RunStatus
from tenancy import Database
from tests.support.workflows import HandWorker

HOUR = timedelta(hours=1)


async def test_runs_are_counted_by_slice_and_outcome(hand: HandWorker, superuser: psycopg.AsyncConnection) -> None:
    ended, early = await hand.create("single"), await hand.create("single")
    for job in await hand.tick():
        await hand.settle(job)
    waiting = await hand.create("single")
    await superuser.execute(
        "update tenantry.workflow_runs set created_at = created_at - interval '30 minutes' where run_id = %s", (early,)
    )
    async with hand.transaction() as tx:
        activity = await activity_get(tx, window=HOUR, slices=60)
    assert (activity.total, activity.count(RunStatus.COMPLETED), activity.count(RunStatus.PENDING)) == (3, 2, 1)
    assert len(activity.buckets) == 61
    assert activity.since <= activity.now - HOUR < activity.since + timedelta(minutes=1)
    counted = [number for number, bucket in enumerate(activity.buckets) if bucket.total]
    assert len(counted) in {2, 3}
    assert counted[0] in {29, 30, 31}
    assert ended != waiting


async def test_stages_tell_their_times_retries_failures_and_lost_leases(
    hand: HandWorker, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    runs = [await hand.create("single") for _ in range(3)]
    for job in await hand.tick():
        await hand.settle(job)
    # Of three executions, 1 s, 2 s and 9 s long; the runs were in line for 4 s each.
    for run_id, seconds in zip(runs, (1, 2, 9), strict=True):
        await superuser.execute(
            "update tenantry.outbox_events as ended set occurred_at = begun.occurred_at + make_interval(secs => %s)"
            " from tenantry.outbox_events as begun where ended.run_id = %s and ended.type = 'stage:completed'"
            " and begun.run_id = ended.run_id and begun.type = 'stage:started'",
            (seconds, run_id),
        )
        await superuser.execute(
            "update tenantry.workflow_stages as stage set started_at = run.available_at + interval '4 seconds'"
            " from tenantry.workflow_runs as run where stage.run_id = %s and run.run_id = stage.run_id",
            (run_id,),
        )
    for sequence, kind, error in ((90, "retrying", "LEASE_HEARTBEAT_LOST: gone"), (91, "failed", "RuntimeError: no")):
        await superuser.execute(
            "insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload)"
            " values (%s, %s, %s, %s, 'first', json_build_object('error', %s::text))",
            (tenant, runs[0], sequence, f"stage:{kind}", error),
        )
    async with hand.transaction() as tx:
        (stage,) = (await activity_get(tx, window=HOUR, slices=12)).stages
    assert (stage.workflow_id, stage.stage_id, stage.executions) == ("single", "first", 3)
    assert (stage.retries, stage.failures, stage.leases_lost) == (1, 1, 1)
    assert (stage.run_p50_s, stage.wait_p50_s, stage.wait_p95_s) == (2.0, 4.0, 4.0)
    assert stage.run_p95_s is not None
    assert 8 < stage.run_p95_s < 9


async def test_the_time_before_a_redrive_is_not_taken_for_time_in_line(
    hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await hand.create("single")
    for job in await hand.tick():
        await hand.settle(job)
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunRedrive(run_id, "start"), tx)
    await superuser.execute(
        "update tenantry.workflow_runs set available_at = available_at - interval '7 days' where run_id = %s", (run_id,)
    )
    for job in await hand.tick():
        await hand.settle(job)
    async with hand.transaction() as tx:
        (stage,) = (await activity_get(tx, window=HOUR, slices=12)).stages
    assert (stage.executions, stage.wait_p50_s) == (2, None)


async def test_only_the_tenants_own_and_only_the_window(
    hand: HandWorker, database: Database, other_tenant: UUID
) -> None:
    await hand.create("single")
    async with database.transaction(other_tenant) as tx:
        nothing = await activity_get(tx, window=HOUR, slices=12)
        assert (nothing.total, nothing.stages, await worker_list(tx)) == (0, (), [])
    async with hand.transaction(offset=timedelta(hours=3)) as tx:
        assert (await activity_get(tx, window=HOUR, slices=12)).total == 0


async def test_jobs_and_workers_tell_who_holds_what(hand: HandWorker) -> None:
    run_id = await hand.create("fan")
    jobs = await hand.tick()
    async with hand.transaction() as tx:
        listed = await job_list(tx, run_id)
        (worker,) = await worker_list(tx)
    assert [(job.stage_id, job.status, job.worker_id) for job in listed] == [
        ("left", JobStatus.RUNNING, "hand"), ("right", JobStatus.RUNNING, "hand"),
    ]  # fmt: skip
    assert (worker.worker_id, worker.jobs, worker.workflows) == ("hand", 2, ("fan",))
    await hand.settle(jobs[0], StageCompleted('{"n": 1}'))
    await hand.settle(jobs[1], StageFailed("RuntimeError: no"))
    async with hand.transaction() as tx:
        (left,) = await job_list(tx, run_id)
        assert (left.stage_id, left.status, left.is_early) == ("right", JobStatus.PENDING, True)
        assert await worker_list(tx) == []
        assert await stage_outputs(tx, run_id, up_to_group=1) == {"left": '{"n": 1}'}
        assert await stage_outputs(tx, run_id, up_to_group=0) == {}


async def test_events_are_found_by_type(hand: HandWorker) -> None:
    run_id = await hand.create("chain")
    await hand.tick()
    async with hand.transaction() as tx:
        every = await run_events(tx, run_id, limit=10)
        some = await run_events(tx, run_id, limit=10, types=["stage:started", "workflow:created"])
        rest = await run_events(tx, run_id, limit=10, types=["stage:started"], after=some[-1].sequence)
    assert [each.type for each in some] == [
        each.type for each in every if each.type in {"stage:started", "workflow:created"}
    ]
    assert rest == []
