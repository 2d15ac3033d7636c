"""What the worker remembers of its claims; no database."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import create_autospec
from uuid import UUID

from kernel import ClaimedRun, RunsClaimed, Ticked, WorkerTick
from kernel.lanes import Lane, Sight
from service.worker.dispatcher import Dispatcher, DueTenant
from service.worker.floors import FORGOTTEN_BELOW, LOOK_EVERY_S, MARGIN, MOST_PROBED, USED_FROM, FloorMemory

A, B = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LANE, URGENT = Lane("w", "v", 5), Lane("w", "v", 9)
TICK = WorkerTick("worker", 10, reap=False, promote=False)
CLAIMED = ClaimedRun(UUID(int=9), "w", "v")


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def due(tenant_id: UUID, *, is_ready: bool = True) -> DueTenant:
    return DueTenant(tenant_id, is_ready=is_ready, is_waiting=False, weight=1, is_active=True)


def saw(*, left: Mapping[Lane, datetime] | None = None, promoted: Mapping[Lane, datetime] | None = None) -> Ticked:
    """A tick that claimed nothing."""
    return Ticked(run_lanes=Sight({}, left or {}, promoted or {}))


def took(lanes: Mapping[Lane, datetime], number: int = 2 * USED_FROM) -> Ticked:
    """A tick that claimed enough to make floors worth their while."""
    return Ticked(runs=RunsClaimed((CLAIMED,) * number), run_lanes=Sight(lanes))


def memory_of(lanes: Mapping[Lane, datetime], tenant_id: UUID = A) -> FloorMemory:
    memory = FloorMemory()
    memory.looked([], 0.0)
    memory.note(tenant_id, TICK, took(lanes))
    return memory


def floors(memory: FloorMemory, tenant_id: UUID = A) -> Mapping[Lane, datetime]:
    return memory.aim(TICK, tenant_id).run_lanes.floors


def note(memory: FloorMemory, ticked: Ticked) -> None:
    """One more tick, aimed as the host does."""
    memory.note(A, memory.aim(TICK, A), ticked)


def test_a_claim_starts_a_margin_before_what_was_claimed_last() -> None:
    memory = memory_of({LANE: at(10)})
    assert floors(memory) == {LANE: at(10) - MARGIN}
    assert floors(memory, B) == {}


def test_lanes_and_kinds_have_floors_of_their_own() -> None:
    memory = memory_of({LANE: at(10)})
    note(memory, Ticked(job_lanes=Sight({LANE: at(1)}), run_lanes=Sight({URGENT: at(3)})))
    aimed = memory.aim(TICK, A)
    assert aimed.job_lanes.floors == {LANE: at(1) - MARGIN}
    assert aimed.run_lanes.floors == {LANE: at(10) - MARGIN, URGENT: at(3) - MARGIN}


def test_only_what_is_claimed_raises_a_floor() -> None:
    memory = memory_of({LANE: at(10)})
    note(memory, saw(left={LANE: at(20), URGENT: at(20)}))
    note(memory, Ticked())
    note(memory, took({LANE: at(9)}))
    assert floors(memory) == {LANE: at(10) - MARGIN}
    note(memory, took({LANE: at(15)}))
    assert floors(memory) == {LANE: at(15) - MARGIN}


def test_a_few_claims_are_not_worth_a_floor() -> None:
    memory = FloorMemory()
    memory.note(A, TICK, took({LANE: at(10)}, USED_FROM - 1))
    assert floors(memory) == {}
    assert memory.probed() == []
    memory.note(A, TICK, took({LANE: at(10)}, 1))
    assert floors(memory) == {LANE: at(10) - MARGIN}


def test_what_came_due_late_lowers_the_floor_to_its_rank() -> None:
    memory = memory_of({LANE: at(10)})
    note(memory, saw(promoted={LANE: at(2), URGENT: at(1)}))
    assert floors(memory) == {LANE: at(2)}
    note(memory, saw(promoted={LANE: at(60)}))
    assert floors(memory) == {LANE: at(2)}


def test_the_question_is_asked_without_floors_every_so_often() -> None:
    memory = FloorMemory()
    assert memory.wants_look(5.0)
    memory.looked([], 5.0)
    assert not memory.wants_look(5.0 + LOOK_EVERY_S - 0.1)
    assert memory.wants_look(5.0 + LOOK_EVERY_S)


def test_who_has_work_then_is_claimed_from_without_floors_until_that_succeeds() -> None:
    memory = memory_of({LANE: at(10)})
    memory.note(B, TICK, took({LANE: at(10)}))
    memory.looked([due(A), due(B, is_ready=False)], LOOK_EVERY_S)
    assert floors(memory) == {}
    assert floors(memory, B) == {LANE: at(10) - MARGIN}
    assert [item["tenant_id"] for item in memory.probed()] == [B]

    note(memory, Ticked(is_blocked=True))
    memory.note(A, WorkerTick("worker", 0), Ticked())
    assert floors(memory) == {}

    note(memory, took({LANE: at(5)}))
    assert floors(memory) == {LANE: at(5) - MARGIN}


def test_a_look_that_did_not_come_far_lowers_the_floors_of_the_lanes_that_it_did_not_see() -> None:
    memory = memory_of({LANE: at(10), URGENT: at(20)})
    memory.looked([due(A)], LOOK_EVERY_S)
    note(memory, took({LANE: at(6)}))
    assert floors(memory) == {LANE: at(6) - MARGIN, URGENT: at(6)}

    memory.looked([due(A)], 2 * LOOK_EVERY_S)
    note(memory, saw(left={URGENT: at(1)}))
    assert floors(memory) == {LANE: at(1), URGENT: at(1)}

    memory.looked([due(A)], 3 * LOOK_EVERY_S)
    note(memory, Ticked())
    assert floors(memory) == {LANE: at(1), URGENT: at(1)}


def test_who_rested_longest_is_forgotten_first() -> None:
    memory = FloorMemory(most_tenants=2)
    for tenant_id in (A, B, A, UUID(int=3)):
        memory.note(tenant_id, TICK, took({LANE: at(10)}))
    assert len(memory) == 2
    assert (floors(memory, A) != {}, floors(memory, B) != {}) == (True, False)


def test_who_is_idle_is_forgotten_in_time() -> None:
    memory = memory_of({LANE: at(10)})
    looks = 0
    while len(memory):
        looks += 1
        memory.looked([], looks * LOOK_EVERY_S)
    assert timedelta(hours=1) < timedelta(seconds=looks * LOOK_EVERY_S) < timedelta(days=1)
    assert floors(memory) == {}
    assert FORGOTTEN_BELOW < 1


def test_a_tenant_without_claims_is_not_remembered() -> None:
    memory = FloorMemory()
    memory.note(A, TICK, saw(left={LANE: at(1)}))
    assert len(memory) == 0


def test_the_question_probes_a_few_of_the_weightiest() -> None:
    memory = FloorMemory()
    for number in range(MOST_PROBED + 5):
        memory.note(UUID(int=number), TICK, took({LANE: at(10), URGENT: at(11)}, USED_FROM + number))
    items = memory.probed()
    assert len(items) == MOST_PROBED
    assert items[0] == {
        "is_job": False,
        "tenant_id": UUID(int=MOST_PROBED + 4),
        "workflow_id": "w",
        "version": "v",
        "floors": {"5": at(10) - MARGIN, "9": at(11) - MARGIN},
    }


async def test_who_is_told_of_is_due_without_a_question_and_looked_at_everywhere() -> None:
    memory = memory_of({LANE: at(0)})
    dispatcher = create_autospec(Dispatcher, instance=True)
    dispatcher.due.return_value = [DueTenant(A, False, False, 1, True, jobs=(("other", "v"),))]
    await memory.due(dispatcher, 1.0)
    assert memory.aim(TICK, A).job_lanes.pairs == (("other", "v"),)

    memory.tell(A, LANE[:2])
    memory.tell(A, None)
    (told,) = await memory.due(dispatcher, 1.0, is_told=True)

    assert (told.tenant_id, told.is_ready) == (A, True)
    assert dispatcher.due.await_count == 1
    # What is due may be of any workflow, also of one that was not due at the last question.
    assert memory.aim(TICK, A).job_lanes.pairs is None
    assert memory.aim(TICK, A).run_lanes.pairs is None


async def test_where_new_runs_are_told_of_jobs_are_not_looked_at() -> None:
    memory = memory_of({LANE: at(0)})
    dispatcher = create_autospec(Dispatcher, instance=True)

    memory.tell(A, ("new", "v"))
    memory.tell(A, ("newer", "v"))
    memory.tell(B, None)
    await memory.due(dispatcher, 1.0, is_told=True)

    assert set(memory.aim(TICK, A).run_lanes.pairs or ()) == {("new", "v"), ("newer", "v")}
    assert memory.aim(TICK, A).job_lanes.pairs == ()
    assert memory.aim(TICK, B).job_lanes.pairs is None
    # A tick that makes rows ready by itself looks everywhere all the same.
    assert memory.aim(replace(TICK, promote=True), A).job_lanes.pairs is None
