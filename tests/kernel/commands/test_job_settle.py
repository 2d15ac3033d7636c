"""`worker.tick` and `job.settle` drive runs from start to end, each step one transaction."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import (
    JobBegin,
    JobSettle,
    RunCancel,
    Settlement,
    StageCompleted,
    StageFailed,
    StageReleased,
    StageSkipped,
    WorkerTick,
)
from tests.support import factories
from tests.support.looking import Look
from tests.support.workflows import HandWorker

RUN = "select status, output, error, event_sequence, completed_at from tenantry.workflow_runs where run_id = %s"
STAGES = "select * from tenantry.workflow_stages where run_id = %s order by number"
JOBS = "select * from tenantry.job_queue where run_id = %s order by stage_id"
EVENTS = "select type, sequence, stage_id from tenantry.outbox_events where run_id = %s order by sequence"


async def run_row(look: Look, run_id: UUID) -> dict[str, Any]:
    (row,) = await look(RUN, run_id)
    return row


async def event_types(look: Look, run_id: UUID) -> list[str]:
    rows = await look(EVENTS, run_id)
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["type"] for row in rows]


async def test_a_chain_goes_from_tick_through_leases_ahead_to_its_output(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 1)
    (first,) = await hand.tick()
    assert (first.stage_id, first.attempt, first.begun, first.input) == ("first", 1, True, '{"n":1}')

    (second,) = (await hand.settle(first, StageCompleted('{"n": 2}'), lease_ahead=1)).next_jobs
    assert (second.stage_id, second.input) == ("second", '{"n": 2}')
    (third,) = (await hand.settle(second, StageCompleted('{"n": 4}'), lease_ahead=1)).next_jobs
    done = await hand.settle(third, StageCompleted('{"n": 104}'), lease_ahead=1)

    assert (done.status, done.run_status, done.next_jobs) == ("settled", "COMPLETED", ())
    row = await run_row(look, run_id)
    assert (row["status"], row["output"]) == ("COMPLETED", {"n": 104})
    assert await look(JOBS, run_id) == []
    assert await event_types(look, run_id) == [
        "workflow:created",
        "workflow:started",
        *["stage:started", "stage:completed"] * 3,
        "workflow:completed",
    ]


async def test_without_room_the_next_group_waits_in_the_queue(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 1)
    (first,) = await hand.tick()

    settled = await hand.settle(first, StageCompleted('{"n": 2}'), lease_ahead=0)

    assert settled.next_jobs == ()
    (job,) = await look(JOBS, run_id)
    assert (job["stage_id"], job["status"], job["ready"], job["attempt"]) == ("second", "PENDING", True, 0)
    (second,) = await hand.tick()
    assert (second.stage_id, second.input, dict(second.outputs)) == ("second", '{"n": 2}', {"first": '{"n": 2}'})


async def test_a_parallel_group_is_left_only_when_all_of_it_is_done(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("fan", 3)
    left, right = await hand.tick()

    one = await hand.settle(left, StageCompleted('{"n": 3}'), lease_ahead=5)
    assert one.next_jobs == ()
    two = await hand.settle(right, StageCompleted('{"n": -3}'), lease_ahead=5)

    (joined,) = two.next_jobs
    assert joined.input == '{"left":{"n": 3},"right":{"n": -3}}'
    assert (await run_row(look, run_id))["status"] == "RUNNING"


async def test_a_failed_attempt_waits_its_turn_and_the_last_one_fails_the_run_in_the_same_transaction(
    hand: HandWorker, look: Look
) -> None:
    run_id = await hand.create("failing", 1)
    (job,) = await hand.tick()

    retried = await hand.settle(job, StageFailed("RuntimeError: broken"))
    assert (retried.status, retried.retry_delay_s, retried.stage_status) == ("settled", 2.0, "PENDING")
    assert await hand.tick() == ()
    (again,) = await hand.tick(offset=timedelta(seconds=3))
    assert (again.attempt, again.fence.attempt) == (2, 2)
    failed = await hand.settle(again, StageFailed("RuntimeError: broken again"))

    assert (failed.run_status, failed.stage_status) == ("FAILED", "FAILED")
    row = await run_row(look, run_id)
    assert row["error"] == {"code": "STAGE_FAILED", "message": "RuntimeError: broken again", "stage_id": "fragile"}
    (dead,) = await look(JOBS, run_id)
    assert (dead["status"], dead["last_error"]) == ("FAILED", "RuntimeError: broken again")
    assert await event_types(look, run_id) == [
        "workflow:created",
        "workflow:started",
        "stage:started",
        "stage:retrying",
        "stage:started",
        "stage:failed",
        "workflow:failed",
    ]
    stamps = await look(
        "select distinct xmin::text from tenantry.outbox_events where run_id = %s and type in ('stage:failed','workflow:failed')",
        run_id,
    )
    assert len(stamps) == 1


async def test_a_failure_cancels_the_siblings_and_drops_their_queued_jobs(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("fan", 1)
    (left,) = await hand.tick(limit=1)

    await hand.settle(left, StageFailed("ValueError: no", retryable=False))

    stages = {row["stage_id"]: row["status"] for row in await look(STAGES, run_id)}
    assert stages == {"left": "FAILED", "right": "CANCELLED"}
    assert [row["stage_id"] for row in await look(JOBS, run_id)] == ["left"]


async def test_a_late_siblings_outcome_is_a_ghost_and_its_job_goes(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("fan", 1)
    left, right = await hand.tick()
    await hand.settle(left, StageFailed("ValueError: no", retryable=False))

    late = await hand.settle(right, StageCompleted('{"n": 9}'))

    assert (late.status, late.ghost_reason) == ("ghost", "orphan")
    assert [row["stage_id"] for row in await look(JOBS, run_id)] == ["left"]
    stages = {row["stage_id"]: (row["status"], row["output"]) for row in await look(STAGES, run_id)}
    assert stages["right"] == ("CANCELLED", None)


async def test_both_siblings_in_one_flush_fail_and_retry_without_contradiction(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("fan", 1)
    left, right = await hand.tick()
    async with hand.transaction() as tx:
        command = JobSettle(
            "hand",
            [
                Settlement(right, StageFailed("OSError: later")),
                Settlement(left, StageFailed("ValueError: no", retryable=False)),
            ],
        )
        retried, failed = await hand.kernel.dispatch(command, tx)

    assert (retried.status, failed.run_status) == ("settled", "FAILED")
    stages = {row["stage_id"]: row["status"] for row in await look(STAGES, run_id)}
    assert stages == {"left": "FAILED", "right": "CANCELLED"}
    assert {row["stage_id"]: row["status"] for row in await look(JOBS, run_id)} == {"left": "FAILED"}


async def test_a_settle_is_fenced_by_its_lease(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("single", 1)
    (stale,) = await hand.tick()
    late = timedelta(seconds=400)
    taken = await hand.tick(offset=late)
    (fresh,) = taken or await hand.tick(offset=late)
    assert fresh.fence != stale.fence

    superseded = await hand.settle(stale, StageCompleted('{"n": 666}'))
    settled = await hand.settle(fresh, StageCompleted('{"n": 2}'))

    assert superseded.status == "superseded"
    assert settled.run_status == "COMPLETED"
    assert (await run_row(look, run_id))["output"] == {"n": 2}
    assert (await event_types(look, run_id)).count("stage:completed") == 1


async def test_a_repeated_settle_says_settled_and_writes_nothing(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 1)
    (job,) = await hand.tick()
    await hand.settle(job, StageCompleted('{"n": 2}'), lease_ahead=1)
    before = await event_types(look, run_id)

    again = await hand.settle(job, StageCompleted('{"n": 2}'), lease_ahead=1)

    assert (again.status, again.next_jobs) == ("settled", ())
    assert await event_types(look, run_id) == before


async def test_a_release_gives_the_attempt_back_and_starts_are_announced_once(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("single", 1)
    for _ in range(5):
        (job,) = await hand.tick()
        assert (job.attempt, job.fence.attempt) == (1, 1)
        await hand.settle(job, StageReleased())

    (job,) = await hand.tick()
    await hand.settle(job)

    assert await event_types(look, run_id) == [
        "workflow:created",
        "workflow:started",
        "stage:started",
        "stage:completed",
        "workflow:completed",
    ]
    (stage,) = await look(STAGES, run_id)
    assert stage["attempt"] == 1


async def test_when_decides_before_the_stage_begins(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("optional", 4)
    (job,) = await hand.tick()
    assert not job.begun
    async with hand.transaction() as tx:
        (begun,) = await hand.kernel.dispatch(JobBegin([job]), tx)
    assert (begun.status, begun.job.attempt) == ("begun", 1)
    await hand.settle(begun.job, StageCompleted('{"n": 2}'))

    skipped_id = await hand.create("optional", 3)
    jobs = {job.run_id: job for job in await hand.tick()}
    skipped = await hand.settle(jobs[skipped_id], StageSkipped(), lease_ahead=1)

    (third,) = skipped.next_jobs
    assert third.input == '{"n":3}', "a group of one skipped stage is transparent"
    (stage, *_) = await look(STAGES, skipped_id)
    assert (stage["status"], stage["attempt"]) == ("SKIPPED", 0)
    assert "stage:skipped" in await event_types(look, skipped_id)
    assert "stage:skipped" not in await event_types(look, run_id)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_when_that_raises_is_a_failed_attempt(hand: HandWorker, look: Look, attempts: int) -> None:
    run_id = await hand.create("optional", 4)
    offset = timedelta(0)
    for _ in range(attempts):
        (job,) = await hand.tick(offset=offset)
        await hand.settle(job, StageFailed("KeyError: 'when'"))
        offset += timedelta(seconds=60)

    (stage,) = await look(STAGES, run_id)
    assert (stage["status"], stage["attempt"]) == ("PENDING", attempts)


async def test_a_cap_is_never_exceeded_by_ticks_or_leases_ahead(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    await factories.limit_tenant(superuser, hand.tenant_id, running_jobs=2)
    for number in range(5):
        await hand.create("chain", number)

    async with hand.transaction() as tx:
        ticked = await hand.kernel.dispatch(WorkerTick("hand", 10), tx)
    assert (len(ticked.leased), ticked.is_capped) == (2, True)
    async with hand.transaction() as tx:
        blocked = await hand.kernel.dispatch(WorkerTick("hand", 10), tx)
    assert (blocked.leased, blocked.is_blocked) == ((), True)
    await hand.settle(ticked.leased[0], lease_ahead=1)

    (row,) = await look(
        "select count(*) as n from tenantry.job_queue where tenant_id = %s and status = 'RUNNING'", hand.tenant_id
    )
    assert row["n"] == 2


async def test_a_suspended_tenants_runs_are_not_claimed(hand: HandWorker, superuser: psycopg.AsyncConnection) -> None:
    run_id = await hand.create("single", 1)
    await factories.set_tenant_status(superuser, hand.tenant_id, "suspended")
    assert await hand.tick() == ()

    await factories.set_tenant_status(superuser, hand.tenant_id, "active")

    assert [job.run_id for job in await hand.tick()] == [run_id]


async def test_priority_is_a_head_start_of_a_minute_a_point(hand: HandWorker) -> None:
    low = await hand.create("single", 1, priority=0)
    high = await hand.create("single", 2, priority=9)

    (job,) = await hand.tick(limit=1)

    assert job.run_id == high
    assert [job.run_id for job in await hand.tick()] == [low]


async def test_cancel_ends_everything_but_the_leases_of_bodies_that_still_run(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("fan", 1)
    (left,) = await hand.tick(limit=1)

    async with hand.transaction() as tx:
        cancelled = await hand.kernel.dispatch(RunCancel(run_id, "not wanted"), tx)
        again = await hand.kernel.dispatch(RunCancel(run_id), tx)

    assert (cancelled.cancelled, cancelled.status) == (True, "CANCELLED")
    assert (again.cancelled, again.status) == (False, "CANCELLED")
    assert {row["status"] for row in await look(STAGES, run_id)} == {"CANCELLED"}
    assert [row["stage_id"] for row in await look(JOBS, run_id)] == ["left"]
    ghost = await hand.settle(left)
    assert (ghost.status, ghost.ghost_reason) == ("ghost", "orphan")
    assert await look(JOBS, run_id) == []
    assert (await event_types(look, run_id))[-1] == "workflow:cancelled"
