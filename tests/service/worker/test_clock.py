"""The worker's notion of the database's clock: never ahead of it, never back before what was read."""

from datetime import UTC, datetime, timedelta

import pytest

from service.worker import clock as module
from service.worker.clock import DatabaseClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Monotonic:
    """Stands still but for what a test adds."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    ticking = Monotonic()
    monkeypatch.setattr(module, "monotonic", ticking)
    return ticking


def test_it_knows_nothing_before_it_was_told() -> None:
    assert DatabaseClock().estimate() is None


def test_it_moves_on_by_the_monotonic_clock(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(NOON)
    monotonic.seconds += 2.5
    assert clock.estimate() == NOON + timedelta(seconds=2.5)


def test_a_reply_that_is_overtaken_does_not_put_it_back(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(NOON + timedelta(seconds=1))
    clock.observe(NOON)
    assert clock.estimate() == NOON + timedelta(seconds=1)


def test_a_clock_that_runs_fast_is_put_right_by_the_next_reply(monotonic: Monotonic) -> None:
    clock = DatabaseClock()
    clock.observe(NOON)
    monotonic.seconds += 60
    told = NOON + timedelta(seconds=59)
    clock.observe(told)
    assert clock.estimate() == told
