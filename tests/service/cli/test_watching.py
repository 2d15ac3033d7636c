"""A run followed live: what is said of a change, once."""

from typing import Any

from service.cli.run_tree import Watched
from service.cli.watching import changes


def run(status: str, wait: str | None = None, error: str | None = None) -> dict[str, Any]:
    waiting_for = {"kind": "signal", "step_id": wait, "until": "2026-12-09T00:00:00Z"} if wait else None
    stage = {"id": "ask", "status": status, "waiting_for": waiting_for, "error_message": error}
    return {"id": "r", "status": "RUNNING", "stages": [stage]}


def test_a_line_tells_what_a_suspended_stage_waits_for_and_another_when_that_changes() -> None:
    told: dict[str, str] = {}
    assert changes(Watched(run("RUNNING")), told) == ["ask RUNNING", "run r RUNNING"]
    assert changes(Watched(run("SUSPENDED", "approve")), told) == ["ask SUSPENDED (waits for signal approve)"]
    assert changes(Watched(run("SUSPENDED", "approve")), told) == []
    assert changes(Watched(run("SUSPENDED", "confirm")), told) == ["ask SUSPENDED (waits for signal confirm)"]


def test_a_line_tells_of_each_failed_attempt_and_stays_one_line_that_no_terminal_obeys() -> None:
    told: dict[str, str] = {"": "RUNNING"}
    assert changes(Watched(run("PENDING", error="away\n\x1b[2J 1")), told) == ["ask PENDING (away \\x1b[2J 1)"]
    assert changes(Watched(run("PENDING", error="away 2")), told) == ["ask PENDING (away 2)"]
