"""The waterfall of a trace: the order of its lines, its axis, and what it says of errors."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from service.cli.runs import SPANS_WRITTEN_WITHIN_S, _written_in
from service.cli.waterfall import Axis, render, rows_of
from service.cli.words import duration

START = datetime(2026, 1, 1, tzinfo=UTC)


def span(span_id: str, parent: str | None, began: float, took: float, **more: Any) -> dict[str, Any]:
    at = START + timedelta(seconds=began)
    return {
        "trace_id": "t", "span_id": span_id, "parent_span_id": parent, "name": span_id, "kind": "INTERNAL", "status": "UNSET",
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


@pytest.mark.parametrize("waits_s", [[0.9] * 40, [3600.0] * 40, [0.5, 86_400.0, 0.2, 0.7, 5.0]])
def test_work_has_at_least_half_of_the_axis_however_many_waits_there_are(waits_s: list[float]) -> None:
    spans, at = [span("first", None, 0, 0.1)], 0.1
    for number, wait_s in enumerate(waits_s):
        spans.append(span(f"span-{number}", None, at + wait_s, 0.1))
        at += wait_s + 0.1
    axis = Axis.of(rows_of(spans))
    work_s = 0.1 * len(spans)
    assert work_s - 1e-3 <= axis.length_s <= 2 * work_s + 1e-3
    assert axis.length_s + axis.cut_s == pytest.approx(at, abs=1e-3)


def test_a_moment_between_two_waits_is_none_of_the_work() -> None:
    spans = [span("before", None, 0, 1), span("moment", "before", 500, 0), span("after", None, 1000, 1)]
    axis = Axis.of(rows_of(spans))
    assert axis.length_s == 2
    assert axis.cuts_before((START + timedelta(seconds=500)).timestamp()) == 1


def test_markers_after_the_work_of_their_trace_stand_among_the_traces_that_follow() -> None:
    spans = [
        span("create", None, 0, 1),
        span("started", "create", 0.5, 0),
        span("resumed", "create", 9.9, 0),
        span("finished", "create", 12, 0),
        span("replay", None, 10, 1, trace_id="u"),
    ]
    assert [(row.span["name"], row.depth) for row in rows_of(spans)] == [
        ("create", 0), ("started", 1), ("resumed", 0), ("replay", 0), ("finished", 0),
    ]  # fmt: skip
    assert [row.depth for row in rows_of(spans[:4])] == [0, 1, 1, 1], "one trace is one tree"


def test_siblings_are_in_order_where_one_starts_at_a_full_second() -> None:
    spans = [span("root", None, 0, 9), span("later", "root", 1.5, 1), span("sooner", "root", 1, 1)]
    assert [row.span["name"] for row in rows_of(spans)] == ["root", "sooner", "later"]


def test_a_span_that_is_its_own_ancestor_is_told_once() -> None:
    assert [row.span["name"] for row in rows_of([span("a", "b", 0, 1), span("b", "a", 1, 1)])] == ["a", "b"]


@pytest.mark.parametrize("width", [80, 120, 240])
def test_the_picture_is_as_wide_as_the_terminal_at_most_and_crops_nothing_but_names(width: int) -> None:
    spans = [span("job.execute with-a-very-long-workflow/with-a-very-long-stage-name", None, 0, 0.0123)]
    spans += [span(f"job-{number}", None, 1000.0 * number, 0.0123) for number in range(1, 6)]
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(render(spans, width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("…" in line for line in lines) == (0 if width == 240 else 1)
    assert sum("12.3 ms" in line for line in lines) == 6
    assert [line.count("█") > 0 for line in lines[3:9]] == [True] * 6
    assert "┊ 5 waits cut, 83.3 min" in captured.get()


def test_more_cuts_than_the_picture_has_room_for_are_not_drawn() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(render([span(f"job-{number}", None, 1000.0 * number, 1) for number in range(200)], 80))
    assert captured.get().count("┊") == 1, "the legend's"
    assert captured.get().count("█") >= 200


def test_a_trace_of_a_single_moment_can_be_drawn() -> None:
    assert Axis.of(rows_of([span("moment", None, 0, 0)])).place(START.timestamp()) == 0
    assert Axis.of([]).length_s == 0


def test_the_picture_names_errors_and_cuts() -> None:
    failed = span("job", None, 0, 1, status="ERROR", attributes={"error.type": "LookupError"})
    console = Console(width=160)
    with console.capture() as captured:
        console.print(render([failed, span("next", None, 90_000, 1)], 160))
    picture = captured.get()
    assert "job LookupError" in picture
    assert "1 wait cut, 25 h" in picture
    assert "+25 h" in picture


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (0.0123, "12.3 ms"), (2, "2 s"), (600, "10 min"), (172_800, "2 d")]
)
def test_durations_are_said_in_the_unit_a_person_would_take(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_last_spans_of_a_run_that_has_just_ended_are_waited_for() -> None:
    def ended(seconds_ago: float) -> float:
        return _written_in({"completed_at": (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()})

    assert _written_in({"completed_at": None}) == 0
    assert ended(60) == 0
    assert 1.5 < ended(1) <= 2
    # A clock that is behind the database's.
    assert ended(-60) == SPANS_WRITTEN_WITHIN_S


def test_attempts_of_one_name_are_told_apart() -> None:
    spans = [
        span(f"s{number}", None, number, 0.5, name="step.run pay", status=status, attributes={"tenantry.step.attempt": number, **error})
        for number, status, error in ((1, "ERROR", {"error.type": "OSError"}), (2, "UNSET", {}))
    ]  # fmt: skip
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(render(spans, 100))
    lines = [line.split("+")[0].strip() for line in screen.export_text().splitlines() if "step.run" in line]
    assert lines == ["step.run pay OSError", "step.run pay attempt 2"]
