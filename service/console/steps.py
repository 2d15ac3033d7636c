"""`/console/runs/{id}/steps`: the durable steps of a run, or of one of its stages; like `GET /v1/runs/{id}/steps`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from litestar.response.base import ASGIResponse

from kernel.queries.run_get import run_progress
from kernel.queries.step_list import FIRST, StepView, step_list
from service.auth import Scope
from service.console import json_text
from service.console.run import RUN
from service.console.run_reading import no_such_run
from service.console.visits import Visit, page
from service.http.routing import RouteSpec
from service.http.run_steps import CURSOR

PAGE_SIZE: Final = 100
# A page ends with the result that takes it beyond this; of each so much is shown, and the whole is a download.
MOST_BYTES: Final = 1024 * 1024
MOST_SHOWN: Final = 4_000


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step with as much of its result as is shown."""

    step: StepView
    result: json_text.JsonText | None


def shown_steps(steps: Iterable[StepView]) -> list[ShownStep]:
    """Return steps as they are shown."""
    return [
        ShownStep(step, None if step.result is None else json_text.laid_out(step.result, most=MOST_SHOWN))
        for step in steps
    ]


@page(RouteSpec("GET", f"{RUN}/steps", "A run's steps.", scope=Scope.RUNS_READ, query=("stage", "cursor")))
async def show_steps(visit: Visit) -> ASGIResponse:
    """Show one page of them, oldest first; those of one stage where it is named."""
    run_id = visit.path_id("run_id", "run")
    query = visit.query()
    stage_id, after = query.text("stage"), query.cursor(CURSOR, FIRST)
    async with visit.transaction() as tx:
        found, has_more = await step_list(
            tx, run_id, after=after, limit=PAGE_SIZE, of_stage_id=stage_id, most_bytes=MOST_BYTES
        )
        # Looked at last: a run that is purged in between is not taken for one without steps.
        if await run_progress(tx, run_id) is None:
            raise no_such_run()
    context = {
        "run_id": run_id,
        "stage_id": stage_id,
        "steps": shown_steps(found),
        "is_first_page": after == FIRST,
        "next_cursor": CURSOR.write(found[-1].position) if has_more else None,
    }
    return visit.show("steps.html", context)


ROUTES: Final = (show_steps,)
