import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernel.errors import PayloadError, PayloadTooLargeError
from kernel.execution.journal import (
    MAX_ANNOTATED_BYTES,
    MAX_ANNOTATIONS,
    MAX_BUFFERED_CHARACTERS,
    MAX_BUFFERED_LOGS,
    MAX_FIELDS_BYTES,
    StageJournal,
)


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError


def test_log_lines_are_drained_once_in_order() -> None:
    journal = StageJournal()
    journal.log("info", "first", {"count": 1})
    journal.log("error", "second\x00", {})
    assert [(line.level, line.message, line.fields) for line in journal.drain_logs()] == [
        ("info", "first", '{"count":1}'),
        ("error", "second�", "{}"),
    ]
    assert journal.drain_logs() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"a": object()},
        {"a": Unspeakable()},
        {"a": "\x00"},
        {"a": ["\x00"]},
        {"a": "\ud800"},
        {"a": ["\ud800"]},
        {"a": float("nan")},
        {"\x00": 1},
        {"a": b"\xff"},
        {"a": "x" * 100_000},
        {f"field {number}": "é\n" * 10_000 for number in range(100)},
        {"k" * 100_000: 1, "a": object()},
    ],
)
def test_a_log_line_never_fails_its_body(fields: dict[str, Any]) -> None:
    journal = StageJournal()
    journal.log("info", "x", fields)
    text = journal.drain_logs()[0].fields
    assert isinstance(json.loads(text, parse_constant=pytest.fail), dict)
    assert "\\u0000" not in text
    assert len(text.encode()) <= MAX_FIELDS_BYTES


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError):
        StageJournal().log("loud", "x", {})  # type: ignore[arg-type]


def test_lines_over_the_bound_are_counted() -> None:
    journal = StageJournal()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: journal.log("info", str(number), {}), range(MAX_BUFFERED_LOGS + 7)))
    lines = journal.drain_logs()
    assert len(lines) == MAX_BUFFERED_LOGS + 1
    assert "7 log lines" in lines[-1].message


def test_lines_are_bounded_by_what_they_hold_too_and_taking_them_makes_room() -> None:
    journal = StageJournal()
    for _ in range(2):
        for _ in range(200):
            journal.log("info", "x" * 100_000, {"field": "y" * 100_000})
        *kept, last = journal.drain_logs()
        assert sum(line.size for line in kept) <= MAX_BUFFERED_CHARACTERS
        assert last.message == f"{200 - len(kept)} log lines were dropped"
        assert len(kept) > 50


def test_annotations_are_bounded_by_what_they_hold_too() -> None:
    journal = StageJournal()
    half = "x" * (MAX_ANNOTATED_BYTES // 2 - 10)
    journal.annotate("key", half)
    journal.annotate("key", 1, half)
    with pytest.raises(PayloadTooLargeError):
        journal.annotate("key", "é" * 20)
    assert len(journal.annotations()) == 2


def test_the_latest_progress_wins_and_is_taken_once() -> None:
    journal = StageJournal()
    journal.progress(0.1)
    journal.progress(1, "done")
    assert journal.has_reports
    latest = journal.take_progress()
    assert latest is not None
    assert (latest.fraction, latest.message) == (1.0, "done")
    assert journal.take_progress() is None
    assert not journal.has_reports


def test_progress_within_a_second_of_the_last_waits_and_is_given_up_at_the_end() -> None:
    journal = StageJournal()
    journal.progress(0.1)
    assert journal.take_progress() is not None
    journal.progress(0.2)
    assert journal.take_progress() is None
    assert journal.has_reports
    journal.log("info", "the end", {})
    report = journal.take_report()
    assert ([line.message for line in report.logs], report.progress) == (["the end"], None)
    assert not journal.has_reports


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_progress_is_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError):
        StageJournal().progress(fraction)


def test_annotations_stay_are_checked_and_bounded() -> None:
    journal = StageJournal()
    journal.annotate("key", {"a": 1}, [2])
    note = journal.annotations()[0]
    assert (note.key, note.value, note.payload) == ("key", '{"a":1}', "[2]")
    assert len(journal.annotations()) == 1
    for key in ("", "x" * 256, "a\x00"):
        with pytest.raises(ValueError):
            journal.annotate(key, 1)
    with pytest.raises(PayloadError):
        journal.annotate("key", float("nan"))
    for _ in range(MAX_ANNOTATIONS - 1):
        journal.annotate("key", None)
    with pytest.raises(ValueError):
        journal.annotate("key", None)
