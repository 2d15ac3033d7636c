"""Reads of runs: one tenant's, in pages, with every filter, and nothing written."""

from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from kernel import RunCancel, StepSignal
from kernel.queries.run_events import run_events
from kernel.queries.run_get import definition_snapshot, run_get, run_progress
from kernel.queries.run_list import NEWEST, RunFilter, active_run_ids, run_list
from kernel.queries.run_logs import run_logs
from kernel.queries.stage_active import stage_active
from kernel.queries.step_list import step_get, step_list
from kernel.states import RunStatus, StageStatus
from tests.support.workflows import HandWorker


async def listed(
    hand: HandWorker, wanted: RunFilter | None = None, limit: int = 50, before: UUID = NEWEST
) -> list[UUID]:
    async with hand.transaction() as tx:
        return [run.run_id for run in await run_list(tx, wanted or RunFilter(), limit=limit, before=before)]


async def test_a_run_is_read_whole(hand: HandWorker) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    run_id = await hand.create("chain", 7, tags=("b", "a"), traceparent=traceparent)
    async with hand.transaction() as tx:
        pending = await run_get(tx, run_id)
    assert pending is not None
    assert (pending.input, pending.config, pending.output, pending.stages) == ('{"n":7}', "{}", None, ())
    assert (pending.summary.tags, pending.summary.trace_id) == (("a", "b"), "0af7651916cd43dd8448eb211c80319c")
    await hand.tick()
    async with hand.transaction() as tx:
        running = await run_get(tx, run_id)
        progress = await run_progress(tx, run_id)
        events = await run_events(tx, run_id, limit=10)
        snapshot = await definition_snapshot(tx, "chain", running.summary.version or "") if running else None
    assert running is not None
    assert (running.summary.status, progress.is_over if progress else None) == (RunStatus.RUNNING, False)
    assert [(stage.stage_id, stage.status, stage.attempt) for stage in running.stages] == [
        ("first", StageStatus.RUNNING, 1)
    ]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert progress is not None
    assert progress.event_sequence == len(events)
    assert snapshot is not None


async def test_what_runs_are_at_is_read_for_many_of_them_at_once(hand: HandWorker, other_tenant: UUID) -> None:
    run_ids = [await hand.create("chain", 7), await hand.create("chain", 8), await hand.create("chain", 9)]
    await hand.tick()
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(run_ids[2]), tx)
        found = await stage_active(tx, run_ids, limit=3)
        assert {run_id: [(each.stage_id, each.status) for each in stages] for run_id, stages in found.items()} == {
            run_id: [("first", StageStatus.RUNNING)] for run_id in run_ids[:2]
        }
        assert await stage_active(tx, [], limit=3) == {}
        assert await stage_active(tx, run_ids, limit=0) == {}
    async with HandWorker(hand.database, other_tenant).transaction() as tx:
        assert await stage_active(tx, run_ids, limit=3) == {}


async def test_another_tenant_reads_nothing(hand: HandWorker, other_tenant: UUID) -> None:
    run_id = await hand.create(tags=("red",))
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(StepSignal(run_id, "first", "approve"), tx)
        assert [step.step_id for step in (await step_list(tx, run_id, limit=10)).steps] == ["approve"]
    other = HandWorker(hand.database, other_tenant)
    async with other.transaction() as tx:
        assert await run_get(tx, run_id) is None
        assert await run_progress(tx, run_id) is None
        assert await run_events(tx, run_id, limit=10) == []
        assert await run_logs(tx, run_id, limit=10) == []
        assert await step_list(tx, run_id, limit=10) == ([], False)
        assert await step_get(tx, run_id, "first", "approve") is None
        assert await active_run_ids(tx, RunFilter(), limit=10) == []
    for wanted in (RunFilter(), RunFilter(tags=("red",)), RunFilter(statuses=frozenset({RunStatus.PENDING}))):
        assert await listed(other, wanted) == []


async def test_an_unknown_run_is_none(hand: HandWorker) -> None:
    async with hand.transaction() as tx:
        assert await run_get(tx, uuid4()) is None


@pytest.mark.parametrize(
    "wanted",
    [
        RunFilter(),
        RunFilter(statuses=frozenset({RunStatus.PENDING})),
        RunFilter(statuses=frozenset({RunStatus.PENDING, RunStatus.CANCELLED})),
        RunFilter(statuses=frozenset(RunStatus)),
        RunFilter(tags=("red",)),
    ],
)
async def test_every_filter_pages_through_all_runs_once(hand: HandWorker, wanted: RunFilter) -> None:
    made = [await hand.create(tags=("red",)) for _ in range(7)]
    found: list[UUID] = []
    while page := await listed(hand, wanted, limit=3, before=found[-1] if found else NEWEST):
        found += page
    assert found == made[::-1]


async def test_a_run_whose_id_is_younger_than_its_creation_is_found_by_time(
    hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    # The id is drawn before a creation waits for an idempotency key; created_at is the moment of the insert.
    run_id = await hand.create()
    await superuser.execute(
        "update tenantry.workflow_runs set created_at = created_at + interval '50 minutes' where run_id = %s", (run_id,)
    )
    async with hand.transaction() as tx:
        run = await run_get(tx, run_id)
    assert run is not None
    created_at = run.summary.created_at
    second = timedelta(seconds=1)
    assert await listed(hand, RunFilter(created_after=created_at - second, created_before=created_at + second)) == [
        run_id
    ]
    assert await listed(hand, RunFilter(created_after=created_at)) == []
    assert await listed(hand, RunFilter(created_before=created_at)) == []


async def test_active_runs_are_those_that_are_not_over(hand: HandWorker, superuser: psycopg.AsyncConnection) -> None:
    kept, over = await hand.create(tags=("red",)), await hand.create(tags=("red",))
    await superuser.execute("update tenantry.workflow_runs set status = 'FAILED' where run_id = %s", (over,))
    async with hand.transaction() as tx:
        assert await active_run_ids(tx, RunFilter(tags=("red",)), limit=10) == [kept]
        assert await active_run_ids(tx, RunFilter(statuses=frozenset({RunStatus.FAILED})), limit=10) == []
        assert await active_run_ids(tx, RunFilter(tags=("red", "big")), limit=10) == []
