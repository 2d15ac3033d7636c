"""`/console/runs/{id}/trace`: what was traced of a run, as a tree over time; like `GET /v1/runs/{id}/trace`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from litestar.response.base import ASGIResponse

from kernel.queries.run_get import run_progress
from kernel.queries.run_trace import MAX_SPANS, SpanView, run_trace
from service.auth import Scope
from service.console import json_text
from service.console.run import RUN
from service.console.run_reading import no_such_run
from service.console.timescale import Break, Interval, Tick, Timescale
from service.console.visits import Visit, page
from service.console.words import duration
from service.http.routing import RouteSpec

_LEAST_WIDTH: Final = 0.4
_DEEPEST: Final = 8


@dataclass(frozen=True, slots=True)
class SpanLine:
    """A span on the page; `x` and `width` in percent, `depth` below the root of its trace."""

    span: SpanView
    depth: int
    x: float
    width: float
    took: str
    attributes: json_text.JsonText | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of a run, each behind its parent."""

    lines: tuple[SpanLine, ...]
    ticks: tuple[Tick, ...]
    breaks: tuple[Break, ...]


@page(RouteSpec("GET", f"{RUN}/trace", "A run's trace.", scope=Scope.RUNS_READ))
async def show_trace(visit: Visit) -> ASGIResponse:
    """Show every span that was kept: a run keeps a bounded number."""
    run_id = visit.path_id("run_id", "run")
    async with visit.transaction() as tx:
        if await run_progress(tx, run_id) is None:
            raise no_such_run()
        spans = await run_trace(tx, run_id)
    context = {"run_id": run_id, "trace": trace_of(spans), "is_cut": len(spans) >= MAX_SPANS}
    return visit.show("trace.html", context)


def trace_of(spans: Sequence[SpanView]) -> Trace | None:
    """Return the spans in the order of their trees; None when there is none."""
    if not spans:
        return None
    whole = Interval(min(span.start_time for span in spans), max(span.end_time for span in spans))
    scale = Timescale(whole, [Interval(span.start_time, span.end_time) for span in spans])
    return Trace(tuple(_line(span, depth, scale) for span, depth in _ordered(spans)), scale.ticks(), scale.breaks)


def _ordered(spans: Sequence[SpanView]) -> Iterator[tuple[SpanView, int]]:
    """Yield each span after its parent, with its depth; a span whose parent was not kept is a root.

    Ids come from outside: a span that is its own ancestor is told once, as if its parent were missing.
    """
    known = {(span.trace_id, span.span_id) for span in spans}
    children: dict[tuple[str, str], list[SpanView]] = {}
    roots: list[SpanView] = []
    for span in spans:
        parent = (span.trace_id, span.parent_span_id or "")
        if parent in known:
            children.setdefault(parent, []).append(span)
        else:
            roots.append(span)
    told: set[int] = set()
    for first in (*roots, *spans):
        waiting = [(first, 0)]
        while waiting:
            span, depth = waiting.pop()
            if id(span) in told:
                continue
            told.add(id(span))
            yield span, min(depth, _DEEPEST)
            below = children.get((span.trace_id, span.span_id), ())
            waiting.extend((child, depth + 1) for child in reversed(below))


def _line(span: SpanView, depth: int, scale: Timescale) -> SpanLine:
    x = scale.at(span.start_time)
    return SpanLine(
        span=span,
        depth=depth,
        x=round(min(x, 100.0 - _LEAST_WIDTH), 3),
        width=round(max(scale.at(span.end_time) - x, _LEAST_WIDTH), 3),
        took=duration((span.end_time - span.start_time).total_seconds()),
        attributes=json_text.shown(span.attributes) if span.attributes != "{}" else None,
    )


ROUTES: Final = (show_trace,)
