"""`lease.reap_stale` takes back what a dead worker held, in two tiers, and never what is alive."""

from datetime import timedelta

import psycopg

from kernel import JobHeartbeat, LeaseReapStale
from tests.support.looking import Look
from tests.support.workflows import HandWorker

LATE = timedelta(seconds=301)
JOB = "select status, attempt, last_error, worker_id from tenantry.job_queue where run_id = %s"


async def reap(hand: HandWorker, offset: timedelta) -> tuple[int, int]:
    async with hand.transaction(offset) as tx:
        reaped = await hand.kernel.dispatch(LeaseReapStale(), tx)
    return reaped.released, reaped.expired


async def test_a_lease_without_heartbeats_goes_back_to_the_queue_with_its_reason(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("failing")
    await hand.tick()

    assert await reap(hand, timedelta(seconds=299)) == (0, 0)
    assert await reap(hand, LATE) == (1, 0)

    (job,) = await look(JOB, run_id)
    assert (job["status"], job["attempt"], job["worker_id"]) == ("PENDING", 1, None)
    assert job["last_error"].startswith("LEASE_HEARTBEAT_LOST")
    (stage,) = await look("select status, error_message from tenantry.workflow_stages where run_id = %s", run_id)
    assert stage["status"] == "PENDING"
    events = await look("select type from tenantry.outbox_events where run_id = %s order by sequence", run_id)
    assert events[-1]["type"] == "stage:retrying"


async def test_last_error_stays_through_the_next_lease(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("failing")
    await hand.tick()
    await reap(hand, LATE)
    await hand.tick(offset=LATE)

    (job,) = await look(JOB, run_id)
    assert job["status"] == "RUNNING"
    assert job["last_error"].startswith("LEASE_HEARTBEAT_LOST")


async def test_a_body_that_kills_its_worker_cannot_loop_for_ever(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("failing")
    await hand.tick()
    await reap(hand, LATE)
    await hand.tick(offset=LATE)

    assert await reap(hand, 3 * LATE) == (0, 1)

    (run,) = await look("select status, error from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["status"] == "FAILED"
    assert run["error"]["code"] == "LEASE_HEARTBEAT_LOST"


async def test_a_heartbeat_keeps_a_lease_and_the_absolute_cap_ends_it(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("single")
    (job,) = await hand.tick()
    async with hand.transaction(timedelta(seconds=3500)) as tx:
        (beat,) = await hand.kernel.dispatch(JobHeartbeat([job.fence]), tx)
    assert (beat.run_status, beat.lease_held) == ("RUNNING", True)

    assert await reap(hand, timedelta(seconds=3599)) == (0, 0)
    assert await reap(hand, timedelta(seconds=3601)) == (0, 1)

    (run,) = await look("select status, error from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["error"]["code"] == "LEASE_ABSOLUTE_CAP"
    async with hand.transaction() as tx:
        (late,) = await hand.kernel.dispatch(JobHeartbeat([job.fence]), tx)
    assert (late.run_status, late.lease_held) == ("FAILED", False)


async def test_a_job_whose_run_is_gone_or_over_is_removed_by_reap_and_by_claim(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    leased = await hand.create("single")
    await hand.tick()
    queued = await hand.create("chain")
    (first,) = await hand.tick()
    await hand.settle(first)
    await superuser.execute("delete from tenantry.workflow_runs where run_id = any(%s)", ([leased, queued],))

    assert await reap(hand, LATE) == (0, 0)
    assert await hand.tick() == ()

    assert await look("select from tenantry.job_queue where run_id = any(%s)", [leased, queued]) == []
