"""`/console/runs/{id}/annotations`: everything that was noted at a run; like `GET /v1/runs/{id}/annotations`."""

from typing import Final

from litestar.response.base import ASGIResponse

from kernel.queries.run_annotations import OLDEST, run_annotations
from kernel.queries.run_get import run_progress
from service.auth import Scope
from service.console.notes import MOST_READ, notes_of
from service.console.run import PAGE_SIZE, RUN
from service.console.run_reading import no_such_run
from service.console.visits import Visit, page
from service.http.routing import RouteSpec
from service.http.run_reports import ANNOTATIONS


@page(RouteSpec("GET", f"{RUN}/annotations", "A run's annotations.", scope=Scope.RUNS_READ, query=("stage", "cursor")))
async def show_annotations(visit: Visit) -> ASGIResponse:
    """Show one page of them, oldest first; those of one stage where it is named."""
    run_id = visit.path_id("run_id", "run")
    query = visit.query()
    stage_id, after = query.text("stage"), query.cursor(ANNOTATIONS, OLDEST)
    async with visit.transaction() as tx:
        if await run_progress(tx, run_id) is None:
            raise no_such_run()
        found, has_more = await run_annotations(
            tx, run_id, after=after, limit=PAGE_SIZE, stage_id=stage_id, most_length=MOST_READ
        )
    context = {
        "run_id": run_id,
        "stage_id": stage_id,
        "notes": notes_of(found),
        "is_first_page": after == OLDEST,
        "next_cursor": ANNOTATIONS.write(found[-1].annotation_id) if has_more else None,
    }
    return visit.show("annotations.html", context)


ROUTES: Final = (show_annotations,)
