import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.execution.durations import MAX_SECONDS, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("24h", 86_400),
        ("7d", 604_800),
        (1.5, 1.5),
        (0, 0),
        (timedelta(minutes=2), 120),
    ],
)
def test_durations_are_read(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "42m30s", "", "5", "5 m", "-5m", "1.5h", "5M", "m", "٣s", "5m\n", "9" * 400 + "d", -1, float("inf"), float("nan"), True, None,
        10**400, b"5m", timedelta(seconds=-1), timedelta.max, [],
    ],
)  # fmt: skip
def test_anything_else_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError):
        parse_duration(value)


def test_zero_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="timeout"):
        parse_duration(0, name="timeout", allow_zero=False)


@given(st.text() | st.floats() | st.integers() | st.timedeltas())
def test_nothing_but_a_finite_number_of_seconds_comes_out(value: Any) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration(value) <= MAX_SECONDS
