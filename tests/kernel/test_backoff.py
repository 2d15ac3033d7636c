import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.backoff import MAX_STAGE_DELAY_S, Backoff, backoff_delay_s, retry_delay_s


@pytest.mark.parametrize(("attempt", "delay_s"), [(1, 2), (2, 4), (3, 8), (11, 2048), (12, 3600), (10**9, 3600)])
def test_a_stage_waits_twice_as_long_each_time_up_to_an_hour(attempt: int, delay_s: float) -> None:
    assert retry_delay_s(attempt) == delay_s


def test_jitter_draws_from_nothing_to_the_delay() -> None:
    assert retry_delay_s(3, has_jitter=True, uniform=lambda low, high: low + high / 2) == 4
    assert all(0 <= retry_delay_s(40, has_jitter=True) <= MAX_STAGE_DELAY_S for _ in range(100))


@given(
    st.floats(0, 1e9),
    st.integers(0, 10**18),
    st.builds(Backoff, factor=st.floats(1, 1e300), max_delay_s=st.floats(1e-6, 1e9)),
)
def test_no_delay_leaves_its_bounds_at_any_attempt(delay_s: float, failures: int, backoff: Backoff) -> None:
    assert 0 <= backoff_delay_s(delay_s, failures, backoff) <= backoff.max_delay_s


def test_a_step_waits_as_its_backoff_says() -> None:
    backoff = Backoff(factor=3, max_delay_s=50)
    assert [backoff_delay_s(2, failures, backoff) for failures in (1, 2, 3, 4, 400)] == [2, 6, 18, 50, 50]
    assert backoff_delay_s(0, 9, backoff) == 0
