"""How answers look: tables and fields on a terminal, one JSON document for machines."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.words import instant, printable, shortened

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]

# Piped output is not folded at 80 columns: an id that is cut in two is no id.
_PIPED_WIDTH = 240
# What a terminal shows of a payload, where nobody could read more; pipes and --json get all of it.
_LINES_SHOWN = 24
_LINE_SHOWN = 200
_VALUE_SHOWN = 600
# Terminals of fewer columns are narrow: some fields are left out there, others folded before these.
_NARROW = 100
_NAMES = frozenset({"stage_id", "step_id", "workflow"})
_READABLE_NAME = 16
_DATE = len("2026-12-03")
STYLES = {
    "COMPLETED": "green",
    "active": "green",
    "RUNNING": "cyan",
    "PENDING": "yellow",
    "SUSPENDED": "magenta",
    "suspended": "yellow",
    "FAILED": "bold red",
    "deleting": "red",
    "CANCELLED": "red",
    "SKIPPED": "dim",
    "completed": "green",
    "running": "cyan",
    "pending": "yellow",
    "failed": "bold red",
}


def console() -> Console:
    """Return a console on today's stdout."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def complain(line: str) -> None:
    """Tell about a failure, on stderr."""
    sys.stderr.write(f"tenantry: {printable(line)}\n")
    sys.stderr.flush()


def tell(line: str) -> None:
    """Tell about progress, on stderr, so that stdout stays the answer's."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_line(line: str) -> None:
    """Print an answer that is a sentence."""
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print the document; ids as text, times in RFC 3339 with `Z`."""
    sys.stdout.write(_document(value))
    sys.stdout.flush()


def print_payload(value: object, whole: str) -> None:
    """Print a payload as JSON; on a terminal no more of it than one reads, and `whole`, the command that prints all."""
    document = _document(value)
    if not sys.stdout.isatty():
        sys.stdout.write(document)
        sys.stdout.flush()
        return
    lines = document.splitlines()
    shown = [line if len(line) <= _LINE_SHOWN else f"{line[:_LINE_SHOWN]}…" for line in lines[:_LINES_SHOWN]]
    sys.stdout.write(printable("\n".join(shown)) + "\n")
    sys.stdout.flush()
    if shown != lines:
        tell(f"… the first part of {len(document):,} characters. All of it: {whole}")


def _document(value: object) -> str:
    options = orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(value, option=options).decode()


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, spare: Sequence[str] = ()) -> None:
    """Print the rows, one a line, with these of their fields; a narrow terminal shows none that can be spared."""
    screen = console()
    shown = [column for column in columns if screen.width >= _NARROW or column not in spare]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        longest = max((len(str(row.get(column))) for row in rows), default=0) if column in _NAMES else 0
        table.add_column(
            column.replace("_", " "),
            overflow="fold",
            no_wrap=column in {"id", "slug", "status"},
            min_width=_DATE if _is_time(column) else min(longest, _READABLE_NAME),
        )
    for row in rows:
        table.add_row(*(_cell_of(column, row.get(column)) for column in shown))
    screen.print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one object, a field a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), _cell_of(name, value))
    console().print(table)


def wait_of(stage: Mapping[str, Any]) -> str | None:
    """Return what a suspended stage waits for, as a person reads it: `signal approve`."""
    wait = stage.get("waiting_for")
    return None if wait is None else f"{wait['kind']} {wait['step_id']}"


def _cell_of(name: str, value: object) -> Text:
    if isinstance(value, str) and _is_time(name):
        return Text(instant(value))
    shown = cell(value)
    return Text(shortened(shown.plain, _VALUE_SHOWN)) if len(shown) > _VALUE_SHOWN and sys.stdout.isatty() else shown


def _is_time(name: str) -> bool:
    return name.endswith("_at") or name == "until"


def cell(value: object) -> Text:
    """Return a value as a person reads it; text is never taken for markup, nor for commands to the terminal."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, str):
        return Text(printable(value), style=STYLES.get(value, ""))
    if isinstance(value, datetime):
        return Text(f"{value:%Y-%m-%d %H:%M:%S %Z}")
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return Text(printable(", ".join(value)))
    if isinstance(value, dict | list | tuple):
        return Text(printable(orjson.dumps(value, option=orjson.OPT_UTC_Z).decode()))
    return Text(str(value))
