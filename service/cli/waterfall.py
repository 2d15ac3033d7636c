"""A run's trace as a waterfall on the terminal: a line a span, below its parent, bars on one axis of time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

BAR: Final = 48
_STYLES: Final = {"SERVER": "blue", "PRODUCER": "blue", "CONSUMER": "cyan", "CLIENT": "magenta", "INTERNAL": "green"}
Span = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A span in its place: how deep it lies, and when it was, in seconds since the epoch."""

    span: Span
    depth: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Axis:
    """The time in which something happened, waits of days cut out: `parts` are (began, ended), in order."""

    parts: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Axis":
        """Return the axis of these rows. A gap that is longer than all the work together is cut out."""
        busy = _union(((row.began, row.ended) for row in rows), 0.0)
        return cls(tuple(_union(busy, max(sum(ended - began for began, ended in busy), 0.001))))

    @property
    def length_s(self) -> float:
        """How long the axis is, cuts left out."""
        return sum(ended - began for began, ended in self.parts)

    def place(self, at: float) -> float:
        """Return where an instant lies, from 0 to 1."""
        before = sum(max(min(at, ended) - began, 0.0) for began, ended in self.parts)
        return before / self.length_s if self.length_s else 0.0


def rows_of(spans: Sequence[Span]) -> list[Row]:
    """Return the spans in the order of a tree, siblings by their start; a span without its parent is a root."""
    known = {span["span_id"] for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (str(span["start_time"]), str(span["span_id"]))):
        parent = span["parent_span_id"] if span["parent_span_id"] in known else None
        children.setdefault(parent, []).append(span)
    rows: list[Row] = []
    pending = [(span, 0) for span in reversed(children.get(None, []))]
    while pending:
        span, depth = pending.pop()
        rows.append(Row(span, depth, _seconds(span["start_time"]), _seconds(span["end_time"])))
        pending += [(child, depth + 1) for child in reversed(children.get(span["span_id"], []))]
    return rows


def render(spans: Sequence[Span]) -> Table:
    """Draw the waterfall."""
    rows = rows_of(spans)
    axis = Axis.of(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("span", no_wrap=True)
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    cuts = len(axis.parts) - 1
    table.add_column("" if not cuts else f"{cuts} long wait{'s' if cuts > 1 else ''} cut out", no_wrap=True)
    first = rows[0].began if rows else 0.0
    for row in rows:
        style = "bold red" if row.span["status"] == "ERROR" else _STYLES.get(row.span["kind"], "")
        name = Text("  " * row.depth + str(row.span["name"]), style=style)
        error = row.span["attributes"].get("error.type")
        if error is not None:
            name.append(f" {error}", "red")
        took = Text("·" if row.ended == row.began else duration(row.ended - row.began))
        table.add_row(name, Text(f"+{duration(row.began - first)}", style="dim"), took, _bar(row, axis, style))
    return table


def duration(seconds: float) -> str:
    """Return a length of time in the unit that a person would take."""
    for limit, divisor, unit in (
        (1.0, 0.001, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
        (172_800.0, 3600.0, "h"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}" if seconds else "0"
    return f"{seconds / 86_400:.3g} d"


def _bar(row: Row, axis: Axis, style: str) -> Text:
    start = min(int(axis.place(row.began) * BAR), BAR - 1)
    if row.ended == row.began:
        return Text(" " * start + "◆", style=style)
    return Text(" " * start + "█" * max(round((axis.place(row.ended) - axis.place(row.began)) * BAR), 1), style=style)


def _union(parts: Iterable[tuple[float, float]], gap_s: float) -> list[tuple[float, float]]:
    """Join parts that overlap, or lie no further apart than the gap."""
    joined: list[tuple[float, float]] = []
    for began, ended in sorted(parts):
        if joined and began - joined[-1][1] <= gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], ended))
        else:
            joined.append((began, ended))
    return joined


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
