"""`/console/runs/{id}`: one run: what it waits for, its waterfall, payloads, last logs and events."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import orjson
from litestar.response.base import ASGIResponse

from kernel.events import EventType
from kernel.queries.run_annotations import run_annotations
from kernel.queries.run_get import RunView, run_get
from kernel.queries.stage_get import stage_outputs
from kernel.queries.step_list import step_get
from kernel.states import RunStatus
from service.auth import Scope
from service.console import json_text
from service.console.run_reading import Reading, no_such_run, read_run
from service.console.runs import RUNS
from service.console.visits import PAGE_HEADERS, Visit, page
from service.http.routing import RouteSpec
from service.problems import not_found
from tenancy import TenantTransaction

RUN: Final = f"{RUNS}/{{run_id:str}}"
# What was done, for the address of the page that is shown afterwards.
DEEDS: Final[Mapping[str, str]] = {
    "started": "The run was started.",
    "repeated": "This form was sent before: this is the run that it started.",
    "redriven": "The run goes on.",
    "cancelled": "The run was cancelled.",
    "over": "The run had ended before it could be cancelled.",
    "signalled": "The signal was taken.",
    "signalled-before": "The step had been signalled before; that signal stays.",
}


@page(RouteSpec("GET", RUN, "A run.", scope=Scope.RUNS_READ, query=("done",)))
async def show_run(visit: Visit) -> ASGIResponse:
    """Show everything about the run that fits on a page, however long its history is."""
    run_id = visit.path_id("run_id", "run")
    done = visit.query().one("done") or ""
    async with visit.transaction() as tx:
        reading = await read_run(visit, tx, run_id)
    run = reading.run
    context = {
        "reading": reading,
        "run": run.summary,
        "waterfall": reading.waterfall,
        "error": orjson.loads(run.summary.error) if run.summary.error else None,
        "cancellation": _cancellation(reading),
        "input": json_text.shown(run.input),
        "output": json_text.shown(run.output),
        "config": json_text.shown(run.config) if run.config != "{}" else None,
        "events": [(event, json_text.shown(event.data)) for event in reading.events],
        "done": DEEDS.get(done, ""),
        "may_cancel": visit.may(Scope.RUNS_WRITE) and not reading.is_over,
        "may_signal": visit.may(Scope.SIGNALS_WRITE) and not reading.is_over,
        "may_start": visit.may(Scope.RUNS_WRITE),
        "may_redrive": visit.may(Scope.RUNS_WRITE) and reading.is_over,
    }
    return visit.show("run.html", context)


def _cancellation(reading: Reading) -> str | None:
    """Return why the run was cancelled, empty where nobody said; None when it was not."""
    if reading.run.summary.status is not RunStatus.CANCELLED:
        return None
    # It is among the last: nothing happens to a run that is over.
    said = (event.data for event in reading.events if event.type == EventType.WORKFLOW_CANCELLED)
    return str(orjson.loads(next(said, "{}")).get("reason") or "")


@page(
    RouteSpec(
        "GET", f"{RUN}/payload", "A payload as a file.", scope=Scope.RUNS_READ, query=("of", "stage", "step", "note")
    )
)
async def download_payload(visit: Visit) -> ASGIResponse:
    """Answer a payload as it is stored, as a file: no browser shall make a page of it."""
    run_id = visit.path_id("run_id", "run")
    query = visit.query()
    wanted, note = query.one("of") or "", query.one("note")
    stage_id, step_id = query.text("stage"), query.text("step")
    async with visit.transaction() as tx:
        run = await run_get(tx, run_id)
        if run is None:
            raise no_such_run()
        if note is not None:
            text = await _payload_of_note(tx, run_id, note, wanted)
        elif stage_id is not None:
            text = await _payload_of_stage(tx, run, (stage_id, step_id), wanted)
        else:
            text = _payload_of(run, wanted)
    if text is None:
        raise not_found("There is no such payload.")
    headers = {**PAGE_HEADERS, "Content-Disposition": f'attachment; filename="{run_id}-{wanted}.json"'}
    return ASGIResponse(body=text, headers=headers, media_type="application/json")


async def _payload_of_stage(
    tx: TenantTransaction, run: RunView, place: tuple[str, str | None], wanted: str
) -> str | None:
    """Return a stage's output, or the result of the step that is named with it."""
    run_id, (stage_id, step_id) = run.summary.run_id, place
    if step_id is not None:
        step = await step_get(tx, run_id, stage_id, step_id) if wanted == "result" else None
        return step.result if step is not None else None
    if wanted != "output":
        return None
    group = max((stage.group for stage in run.stages), default=0)
    return (await stage_outputs(tx, run_id, up_to_group=group)).get(stage_id)


def _payload_of(run: RunView, wanted: str) -> str | None:
    return {"input": run.input, "config": run.config, "output": run.output}.get(wanted)


async def _payload_of_note(tx: TenantTransaction, run_id: UUID, note: str, wanted: str) -> str | None:
    try:
        annotation_id = UUID(note)
    except ValueError:
        return None
    # The first one behind the id before it.
    before = UUID(int=max(annotation_id.int - 1, 0))
    found = (await run_annotations(tx, run_id, after=before, limit=1)).annotations
    if not found or found[0].annotation_id != annotation_id:
        return None
    return {"value": found[0].value, "payload": found[0].payload}.get(wanted)


ROUTES: Final = (show_run, download_payload)
