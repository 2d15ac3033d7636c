"""A run followed live: as a tree on a terminal (`run_tree.py`), a line for each change elsewhere.

Its present state is read first; the stream of its events, from there on, only says when to look again.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rich.live import Live

from service.cli import run_tree
from service.cli.client import ApiClient, ApiError
from service.cli.output import console, tell, wait_of
from service.cli.reasons import LEFT_AFTER_S, may_wait, reason_of
from service.cli.run_tree import Watched
from service.cli.words import one_line

# At most so many looks a second, and no more than a third of the time in them, however large the run's payloads are.
LOOK_PAUSE_S: Final = 0.2
# A deploy or a restart of the API is waited for; what is away for longer is told as an error.
PATIENCE_S: Final = 120.0
RETRY_PAUSE_S: Final = 1.0
# A run that no worker takes has no events: it is asked now and then what it waits for.
WONDER_EVERY_S: Final = LEFT_AFTER_S
Show = Callable[[Watched], None]


async def follow(
    client: ApiClient, run_id: str, show: Show, title: str = "", patience_s: float = PATIENCE_S
) -> dict[str, Any]:
    """Call `show` with the run as it is, and again whenever something about it changed; return it when it is over.

    Raises:
        ApiError: there is no such run, the API cannot be reached at first, or stays away for `patience_s` later.
    """
    following = _Following(client, run_id, show, Watched({}, title=title))
    await following.look()
    following.watched.plan = await _plan(client, following.watched.run)
    show(following.watched)
    away_since: float | None = None
    while not following.watched.is_over:
        try:
            if away_since is not None:
                await following.look_and_show()
                away_since = None
            await following.listen()
            await following.look_and_show()
        except ApiError as error:
            away_since = time.monotonic() if away_since is None else away_since
            if not error.may_pass or time.monotonic() - away_since >= patience_s:
                raise
            following.complain(str(error))
        if not following.watched.is_over:
            await asyncio.sleep(RETRY_PAUSE_S)
    return following.watched.run


@dataclass(slots=True)
class _Following:
    """The run as it was last read, and the number of the last event that is part of it."""

    client: ApiClient
    run_id: str
    show: Show
    watched: Watched
    last: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def look(self) -> None:
        """Read what the run is and how far its bodies are; first its last event, so that a later one is told again."""
        reported = await self.client.get(f"/v1/runs/{self.run_id}/progress")
        self.watched.run = await self.client.get_run(self.run_id)
        self.watched.progress = {stage["stage_id"]: stage for stage in reported["data"]}
        self.last = max(self.last, reported["last_sequence"])
        self.watched.trouble = ""
        if not may_wait(self.watched.run):
            self.watched.hint = ""

    async def look_and_show(self) -> None:
        await self.look()
        self.show(self.watched)

    async def listen(self) -> None:
        """Follow the stream to its end, looking again as often as it is worth it.

        Raises:
            ApiError: the API refuses, or went away.
        """
        failure: ApiError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._keep_looking()), tasks.create_task(self._keep_wondering())]
                async for event in self.client.events(self.run_id, self.last):
                    self.last = max(self.last, event.sequence)
                    if event.type == "stage:progress":
                        self._report(event.body)
                    else:
                        self.changed.set()
                for task in beside:
                    task.cancel()
        except* ApiError as errors:
            failure = next(error for error in errors.exceptions if isinstance(error, ApiError))
        if failure is not None:
            raise failure

    async def _keep_looking(self) -> None:
        while await self.changed.wait():
            self.changed.clear()
            began = time.monotonic()
            await self.look_and_show()
            await asyncio.sleep(max(LOOK_PAUSE_S, 2 * (time.monotonic() - began)))

    async def _keep_wondering(self) -> None:
        while True:
            await asyncio.sleep(WONDER_EVERY_S)
            with contextlib.suppress(ApiError):
                # That it is away is told by the stream.
                reason = await reason_of(self.client, self.watched.run)
                if reason != self.watched.hint:
                    self.watched.hint = reason if may_wait(self.watched.run) else ""
                    self.show(self.watched)

    def _report(self, event: Mapping[str, Any]) -> None:
        self.watched.progress[event["stage_id"]] = event.get("data") or {}
        self.show(self.watched)

    def complain(self, trouble: str) -> None:
        """Show that the API is away, once for each reason."""
        if self.watched.trouble != trouble:
            self.watched.trouble = trouble
            self.show(self.watched)


async def watch_run(client: ApiClient, run_id: str, *, quiet: bool = False) -> dict[str, Any]:
    """Show the run until it is over and return it as it is then; `quiet` shows nothing of it."""
    screen = console()
    if not quiet and screen.is_terminal and not screen.is_dumb_terminal:
        seen: list[Watched] = []

        def keep(watched: Watched) -> None:
            seen[:] = [watched]

        with Live(console=screen, refresh_per_second=4, get_renderable=lambda: run_tree.render(seen)):
            return await follow(client, run_id, keep)
    told: dict[str, str] = {}
    remark = remarks()

    def say(watched: Watched) -> None:
        remark(watched)
        for line in [] if quiet else changes(watched, told):
            screen.print(line, markup=False, soft_wrap=True)

    return await follow(client, run_id, say)


def remarks() -> Show:
    """Return what tells, on stderr, why a run cannot be looked at, and once why it waits for a worker."""
    hinted = ""

    def remark(watched: Watched) -> None:
        nonlocal hinted
        if watched.trouble:
            tell(watched.excuse)
        if watched.hint != hinted:
            hinted = watched.hint
            if hinted:
                tell(one_line(hinted))

    return remark


def changes(watched: Watched, told: dict[str, str]) -> list[str]:
    """Return a line for each status, and for each wait, that is not in `told` yet, and remember it there."""
    prefix = f"{watched.title}: " if watched.title else ""
    lines = []
    for stage in watched.run.get("stages") or []:
        wait = wait_of(stage)
        state = stage["status"] if wait is None else f"{stage['status']} (waits for {wait})"
        error = f" ({stage['error_message']})" if stage.get("error_message") else ""
        if told.get(stage["id"]) != f"{state}{error}":
            told[stage["id"]] = f"{state}{error}"
            lines.append(one_line(f"{prefix}{stage['id']} {state}{error}"))
    if told.get("") != watched.run["status"]:
        told[""] = watched.run["status"]
        error = f" ({watched.run['error']['message']})" if watched.run.get("error") else ""
        lines.append(one_line(f"{prefix}run {watched.run['id']} {watched.run['status']}{error}"))
    return lines


async def _plan(client: ApiClient, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the workflow's stages, if the API's build has the version that the run is pinned to."""
    try:
        workflow = await client.get(f"/v1/workflows/{run['workflow']}")
    except ApiError:
        return []
    return list(workflow["stages"]) if workflow.get("definition_version") == run.get("definition_version") else []
