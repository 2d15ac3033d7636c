"""The waterfall of a trace: the order of its lines, its axis, and what it says of errors."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from service.cli.waterfall import Axis, duration, render, rows_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def span(span_id: str, parent: str | None, began: float, took: float, **more: Any) -> dict[str, Any]:
    at = START + timedelta(seconds=began)
    return {
        "span_id": span_id, "parent_span_id": parent, "name": span_id, "kind": "INTERNAL", "status": "UNSET",
        "attributes": {}, "start_time": at.isoformat(), "end_time": (at + timedelta(seconds=took)).isoformat(), **more,
    }  # fmt: skip


def test_children_stand_below_their_parent_in_the_order_of_their_starts() -> None:
    spans = [
        span("late", "root", 2, 1),
        span("orphan", "gone", 5, 1),
        span("root", None, 0, 4),
        span("early", "root", 1, 1),
    ]
    assert [(row.span["name"], row.depth) for row in rows_of(spans)] == [
        ("root", 0), ("early", 1), ("late", 1), ("orphan", 0),
    ]  # fmt: skip


def test_a_wait_of_days_does_not_squeeze_the_work_into_a_column() -> None:
    axis = Axis.of(rows_of([span("before", None, 0, 1), span("after", None, 86_400, 3)]))
    assert axis.length_s == 4
    assert [axis.place((START + timedelta(seconds=at)).timestamp()) for at in (0, 1, 86_400, 86_403)] == [
        0,
        0.25,
        0.25,
        1,
    ]


def test_a_trace_of_a_single_moment_can_be_drawn() -> None:
    assert Axis.of(rows_of([span("moment", None, 0, 0)])).place(START.timestamp()) == 0
    assert Axis.of([]).length_s == 0


def test_the_picture_names_errors_and_cuts() -> None:
    failed = span("job", None, 0, 1, status="ERROR", attributes={"error.type": "LookupError"})
    console = Console(width=160)
    with console.capture() as captured:
        console.print(render([failed, span("next", None, 90_000, 1)]))
    picture = captured.get()
    assert "job LookupError" in picture
    assert "1 long wait cut out" in picture
    assert "+25 h" in picture


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (0.0123, "12.3 ms"), (2, "2 s"), (600, "10 min"), (172_800, "2 d")]
)
def test_durations_are_said_in_the_unit_a_person_would_take(seconds: float, text: str) -> None:
    assert duration(seconds) == text
