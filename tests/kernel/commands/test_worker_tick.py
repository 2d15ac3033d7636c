"""`worker.tick` claims each lane from its floor on, and tells how far it came."""

from datetime import timedelta
from uuid import UUID

import psycopg

from kernel import RunClaimPending, Ticked, WorkerTick
from kernel.lanes import Lane
from kernel.lanes import Look as Lanes
from tenancy.sql import parse
from tests.support.looking import Look
from tests.support.workflows import HandWorker, chain, single

SINGLE = Lane("single", single.definition_version, 5)
CHAIN = Lane("chain", chain.definition_version, 5)
A_SECOND = timedelta(seconds=1)
LATE = timedelta(seconds=301)
HOLD = parse(
    "-- name: hold\nselect run_id from tenantry.workflow_runs where run_id = :run_id::uuid for no key update", "hold"
)["hold"]


async def tick(
    hand: HandWorker,
    limit: int = 100,
    *,
    jobs: Lanes | None = None,
    runs: Lanes | None = None,
    offset: timedelta | None = None,
) -> Ticked:
    command = WorkerTick(hand.worker_id, limit, job_lanes=jobs or Lanes(), run_lanes=runs or Lanes())
    async with hand.transaction(offset) as tx:
        return await hand.kernel.dispatch(command, tx)


def claimed(ticked: Ticked) -> list[UUID]:
    return [job.fence.run_id for job in ticked.leased]


async def test_a_tick_tells_the_highest_rank_that_it_took_of_each_lane(hand: HandWorker, look: Look) -> None:
    for priority in (5, 5, 7):
        await hand.create("single", priority=priority)

    ticked = await tick(hand)

    ranks = await look(
        "select priority, max(rank) as rank from tenantry.workflow_runs where tenant_id = %s group by priority",
        hand.tenant_id,
    )
    assert ticked.run_lanes.taken == {SINGLE._replace(priority=row["priority"]): row["rank"] for row in ranks}
    assert ticked.run_lanes.left == {}


async def test_a_higher_priority_is_claimed_at_once_although_lower_ones_moved_on(hand: HandWorker) -> None:
    await hand.create("single", priority=5)
    floors = (await tick(hand)).run_lanes.taken
    urgent = await hand.create("single", priority=9)
    usual = await hand.create("single", priority=5)

    ticked = await tick(hand, runs=Lanes(floors=floors))

    assert claimed(ticked) == [urgent, usual]


async def test_what_is_older_than_the_floor_is_found_without_it(
    hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    await hand.create("single")
    floors = (await tick(hand)).run_lanes.taken
    older = await hand.create("single")
    await superuser.execute(
        "update tenantry.workflow_runs set rank = rank - interval '1 minute' where run_id = %s", (older,)
    )

    assert claimed(await tick(hand, runs=Lanes(floors=floors))) == []
    assert claimed(await tick(hand)) == [older]


async def test_jobs_are_claimed_from_their_floors_on(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    older = await hand.create("chain", priority=7)
    urgent = await hand.create("chain", priority=8)
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunClaimPending(hand.worker_id), tx)
    rows = await look("select run_id, priority, rank from tenantry.job_queue where tenant_id = %s", hand.tenant_id)
    assert {row["run_id"]: row["priority"] for row in rows} == {older: 7, urgent: 8}
    lane = CHAIN._replace(priority=7)
    (rank,) = (row["rank"] for row in rows if row["run_id"] == older)

    first = await tick(hand, jobs=Lanes(floors={lane: rank + A_SECOND}))
    second = await tick(hand, jobs=Lanes(floors={lane: rank}))

    assert (claimed(first), claimed(second)) == ([urgent], [older])
    assert second.job_lanes.taken == {lane: rank}


async def test_lanes_are_merged_by_rank(hand: HandWorker, superuser: psycopg.AsyncConnection) -> None:
    waited = await hand.create("single", priority=5)
    urgent = await hand.create("chain", priority=9)
    usual = await hand.create("chain", priority=5)
    await superuser.execute(
        "update tenantry.workflow_runs set rank = rank - interval '10 minutes' where run_id = %s", (waited,)
    )

    assert [claimed(await tick(hand, 1))[0] for _ in range(3)] == [waited, urgent, usual]


async def test_only_the_pairs_that_are_asked_for_are_claimed(hand: HandWorker) -> None:
    await hand.create("single")
    wanted = await hand.create("chain")

    assert claimed(await tick(hand, runs=Lanes(pairs=()))) == []
    assert claimed(await tick(hand, runs=Lanes(pairs=(CHAIN[:2], ("foreign", ""))))) == [wanted]


async def test_a_lane_counts_as_claimed_no_further_than_what_was_left(hand: HandWorker, look: Look) -> None:
    held, later = [await hand.create("chain") for _ in range(2)]
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunClaimPending(hand.worker_id), tx)
    ranks = {
        row["run_id"]: row["rank"]
        for row in await look("select run_id, rank from tenantry.job_queue where tenant_id = %s", hand.tenant_id)
    }
    async with hand.transaction() as other:
        await other.fetch_all(HOLD, run_id=held)
        ticked = await tick(hand)

    assert claimed(ticked) == [later]
    assert (ticked.job_lanes.taken, ticked.job_lanes.left) == ({CHAIN: ranks[held]}, {CHAIN: ranks[held]})


async def test_promotions_tell_their_lowest_rank(hand: HandWorker, look: Look) -> None:
    (row,) = await look("select now() + interval '1 hour' as at")
    run_id = await hand.create("single", run_at=row["at"])

    ticked = await tick(hand, 0, offset=timedelta(hours=2))

    (run,) = await look("select rank from tenantry.workflow_runs where run_id = %s", run_id)
    assert ticked.run_lanes.promoted == {SINGLE: run["rank"]}
    assert (ticked.run_lanes.taken, claimed(ticked)) == ({}, [])


async def test_a_run_of_which_a_lease_is_taken_back_is_claimed_from_in_the_next_tick(
    hand: HandWorker, look: Look
) -> None:
    """One transaction decides about a run once: two decisions would count its events twice."""
    run_id = await hand.create("fan")
    await tick(hand, 1)

    ticked = await tick(hand, offset=LATE)
    assert ([lease.released for lease in ticked.reaped.leases], claimed(ticked)) == ([True], [])
    assert claimed(await tick(hand, offset=LATE)) == [run_id, run_id]
    events = await look("select type from tenantry.outbox_events where run_id = %s order by sequence", run_id)
    assert [event["type"] for event in events].count("stage:started") == 3


async def test_a_run_that_fails_with_a_lease_is_not_claimed_from(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run_id = await hand.create("fan")
    await tick(hand, 1)
    await superuser.execute("update tenantry.job_queue set attempt = max_attempts where run_id = %s", (run_id,))

    ticked = await tick(hand, offset=LATE)
    assert ([lease.released for lease in ticked.reaped.leases], claimed(ticked)) == ([False], [])
    stages = await look("select status from tenantry.workflow_stages where run_id = %s order by number", run_id)
    assert [stage["status"] for stage in stages] == ["FAILED", "CANCELLED"]
    assert await look("select from tenantry.job_queue where run_id = %s and status <> 'FAILED'", run_id) == []


async def test_a_tick_that_takes_no_lease_back_claims(hand: HandWorker) -> None:
    """As most ticks of a worker do, and at once from a group of which another job is leased."""
    run_id = await hand.create("fan")
    async with hand.transaction() as tx:
        for _ in range(2):
            ticked = await hand.kernel.dispatch(WorkerTick(hand.worker_id, 1, reap=False), tx)
            assert claimed(ticked) == [run_id]
