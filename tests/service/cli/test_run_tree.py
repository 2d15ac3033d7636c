"""The tree of a run that is watched: a line a stage, however wide the terminal is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from service.cli.run_tree import Watched, render


def stage(number: int, status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"s{number}", "name": f"Stage {number}", "group": number, "number": number, "status": status, "attempt": 1,
        "max_attempts": 3, "error_message": None, "started_at": None, "completed_at": None, "waiting_for": None, **more,
    }  # fmt: skip


def drawn(*stages: dict[str, Any], width: int = 80, trouble: str = "", **run: Any) -> list[str]:
    facts = {"id": "r", "workflow": "w", "status": "RUNNING", "redrive_count": 0, "error": None, **run}
    progress = {"s1": {"fraction": 0.5, "message": "page 2 of 4"}}
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(render([Watched({**facts, "stages": list(stages)}, progress=progress, trouble=trouble)]))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_stage_is_shown_with_its_time_and_its_progress() -> None:
    done = stage(2, "COMPLETED", started_at="2026-12-03T00:00:00Z", completed_at="2026-12-03T00:00:02.5Z")
    _, running, completed = drawn(stage(1, "RUNNING"), done)
    assert "━━━━━━━━────────  50%  page 2 of 4" in running
    assert completed.split() == ["└──", "✓", "Stage", "2", "completed", "2.5", "s"]


@pytest.mark.parametrize(("redrives", "words"), [(0, "attempt 4 of 5"), (1, "attempt 4")])
def test_attempts_are_counted_against_the_budget_until_a_redrive_gives_another(redrives: int, words: str) -> None:
    heading, line = drawn(stage(2, "RUNNING", attempt=4, max_attempts=5), redrive_count=redrives)
    assert line.endswith(words)
    assert heading.endswith("RUNNING  redriven once" if redrives else "RUNNING")


@pytest.mark.parametrize(("left", "words"), [(timedelta(days=7), ", 7 d left"), (-timedelta(seconds=1), ", now due")])
def test_what_is_waited_for_and_for_how_long(left: timedelta, words: str) -> None:
    until = (datetime.now(UTC) + left).isoformat()
    _, line = drawn(stage(1, "SUSPENDED", waiting_for={"kind": "signal", "step_id": "approve", "until": until}))
    assert line.endswith(f"waits for signal approve{words}")


def test_a_failed_attempt_that_is_tried_again_says_why_it_failed() -> None:
    _, line = drawn(stage(1, "PENDING", error_message="ConnectionError: away"))
    assert line.endswith("tried again soon: ConnectionError: away")


def test_stages_of_one_group_stand_side_by_side() -> None:
    lines = drawn(
        stage(1, "COMPLETED"), stage(2, "RUNNING", group=2), stage(3, "RUNNING", group=2), stage(4, "PENDING")
    )
    assert lines[2].endswith("side by side")
    assert ["│" in line for line in lines] == [False, False, False, True, True, False]


def test_every_stage_is_one_line_and_the_error_of_the_run_is_told_in_full() -> None:
    message = "ValueError: " + "long " * 40
    lines = drawn(
        stage(1, "FAILED", name="A name that is longer than anybody wants", error_message=message),
        stage(2, "PENDING", error_message=message),
        status="FAILED",
        error={"message": message},
    )
    assert max(map(len, lines)) <= 80
    assert [line[:3] for line in lines[1:3]] == ["├──", "└──"]
    assert " ".join(lines[3:]).split() == message.split()


def test_no_text_of_a_body_is_a_command_to_the_terminal() -> None:
    message = "gone\x1b[2J\x9b1m\n!"
    picture = "\n".join(drawn(stage(1, "FAILED", error_message=message), status="FAILED", error={"message": message}))
    assert "\x1b" not in picture
    assert "\x9b" not in picture
    assert picture.count("gone\\x1b[2J\\x9b1m !") == 2


def test_an_api_that_is_away_is_told_below_the_tree() -> None:
    assert drawn(stage(1, "RUNNING"), trouble="It is away.")[-1] == "It is away. Trying again."
