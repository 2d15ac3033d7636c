"""`/console/runs/{id}/annotations`: everything that was noted at a run; like `GET /v1/runs/{id}/annotations`."""

from typing import Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel.queries.run_annotations import OLDEST, run_annotations
from service.auth import Scope
from service.console.listing import PAGE_SIZE, Found, Listing, Wanted
from service.console.notes import MOST_READ, notes_of
from service.console.run import RUN
from service.console.visits import Visit, page
from service.http.routing import RouteSpec
from service.http.run_reports import ANNOTATIONS
from tenancy import TenantTransaction


@page(RouteSpec("GET", f"{RUN}/annotations", "A run's annotations.", scope=Scope.RUNS_READ, query=("stage", "cursor")))
async def show_annotations(visit: Visit) -> ASGIResponse:
    """Show one page of them."""
    return await Listing("annotations", ANNOTATIONS, OLDEST, _read).show(visit)


async def _read(tx: TenantTransaction, wanted: Wanted[UUID]) -> Found[UUID]:
    found, has_more = await run_annotations(
        tx, wanted.run_id, after=wanted.after, limit=PAGE_SIZE, stage_id=wanted.stage_id, most_length=MOST_READ
    )
    return Found(notes_of(found), found[-1].annotation_id if has_more else None)


ROUTES: Final = (show_annotations,)
