"""A run followed live: what is said of a change, once."""

from typing import Any

from rich.console import Console

from service.cli.watching import Watched, changes, render


def run(status: str, wait: str | None = None) -> dict[str, Any]:
    waiting_for = {"kind": "signal", "step_id": wait, "until": "2026-12-09T00:00:00Z"} if wait else None
    stage = {"id": "ask", "name": "Ask", "number": 1, "status": status, "attempt": 1, "waiting_for": waiting_for}
    return {"id": "r", "workflow": "w", "status": "RUNNING", "stages": [stage]}


def test_a_line_tells_what_a_suspended_stage_waits_for_and_another_when_that_changes() -> None:
    told: dict[str, str] = {}
    assert changes(Watched(run("RUNNING")), told) == ["ask RUNNING", "run r RUNNING"]
    assert changes(Watched(run("SUSPENDED", "approve")), told) == ["ask SUSPENDED (waits for signal approve)"]
    assert changes(Watched(run("SUSPENDED", "approve")), told) == []
    assert changes(Watched(run("SUSPENDED", "confirm")), told) == ["ask SUSPENDED (waits for signal confirm)"]


def test_the_tree_tells_what_a_suspended_stage_waits_for() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(render([Watched(run("SUSPENDED", "approve"))]))
    assert "waits for signal approve" in captured.get()
