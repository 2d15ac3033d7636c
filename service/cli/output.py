"""How answers look: tables and fields on a terminal, one JSON document for machines."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]

# Piped output is not folded at 80 columns: an id that is cut in two is no id.
_PIPED_WIDTH = 240
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
    sys.stderr.write(f"tenantry: {line}\n")
    sys.stderr.flush()


def tell(line: str) -> None:
    """Tell about progress, on stderr, so that stdout stays the answer's."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_json(value: object) -> None:
    """Print the document; ids as text, times in RFC 3339 with `Z`."""
    document = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)
    sys.stdout.write(document.decode())
    sys.stdout.flush()


def print_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print the rows, one a line, with these of their fields."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column in {"id", "slug", "status"})
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console().print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one object, a field a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), cell(value))
    console().print(table)


def wait_of(stage: Mapping[str, Any]) -> str | None:
    """Return what a suspended stage waits for, as a person reads it: `signal approve`."""
    wait = stage.get("waiting_for")
    return None if wait is None else f"{wait['kind']} {wait['step_id']}"


def cell(value: object) -> Text:
    """Return a value as a person reads it; text is never taken for markup."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, str):
        return Text(value, style=STYLES.get(value, ""))
    if isinstance(value, datetime):
        return Text(f"{value:%Y-%m-%d %H:%M:%S %Z}")
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return Text(", ".join(value))
    if isinstance(value, dict | list | tuple):
        return Text(orjson.dumps(value, option=orjson.OPT_UTC_Z).decode())
    return Text(str(value))
