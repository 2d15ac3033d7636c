"""`/console/runs/{id}/events` and `/logs`: what happened to a run, and what its bodies logged."""

from collections.abc import Mapping
from functools import partial
from typing import Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel.events import EventType
from kernel.queries.run_events import run_events
from kernel.queries.run_logs import OLDEST, run_logs
from service.auth import Scope
from service.console import json_text, waterfall
from service.console.listing import PAGE_SIZE, Found, Listing, Wanted
from service.console.run import RUN
from service.console.visits import Visit, page
from service.http.queries import page_of
from service.http.routing import RouteSpec
from service.http.run_history import EVENTS, LOGS
from service.problems import not_found
from tenancy import TenantTransaction

_KINDS: Final[Mapping[str, tuple[str, tuple[EventType, ...] | None]]] = {
    "": ("All", None),
    "run": (
        "Run",
        (
            EventType.WORKFLOW_CREATED, EventType.WORKFLOW_STARTED, EventType.WORKFLOW_COMPLETED,
            EventType.WORKFLOW_FAILED, EventType.WORKFLOW_CANCELLED,
        ),
    ),
    "stages": ("Stages", waterfall.STAGE_TYPES),
    "progress": ("Progress", (EventType.STAGE_PROGRESS,)),
    "signals": ("Signals", (EventType.STEP_SIGNALLED,)),
    "annotations": ("Annotations", (EventType.ANNOTATION_CREATED,)),
}  # fmt: skip


@page(RouteSpec("GET", f"{RUN}/events", "A run's events.", scope=Scope.RUNS_READ, query=("kind", "stage", "cursor")))
async def show_events(visit: Visit) -> ASGIResponse:
    """Show one page of the history, or of one kind of events."""
    chosen = visit.query().one("kind") or ""
    if chosen not in _KINDS:
        raise not_found("There are no such events.")
    listing = Listing("events", EVENTS, 0, partial(_read_events, types=_KINDS[chosen][1]))
    context = {"kinds": [(kind, title) for kind, (title, _) in _KINDS.items()], "chosen": chosen}
    return await listing.show(visit, context, {"kind": chosen} if chosen else {})


async def _read_events(
    tx: TenantTransaction, wanted: Wanted[int], *, types: tuple[EventType, ...] | None
) -> Found[int]:
    events = await run_events(
        tx, wanted.run_id, after=wanted.after, limit=PAGE_SIZE + 1, types=types, stage_id=wanted.stage_id
    )
    shown, last = page_of(events, PAGE_SIZE)
    return Found([(event, json_text.shown(event.data)) for event in shown], last.sequence if last is not None else None)


@page(RouteSpec("GET", f"{RUN}/logs", "A run's logs.", scope=Scope.RUNS_READ, query=("stage", "cursor")))
async def show_logs(visit: Visit) -> ASGIResponse:
    """Show one page of what the bodies logged."""
    return await Listing("logs", LOGS, OLDEST, _read_logs).show(visit)


async def _read_logs(tx: TenantTransaction, wanted: Wanted[UUID]) -> Found[UUID]:
    lines = await run_logs(tx, wanted.run_id, after=wanted.after, limit=PAGE_SIZE + 1, stage_id=wanted.stage_id)
    shown, last = page_of(lines, PAGE_SIZE)
    return Found(shown, last.log_id if last is not None else None)


ROUTES: Final = (show_events, show_logs)
