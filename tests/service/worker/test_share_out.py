"""Slots go to who runs least for its weight, however few come free at a time."""

from collections import Counter
from uuid import UUID

from service.worker.dispatcher import DueTenant, share_out

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def due(tenant_id: UUID, weight: int = 1, *, is_ready: bool = True, is_active: bool = True) -> DueTenant:
    return DueTenant(tenant_id, is_ready=is_ready, is_waiting=False, weight=weight, is_active=is_active)


def test_an_empty_worker_is_shared_by_weight() -> None:
    assert share_out([due(A, 3), due(B)], 8, {}) == {A: 6, B: 2}


def test_a_slot_or_two_at_a_time_make_up_the_same_shares() -> None:
    running: Counter[UUID] = Counter()
    for room in (1, 2) * 20:
        running.update(share_out([due(A, 3), due(B)], room, running))
    assert running == {A: 45, B: 15}


def test_who_runs_nothing_comes_first() -> None:
    assert share_out([due(A, 3), due(B)], 1, {A: 3}) == {B: 1}
    assert share_out([due(A), due(B), due(C)], 2, {A: 60}) == {B: 1, C: 1}


def test_only_active_tenants_with_ready_work_take_part() -> None:
    assert share_out([due(A, is_ready=False), due(B, is_active=False), due(C)], 4, {}) == {C: 4}
    assert share_out([], 4, {}) == {}
    assert share_out([due(A)], 0, {}) == {}
