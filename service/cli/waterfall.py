"""A run's trace as a waterfall on the terminal: a line a span, below its parent, bars on one axis of time."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from service.cli.words import duration, one_line
from service.span_tree import Place, in_order, notes_on

_STYLES: Final = {"SERVER": "blue", "PRODUCER": "blue", "CONSUMER": "cyan", "CLIENT": "magenta", "INTERNAL": "green"}
_CUT: Final = "┊"
_WIDEST_BAR: Final = 72
_NARROWEST_BAR: Final = 12
_SHARE_OF_NAMES: Final = 0.45
# The gaps between four columns, and their edges.
_FRAME: Final = 11
Span = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A span in its place: how deep it lies, and when it was, in seconds since the epoch."""

    span: Span
    depth: int
    began: float
    ended: float

    @property
    def is_moment(self) -> bool:
        """Whether it has no length: a marker of something in the run's life."""
        return self.ended <= self.began


@dataclass(frozen=True, slots=True)
class Axis:
    """The time in which something was done, long waits cut out: `parts` are (began, ended), in order.

    At least half of what is left is work, so that no wait dwarfs it.
    """

    parts: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Axis":
        """Return the axis of these rows. The longest waits are cut out until the others are no longer than the work."""
        busy = _union((row.began, row.ended) for row in rows if not row.is_moment)
        if not busy:
            moments = [row.began for row in rows]
            return cls(((min(moments), max(moments)),) if moments else ())
        work_s = sum(ended - began for began, ended in busy)
        waits = sorted(later[0] - earlier[1] for earlier, later in pairwise(busy))
        kept_s = list(accumulate(waits))
        shortest_cut = next((wait_s for wait_s, sum_s in zip(waits, kept_s, strict=True) if sum_s > work_s), math.inf)
        # Of waits that are as good as equal, all are cut.
        return cls(tuple(_union(busy, shortest_cut * 0.999)))

    @property
    def length_s(self) -> float:
        """How long the axis is, cuts left out."""
        return sum(ended - began for began, ended in self.parts)

    @property
    def cut_s(self) -> float:
        """How long the waits are that are cut out, all together."""
        return self.parts[-1][1] - self.parts[0][0] - self.length_s if self.parts else 0.0

    def place(self, at: float) -> float:
        """Return where an instant lies, from 0 to 1."""
        before = sum(max(min(at, ended) - began, 0.0) for began, ended in self.parts)
        return before / self.length_s if self.length_s else 0.0

    def cuts_before(self, at: float) -> int:
        """Return how many of the cuts an instant lies behind, or in."""
        return sum(at > ended for _, ended in self.parts[:-1])


@dataclass(frozen=True, slots=True)
class _Ruler:
    """The axis in columns: one for each cut, unless there are too many of them, and the others by time."""

    axis: Axis
    width: int

    @property
    def cut_columns(self) -> int:
        cuts = max(len(self.axis.parts) - 1, 0)
        return cuts if cuts <= self.width // 3 else 0

    def column(self, at: float) -> int:
        """Return the column of an instant, from 0."""
        room = self.width - self.cut_columns
        by_time = min(math.floor(self.axis.place(at) * room), room - 1)
        return by_time + (self.axis.cuts_before(at) if self.cut_columns else 0)

    def cuts(self) -> Iterator[int]:
        """Yield the columns that stand for a cut."""
        if self.cut_columns:
            # Just before the part behind it: its first column may be the last one of the part before.
            yield from (self.column(began) - 1 for began, _ in self.axis.parts[1:])

    def bar(self, row: Row, style: str) -> Text:
        """Draw a span, over the marks of the cuts."""
        cells = [" "] * self.width
        for column in self.cuts():
            cells[column] = _CUT
        start = self.column(row.began)
        text = Text("".join(cells), style="dim")
        mark = "◆" if row.is_moment else "█" * max(self.column(row.ended) - start, 1)
        return Text.assemble(text[:start], (mark, style), text[start + len(mark) :])


def rows_of(spans: Sequence[Span]) -> list[Row]:
    """Return the spans in the order of a tree (`service.span_tree`)."""
    places = in_order(
        Place(
            index=index,
            trace_id=span["trace_id"],
            span_id=str(span["span_id"]),
            parent_span_id=span["parent_span_id"],
            began=_seconds(span["start_time"]),
            ended=_seconds(span["end_time"]),
        )
        for index, span in enumerate(spans)
    )
    return [Row(spans[place.index], place.depth, place.began, place.ended) for place in places]


def render(spans: Sequence[Span], width: int) -> Table:
    """Draw the waterfall, `width` columns wide at most."""
    rows = rows_of(spans)
    axis = Axis.of(rows)
    first = min((row.began for row in rows), default=0.0)
    styles = ["bold red" if row.span["status"] == "ERROR" else _STYLES.get(row.span["kind"], "") for row in rows]
    names = [_name(row, style) for row, style in zip(rows, styles, strict=True)]
    begins = [f"+{duration(row.began - first)}" for row in rows]
    lengths = ["" if row.is_moment else duration(row.ended - row.began) for row in rows]
    times = sum(max(map(len, texts)) for texts in (["at", *begins], ["took", *lengths]))
    longest_name = max(map(len, names), default=0)
    name_width = min(longest_name, int((width - times) * _SHARE_OF_NAMES))
    ruler = _Ruler(axis, min(max(width - times - _FRAME - name_width, _NARROWEST_BAR), _WIDEST_BAR))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("span", no_wrap=True, overflow="ellipsis", width=name_width)
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column(_legend(axis), no_wrap=True, width=ruler.width)
    for row, style, name, begin, length in zip(rows, styles, names, begins, lengths, strict=True):
        table.add_row(name, Text(begin, style="dim"), length, ruler.bar(row, style))
    return table


def _name(row: Row, style: str) -> Text:
    span = row.span
    name = Text("  " * row.depth + one_line(str(span["name"])), style=style)
    notes = notes_on(span["kind"], span["status"], span["attributes"])
    for index, note in enumerate(notes, start=1):
        is_error = span["status"] == "ERROR" and index == len(notes)
        name.append(f" {one_line(note)}", "red" if is_error else "dim")
    return name


def _legend(axis: Axis) -> str:
    cuts = len(axis.parts) - 1
    if cuts < 1:
        return ""
    return f"{_CUT} {cuts} wait{'s' if cuts > 1 else ''} cut, {duration(axis.cut_s)}"


def _union(parts: Iterable[tuple[float, float]], gap_s: float = 0.0) -> list[tuple[float, float]]:
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
