"""`/v1/runs/{id}/annotations` and `/progress`: what bodies, and the engine, say of a run beside its state."""

from typing import Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel.queries.run_annotations import OLDEST, AnnotationView, run_annotations
from kernel.queries.run_get import RunProgress, run_progress
from kernel.queries.stage_progress import StageProgress, stage_progress
from service.auth import Scope
from service.http.queries import uuid_cursor
from service.http.routing import Call, RouteSpec, answer, fragment, route
from service.problems import not_found
from tenancy import TenantTransaction

ANNOTATIONS: Final = uuid_cursor(b"a")


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}/annotations",
        "List what the bodies of a run annotated, and what redrives archived of attempts that they took back, oldest "
        "first; of one stage where it is named. A page of large ones has fewer than its limit.",
        scope=Scope.RUNS_READ,
        query=("stage_id", "limit", "cursor"),
        answers={200: "AnnotationPage"},
        refuses=(400, 404, 422),
    )
)
async def list_annotations(call: Call) -> ASGIResponse:
    """Read one page by the key of the annotations."""
    run_id = call.path_id("run_id", "run")
    query = call.query()
    limit, after, stage_id = query.limit(), query.cursor(ANNOTATIONS, OLDEST), query.text("stage_id")
    async with call.transaction() as tx:
        found, has_more = await run_annotations(tx, run_id, after=after, limit=limit, stage_id=stage_id)
        # Looked at last: a run that is purged in between is not taken for one without annotations.
        await _standing(tx, run_id)
    cursor = ANNOTATIONS.write(found[-1].annotation_id) if has_more else None
    return answer({"data": [_annotation_object(each) for each in found], "next_cursor": cursor})


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}/progress",
        "Show how far the stages of a run are, as their bodies said last in their present attempts; none of those that "
        "said nothing or are done. Events after `last_sequence` say how it goes on.",
        scope=Scope.RUNS_READ,
        answers={200: "Progress"},
        refuses=(404,),
    )
)
async def show_progress(call: Call) -> ASGIResponse:
    """Read the last report of each stage that is under way, or ended before it was done."""
    run_id = call.path_id("run_id", "run")
    call.query()
    async with call.transaction() as tx:
        # The run first: what is reported meanwhile is told twice, never not at all.
        run = await _standing(tx, run_id)
        stages = await stage_progress(tx, run_id)
        if not stages:
            await _standing(tx, run_id)
    return answer({"data": [_progress_object(each) for each in stages], "last_sequence": run.event_sequence})


async def _standing(tx: TenantTransaction, run_id: UUID) -> RunProgress:
    run = await run_progress(tx, run_id)
    if run is None:
        raise not_found("There is no such run.")
    return run


def _annotation_object(annotation: AnnotationView) -> dict[str, object]:
    return {
        "id": annotation.annotation_id,
        "created_at": annotation.created_at,
        "key": annotation.key,
        "value": fragment(annotation.value),
        "payload": fragment(annotation.payload),
        "stage_id": annotation.stage_id,
        "attempt": annotation.attempt,
        "superseded": annotation.is_superseded,
    }


def _progress_object(progress: StageProgress) -> dict[str, object]:
    return {
        "stage_id": progress.stage_id,
        "attempt": progress.attempt,
        "fraction": progress.fraction,
        "message": progress.message,
        "reported_at": progress.reported_at,
    }


ROUTES: Final = (list_annotations, show_progress)
