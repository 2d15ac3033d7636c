"""`/console`: what the tenant's runs have been doing lately, stage by stage, and what waits now."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from litestar.response.base import ASGIResponse

from kernel.queries.activity_get import Activity, Bucket, activity_get
from kernel.queries.queue_get import queue_get
from kernel.states import RunStatus
from service.auth import Scope
from service.console.visits import ROOT, Visit, page
from service.console.words import REASONS, clock
from service.http.routing import RouteSpec
from service.http.tenant import served_pairs
from service.problems import not_found

WAITING_SHOWN: Final = 8
# From the bottom of a column to its top.
STACK: Final = (
    RunStatus.COMPLETED,
    RunStatus.FAILED,
    RunStatus.CANCELLED,
    RunStatus.RUNNING,
    RunStatus.PENDING,
)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time that may be chosen, and into how many slices it is cut."""

    title: str
    length: timedelta
    slices: int


WINDOWS: Final = {
    "1h": Window("1 hour", timedelta(hours=1), 60),
    "24h": Window("24 hours", timedelta(hours=24), 48),
    "7d": Window("7 days", timedelta(days=7), 56),
}
DEFAULT: Final = "24h"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a column of the chart; all in percent, from the top left."""

    status: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """One slice of the window in the chart."""

    x: float
    width: float
    title: str
    pieces: tuple[Piece, ...]


@page(RouteSpec("GET", ROOT, "The overview.", query=("window",)))
async def show_overview(visit: Visit) -> ASGIResponse:
    """Show the activity of a window; a key that may not read runs is told what it may do."""
    chosen = visit.query().one("window") or DEFAULT
    window = WINDOWS.get(chosen)
    if window is None:
        raise not_found("There is no such window.")
    async with visit.transaction() as tx:
        if not visit.may(Scope.RUNS_READ):
            return visit.show("welcome.html", {"all_scopes": tuple(Scope)})
        activity = await activity_get(tx, window=window.length, slices=window.slices)
        queue = await queue_get(tx, served_pairs(visit.api.registry), limit=WAITING_SHOWN)
    context = {
        "windows": [(name, each.title) for name, each in WINDOWS.items()],
        "chosen": chosen,
        "title": window.title,
        "activity": activity,
        "columns": columns_of(activity),
        "highest": max(bucket.total for bucket in activity.buckets),
        "failure_share": _failure_share(activity),
        "queue": queue,
        "reasons": REASONS,
        "stack": STACK,
    }
    return visit.show("overview.html", context)


def columns_of(activity: Activity) -> list[Column]:
    """Return the chart: a column for each slice, stacked by what became of its runs."""
    highest = max((bucket.total for bucket in activity.buckets), default=0) or 1
    width = 100.0 / len(activity.buckets)
    return [
        Column(
            x=round(number * width, 3),
            width=round(width * 0.8, 3),
            title=_title(bucket),
            pieces=tuple(_pieces(bucket, highest)),
        )
        for number, bucket in enumerate(activity.buckets)
    ]


def _pieces(bucket: Bucket, highest: int) -> list[Piece]:
    pieces: list[Piece] = []
    top = 100.0
    for status in STACK:
        height = 100.0 * bucket.counts.get(status, 0) / highest
        if height:
            top -= height
            pieces.append(Piece(str(status), round(top, 3), round(height, 3)))
    return pieces


def _title(bucket: Bucket) -> str:
    counts = ", ".join(f"{bucket.counts[status]} {status.lower()}" for status in STACK if bucket.counts.get(status))
    return f"{clock(bucket.begins_at)} UTC: {counts or 'no runs'}"


def _failure_share(activity: Activity) -> float | None:
    """Return the share of the runs that failed, of those that came to an end by themselves; in percent."""
    failed, completed = activity.count(RunStatus.FAILED), activity.count(RunStatus.COMPLETED)
    return 100.0 * failed / (failed + completed) if failed + completed else None


ROUTES: Final = (show_overview,)
