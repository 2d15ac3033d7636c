"""`/console/runs/{id}/stage`: one stage of a run: attempts, what went in and came out, steps and logs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import orjson
from litestar.response.base import ASGIResponse

from kernel import Registry
from kernel.events import EventType
from kernel.queries.run_events import EventView, run_last_events
from kernel.queries.run_get import RunView, StageView
from kernel.queries.stage_get import stage_outputs
from kernel.queries.step_list import step_list
from kernel.states import StageStatus
from kernel.transition import stage_input
from service.auth import Scope
from service.console import json_text
from service.console.run import RUN
from service.console.run_reading import Portion, read_run, standing
from service.console.steps import MOST_BYTES, PAGE_SIZE, shown_steps
from service.console.visits import Visit, page
from service.console.waterfall import ENDING_TYPES
from service.http.routing import RouteSpec
from service.problems import not_found
from tenancy import TenantTransaction

LOGS_SHOWN: Final = 200
ATTEMPTS_SHOWN: Final = 100
# Of an attempt there are two events of these, its start and its end, and one of its run where that ended with it.
_ENDS: Final = (EventType.STAGE_COMPLETED, EventType.STAGE_RETRYING, EventType.STAGE_FAILED)
_OF_ATTEMPTS: Final = (EventType.STAGE_STARTED, *_ENDS, *ENDING_TYPES)


@dataclass(slots=True)
class Attempt:
    """One execution of a stage as its events tell it; `outcome` is a stage's status, FAILED also before a retry."""

    number: int
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str = "RUNNING"
    error: str | None = None


@page(RouteSpec("GET", f"{RUN}/stage", "A stage of a run.", scope=Scope.RUNS_READ, query=("id",)))
async def show_stage(visit: Visit) -> ASGIResponse:
    """Show the stage; one that does not exist yet is a 404."""
    run_id = visit.path_id("run_id", "run")
    stage_id = visit.query().text("id")
    portion = Portion(logs=LOGS_SHOWN, annotations=LOGS_SHOWN, stage_id=stage_id or "")
    async with visit.transaction() as tx:
        reading = await read_run(visit, tx, run_id, portion)
        stage = next((each for each in reading.run.stages if each.stage_id == stage_id), None)
        if stage is None:
            raise not_found("There is no such stage yet.")
        steps, has_more_steps = await step_list(
            tx, run_id, limit=PAGE_SIZE, of_stage_id=stage.stage_id, most_bytes=MOST_BYTES
        )
        attempts, has_more_attempts = await _last_attempts(tx, run_id, stage)
        shown = await shown_steps(tx, run_id, steps)
        outputs = await stage_outputs(tx, run_id, up_to_group=stage.group)
        await standing(tx, run_id)
    config = orjson.loads(reading.run.config or "{}").get(stage_id)
    given, is_lost = _input_of(visit.api.registry, reading.run, stage, outputs)
    context = {
        "reading": reading,
        "run": reading.run.summary,
        "stage": stage,
        "name": reading.names.get(stage.stage_id, stage.stage_id),
        "waits_here": [wait for wait in reading.waits if wait.stage_id in {None, stage_id}],
        "attempts": attempts,
        "has_more_attempts": has_more_attempts,
        "input": json_text.shown(given),
        "output": json_text.shown(outputs.get(stage.stage_id)),
        "is_lost": {"input": is_lost, "output": outputs.get(stage.stage_id, "") is None},
        "config": json_text.shown(orjson.dumps(config).decode()) if config is not None else None,
        "steps": shown,
        "has_more_steps": has_more_steps,
        "progress": [each for each in reading.progress if each.stage_id == stage_id],
        "superseded_up_to": reading.told.superseded_up_to(stage.stage_id),
        "may_signal": visit.may(Scope.SIGNALS_WRITE) and not reading.is_over,
    }
    return visit.show("stage.html", context)


async def _last_attempts(tx: TenantTransaction, run_id: UUID, stage: StageView) -> tuple[list[Attempt], bool]:
    """Return a stage's last attempts, and whether there were others before them."""
    read = 3 * ATTEMPTS_SHOWN
    events = await run_last_events(tx, run_id, limit=read, types=_OF_ATTEMPTS, stage_id=stage.stage_id)
    attempts = attempts_of(reversed(events), is_suspended=stage.status is StageStatus.SUSPENDED)
    return attempts[-ATTEMPTS_SHOWN:], len(attempts) > ATTEMPTS_SHOWN or len(events) == read


def attempts_of(events: Iterable[EventView], *, is_suspended: bool = False) -> list[Attempt]:
    """Return a stage's attempts with how each ended, from its starts and ends and those of its run, oldest first."""
    attempts: list[Attempt] = []
    for event in events:
        if event.stage_id is None:
            if event.type in ENDING_TYPES and attempts and attempts[-1].ended_at is None:
                attempts[-1].outcome, attempts[-1].ended_at = "CANCELLED", event.occurred_at
            continue
        data = orjson.loads(event.data)
        if event.type == EventType.STAGE_STARTED:
            attempts.append(Attempt(int(data.get("attempt", len(attempts) + 1)), event.occurred_at))
        elif attempts and event.type in _ENDS:
            attempts[-1].outcome = "COMPLETED" if event.type == EventType.STAGE_COMPLETED else "FAILED"
            attempts[-1].ended_at, attempts[-1].error = event.occurred_at, data.get("error")
    if attempts and attempts[-1].ended_at is None and is_suspended:
        attempts[-1].outcome = StageStatus.SUSPENDED
    return attempts


def _input_of(
    registry: Registry, run: RunView, stage: StageView, outputs: Mapping[str, str | None]
) -> tuple[str | None, bool]:
    """Return what the stage was given and whether some of that is lost.

    None then, and where this build does not know the run's definition.
    """
    workflow = registry.find(run.summary.workflow_id, run.summary.version or "")
    if workflow is None:
        return None, False
    earlier = {placed.stage.id for placed in workflow.stages if placed.group < stage.group}
    made = {stage_id: text for stage_id, text in outputs.items() if text is not None}
    if any(stage_id in earlier and stage_id not in made for stage_id in outputs):
        return None, True
    # No JSON text is empty.
    given = stage_input(workflow, stage.group, made, run.input or "")
    return given or None, not given


ROUTES: Final = (show_stage,)
