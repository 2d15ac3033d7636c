"""A run followed live: its stages as a tree on a terminal, a line for each change elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from service.cli.client import ApiClient, ApiError
from service.cli.output import STYLES, console, wait_of

TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_MARKS = {"COMPLETED": "✓", "RUNNING": "▶", "FAILED": "✗", "CANCELLED": "✗", "SKIPPED": "↷", "SUSPENDED": "◌"}
_BAR = 24
# A stream that ends before its run does is opened again, but not without end in a loop.
_PAUSE = 0.5


@dataclass(slots=True)
class Watched:
    """A run as it was last seen, what its bodies said about their progress, and the stages its workflow has."""

    run: dict[str, Any]
    plan: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    progress: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    title: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.run["status"] in TERMINAL

    def stages(self) -> list[dict[str, Any]]:
        """Return every stage of the workflow, those that were not reached yet included."""
        known = {stage["id"]: stage for stage in self.run.get("stages") or []}
        planned = [known.pop(stage["id"], stage) for stage in self.plan]
        return sorted([*planned, *known.values()], key=lambda stage: stage["number"])


async def follow(client: ApiClient, run_id: str, title: str = "") -> AsyncIterator[Watched]:
    """Yield the run whenever something about it changed, the last time when it is over.

    Raises:
        ApiError: there is no such run, or the API stays away.
    """
    watched = Watched(await client.get_run(run_id), title=title)
    watched.plan = await _plan(client, watched.run)
    yield watched
    while not watched.is_over:
        async for event in client.events(run_id):
            stage_id = event.body.get("stage_id")
            if event.type == "stage:progress" and stage_id is not None:
                watched.progress[stage_id] = event.body.get("data") or {}
            else:
                watched.run = await client.get_run(run_id)
            yield watched
        watched.run = await client.get_run(run_id)
        if not watched.is_over:
            await asyncio.sleep(_PAUSE)
    yield watched


async def watch_run(client: ApiClient, run_id: str, *, quiet: bool = False) -> dict[str, Any]:
    """Show the run until it is over and return it as it is then; `quiet` shows nothing."""
    screen = console()
    run: dict[str, Any] = {}
    if quiet or not screen.is_terminal:
        told: dict[str, str] = {}
        async for watched in follow(client, run_id):
            run = watched.run
            for line in [] if quiet else changes(watched, told):
                screen.print(line, markup=False)
        return run
    with Live(console=screen, refresh_per_second=8) as live:
        async for watched in follow(client, run_id):
            live.update(render([watched]))
            run = watched.run
    return run


def changes(watched: Watched, told: dict[str, str]) -> list[str]:
    """Return a line for each status, and for each wait, that is not in `told` yet, and remember it there."""
    prefix = f"{watched.title}: " if watched.title else ""
    lines = []
    for stage in watched.run.get("stages") or []:
        wait = wait_of(stage)
        state = stage["status"] if wait is None else f"{stage['status']} (waits for {wait})"
        if told.get(stage["id"]) != state:
            told[stage["id"]] = state
            error = f" ({stage['error_message']})" if stage.get("error_message") else ""
            lines.append(f"{prefix}{stage['id']} {state}{error}")
    if told.get("") != watched.run["status"]:
        told[""] = watched.run["status"]
        error = f" ({watched.run['error']['message']})" if watched.run.get("error") else ""
        lines.append(f"{prefix}run {watched.run['id']} {watched.run['status']}{error}")
    return lines


def render(all_watched: list[Watched]) -> Group:
    """Draw the runs, one tree each."""
    return Group(*(_tree(watched) for watched in all_watched))


def _tree(watched: Watched) -> Tree:
    run = watched.run
    heading = Text.assemble(
        (f"{watched.title} · " if watched.title else "", "bold"),
        (run["workflow"], "bold"),
        (f"  {run['id']}  ", "dim"),
        (run["status"], STYLES.get(run["status"], "")),
    )
    if run.get("error"):
        heading.append(f"  {run['error']['message']}", "red")
    tree = Tree(heading, guide_style="dim")
    for stage in watched.stages():
        tree.add(_row(stage, watched.progress.get(stage["id"])))
    return tree


def _row(stage: Mapping[str, Any], progress: Mapping[str, Any] | None) -> Table:
    status = stage.get("status", "")
    row = Table.grid(padding=(0, 1))
    name = Text.assemble((f"{_MARKS.get(status, '·')} ", STYLES.get(status, "dim")), stage["name"])
    cells: list[Any] = [name, Text(status.lower(), style=STYLES.get(status, "dim"))]
    if stage.get("attempt", 0) > 1:
        cells.append(Text(f"attempt {stage['attempt']} of {stage['max_attempts']}", style="yellow"))
    if status == "RUNNING" and progress and isinstance(progress.get("fraction"), int | float):
        cells.append(ProgressBar(total=1.0, completed=float(progress["fraction"]), width=_BAR))
        cells.append(Text(str(progress.get("message") or ""), style="dim"))
    elif (wait := wait_of(stage)) is not None:
        cells.append(Text(f"waits for {wait}", style="dim"))
    elif stage.get("error_message"):
        cells.append(Text(str(stage["error_message"]), style="red"))
    row.add_row(*cells)
    return row


async def _plan(client: ApiClient, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the workflow's stages, if the API's build has the version that the run is pinned to."""
    try:
        workflow = await client.get(f"/v1/workflows/{run['workflow']}")
    except ApiError:
        return []
    return list(workflow["stages"]) if workflow.get("definition_version") == run.get("definition_version") else []
