"""`/console/runs/{id}/trace`: what was traced of a run, as trees over time; like `GET /v1/runs/{id}/trace`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

import orjson
from litestar.response.base import ASGIResponse

from kernel.queries.run_trace import MAX_SPANS, SpanView, run_trace
from service.auth import Scope
from service.console import json_text
from service.console.run import RUN
from service.console.run_reading import standing
from service.console.timescale import Break, Interval, Tick, Timescale, note_on
from service.console.visits import Visit, page
from service.console.words import duration
from service.http.routing import RouteSpec
from service.span_tree import Place, in_order, notes_on

_LEAST_WIDTH: Final = 0.4


@dataclass(frozen=True, slots=True)
class SpanLine:
    """A span on the page; `x` and `width` in percent, `depth` below the root of its trace.

    `began` is the time since the first span. A marker is a moment: it took no time. `notes` are short words on it.
    """

    span: SpanView
    depth: int
    x: float
    width: float
    began: str
    took: str
    is_moment: bool
    notes: tuple[str, ...]
    attributes: json_text.JsonText | None


@dataclass(frozen=True, slots=True)
class Tree:
    """What stands together of one trace, which is the run's `number`th, linked to that of number `linked_to`.

    `is_first` where the trace begins; the other trees of it are moments in the run's life among later traces.
    """

    trace_id: str
    number: int
    is_first: bool
    linked_to: int | None
    began_at: datetime
    lines: tuple[SpanLine, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of a run, each behind its parent; `count` traces."""

    trees: tuple[Tree, ...]
    count: int
    ticks: tuple[Tick, ...]
    breaks: tuple[Break, ...]

    @property
    def note(self) -> str:
        """Say where the timeline is cut; empty where it is not."""
        return note_on(self.breaks)


@page(RouteSpec("GET", f"{RUN}/trace", "A run's trace.", scope=Scope.RUNS_READ))
async def show_trace(visit: Visit) -> ASGIResponse:
    """Show every span that was kept: a run keeps a bounded number."""
    run_id = visit.path_id("run_id", "run")
    async with visit.transaction() as tx:
        spans = await run_trace(tx, run_id)
        await standing(tx, run_id)
    context = {"run_id": run_id, "trace": trace_of(spans), "is_cut": len(spans) >= MAX_SPANS}
    return visit.show("trace.html", context)


def trace_of(spans: Sequence[SpanView]) -> Trace | None:
    """Return the spans in the order of their trees; None when there is none."""
    if not spans:
        return None
    whole = Interval(min(span.start_time for span in spans), max(span.end_time for span in spans))
    scale = Timescale(whole, [Interval(span.start_time, span.end_time) for span in spans])
    places = in_order(
        Place(
            index=index,
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_span_id,
            began=span.start_time.timestamp(),
            ended=span.end_time.timestamp(),
        )
        for index, span in enumerate(spans)
    )
    numbers: dict[str, int] = {}
    trees: list[Tree] = []
    for trace_id, group in groupby(places, lambda place: place.trace_id):
        is_first = trace_id not in numbers
        number = numbers.setdefault(trace_id, len(numbers) + 1)
        lines = tuple(_line(spans[place.index], place, scale, whole.start) for place in group)
        linked_to = _linked_to(lines[0].span, numbers) if is_first else None
        trees.append(Tree(trace_id, number, is_first, linked_to, lines[0].span.start_time, lines))
    return Trace(tuple(trees), len(numbers), scale.ticks(), scale.breaks)


def _linked_to(root: SpanView, numbers: Mapping[str, int]) -> int | None:
    """Return the number of the earlier trace that a root is linked to."""
    found = (numbers.get(link["trace_id"]) for link in orjson.loads(root.links))
    return next((number for number in found if number is not None and number != numbers[root.trace_id]), None)


def _line(span: SpanView, place: Place, scale: Timescale, start: datetime) -> SpanLine:
    x = scale.at(span.start_time)
    attributes = orjson.loads(span.attributes)
    return SpanLine(
        span=span,
        depth=place.depth,
        x=round(x if place.is_moment else min(x, 100.0 - _LEAST_WIDTH), 3),
        width=round(max(scale.at(span.end_time) - x, _LEAST_WIDTH), 3),
        began=f"+{duration((span.start_time - start).total_seconds())}",
        took="" if place.is_moment else duration((span.end_time - span.start_time).total_seconds()),
        is_moment=place.is_moment,
        notes=tuple(notes_on(span.kind, span.status, attributes)),
        attributes=json_text.shown(span.attributes) if attributes else None,
    )


ROUTES: Final = (show_trace,)
