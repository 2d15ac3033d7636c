"""`tenantry run logs`: what the bodies of a run logged, a line each, or until the run is over."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import orjson
import typer
from rich.console import Console
from rich.text import Text

from service.cli.asking import RunId, ask, plain_id
from service.cli.client import PAGE, ApiClient, ApiError
from service.cli.output import Json, console, print_json, tell
from service.cli.watching import follow, remarks
from service.cli.words import one_line, printable

LIMIT: Final = 1000
# Workers write what bodies log once a second.
LOOK_EVERY_S: Final = 1.0
_LEVELS: Final = {"debug": "dim", "warning": "yellow", "warn": "yellow", "error": "bold red", "critical": "bold red"}


def logs(
    run: RunId,
    *,
    stage: Annotated[str | None, typer.Option(help="Only lines of this stage.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"How many at most, the oldest ones; {LIMIT:,} without --follow.")
    ] = None,
    follow_: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    json: Json = False,
) -> None:
    """Show what the bodies of a run logged, oldest first; with --follow, 0 once the run is over, however it ended."""
    run_id = plain_id(run)
    if follow_:
        if limit is not None:
            raise typer.BadParameter("what is followed is not limited", param_hint="--limit")
        _follow(run_id, stage, quiet=json)
        if not json:
            return
    # What was followed in silence is one document in the end, and whole.
    most = None if follow_ else limit or LIMIT
    lines = ask(lambda client: client.pages(_path(run_id), None if most is None else most + 1, {"stage_id": stage}))
    shown = lines[:most]
    if json:
        print_json(shown)
    else:
        _show(console(), shown)
    if len(lines) > len(shown):
        tell(f"There are more: tenantry run logs {run_id} --limit {10 * len(shown)}")


class LogTail:
    """Reads the lines of a run that have come since it last did.

    Stages that run side by side log in transactions of their own, so a line may appear before others that are there
    already. The last two pages are therefore read again each time, and what is known of them passed over.
    """

    def __init__(self, client: ApiClient, run_id: str, stage_id: str | None) -> None:
        self.run_id = run_id
        self._client = client
        self._stage_id = stage_id
        self._cursor: str | None = None
        self._known: Counter[bytes] = Counter()

    async def read(self) -> list[dict[str, Any]]:
        """Return the new lines, oldest first.

        Raises:
            ApiError: the API refuses, or cannot be reached.
        """
        known, new = Counter(self._known), []
        pages: list[tuple[str | None, list[bytes]]] = []
        cursor = self._cursor
        while True:
            query = {"stage_id": self._stage_id, "limit": PAGE, "cursor": cursor}
            page = await self._client.get(_path(self.run_id), query)
            keys = [orjson.dumps(line) for line in page["data"]]
            pages.append((cursor, keys))
            for key, line in zip(keys, page["data"], strict=True):
                if known[key]:
                    known[key] -= 1
                else:
                    new.append(line)
            cursor = page["next_cursor"]
            if cursor is None:
                break
        last = pages[-2:]
        self._cursor = last[0][0]
        self._known = Counter(key for _, keys in last for key in keys)
        return new


def _follow(run_id: str, stage_id: str | None, *, quiet: bool) -> None:
    try:
        if quiet:
            ask(lambda client: follow(client, run_id, remarks()))
        else:
            ask(lambda client: _show_as_they_come(client, LogTail(client, run_id, stage_id)))
    except KeyboardInterrupt:
        tell(f"Not followed any more; again with: tenantry run logs {run_id} --follow")
        raise


async def _show_as_they_come(client: ApiClient, tail: LogTail) -> None:
    """Show lines until the run is over.

    Raises:
        ApiError: as `watching.follow` does.
    """
    screen = console()

    async def keep_reading() -> None:
        while True:
            try:
                _show(screen, await tail.read())
            except ApiError as error:
                # That it is away is told, and for how long it is waited for decided, by what follows the run.
                if not error.may_pass:
                    raise
            await asyncio.sleep(LOOK_EVERY_S)

    failure: ApiError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(keep_reading())
            await follow(client, tail.run_id, remarks())
            reading.cancel()
    except* ApiError as errors:
        failure = next(error for error in errors.exceptions if isinstance(error, ApiError))
    if failure is not None:
        raise failure
    # Whoever sees that a run is over sees all that its bodies logged.
    _show(screen, await tail.read())


def _show(screen: Console, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        screen.print(render(line), soft_wrap=True)


def render(line: Mapping[str, Any]) -> Text:
    """Return a line as a person reads it: time, level, stage and attempt, message, fields as name=value.

    Further lines of a message are indented, so that none of them passes for one of its own.
    """
    at = datetime.fromisoformat(line["created_at"]).astimezone(UTC)
    level = str(line["level"])
    shown = Text.assemble(
        (f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z ", "dim"),
        (f"{one_line(level):<7}", _LEVELS.get(level, "")),
        f" {one_line(line['stage_id'])}",
        (f"#{line['attempt']}" if line["attempt"] > 1 else "", "yellow"),
        f"  {_indented(str(line['message']))}",
    )
    for field in _fields(line["fields"]):
        shown.append(f"  {field}", "dim")
    return shown


def _fields(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        told = value if isinstance(value, str) else orjson.dumps(value).decode()
        yield f"{one_line(name)}={one_line(told)}"


def _indented(message: str) -> str:
    return printable(message).rstrip().replace("\n", "\n    ")


def _path(run_id: str) -> str:
    return f"/v1/runs/{run_id}/logs"
