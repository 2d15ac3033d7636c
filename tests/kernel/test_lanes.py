"""What a claim takes as floors, and what it says it saw."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from kernel.lanes import Lane, Look, Sight, lane_items, sight_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LANE = Lane("w", "v", 5)


def row(second: int, *, taken: bool = True, lane: Lane = LANE) -> dict[str, Any]:
    where = dict(zip(("lane_workflow_id", "lane_version", "lane_priority"), lane, strict=True))
    return {"rank": at(second), "taken": taken, **where}


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def seen(*rows: dict[str, Any]) -> Sight:
    return sight_of(rows, lambda row: row["taken"], ())


def test_pairs_travel_with_the_floors_of_their_lanes() -> None:
    text = lane_items([("w", "v"), ("x", "")], {LANE: at(1), LANE._replace(priority=9): at(2), Lane("y", "", 0): at(3)})
    assert json.loads(text) == [
        {"workflow_id": "w", "version": "v", "floors": {"5": at(1).isoformat(), "9": at(2).isoformat()}},
        {"workflow_id": "x", "version": "", "floors": None},
    ]


def test_a_look_keeps_to_what_is_served() -> None:
    served = [("w", "v"), ("x", "v")]
    assert Look().among(served) == served
    assert Look(pairs=(("x", "v"), ("foreign", "v"))).among(served) == [("x", "v")]
    assert Look(pairs=()).among(served) == []


def test_each_lane_has_the_highest_rank_that_was_taken() -> None:
    other = LANE._replace(priority=9)
    assert seen(row(1), row(3), row(2), row(0, lane=other)) == Sight({LANE: at(3), other: at(0)})


def test_what_was_left_holds_its_lane_back() -> None:
    assert seen(row(1), row(2, taken=False), row(3), row(4, taken=False)) == Sight({LANE: at(2)}, {LANE: at(2)})
    assert seen(row(1, taken=False)) == Sight({}, {LANE: at(1)})


def test_the_lowest_promoted_rank_of_each_lane_is_told() -> None:
    assert sight_of((), bool, [row(3), row(1), row(2)]).promoted == {LANE: at(1)}
