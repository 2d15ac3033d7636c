"""`/console/runs/{id}/steps`: the durable steps of a run, or of one of its stages; like `GET /v1/runs/{id}/steps`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel.queries.job_list import job_list
from kernel.queries.run_get import stages_of
from kernel.queries.run_trace import step_tries
from kernel.queries.step_list import FIRST, StepPosition, StepView, step_list
from service.auth import Scope
from service.console import json_text
from service.console.listing import Found, Listing, Wanted
from service.console.run import RUN
from service.console.run_reading import leases_of
from service.console.step_stretches import by_step, stretches_of, was_tried_again
from service.console.stretches import Stretch
from service.console.visits import Visit, page
from service.console.waterfall import Record
from service.http.routing import RouteSpec
from service.http.run_steps import CURSOR
from tenancy import TenantTransaction

PAGE_SIZE: Final = 100
# A page ends with the result that takes it beyond this; of each so much is shown, and the whole is a download.
MOST_BYTES: Final = 1024 * 1024
MOST_SHOWN: Final = 4_000


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step with as much of its result as is shown; `attempts` and the pauses between them, if there was a second."""

    step: StepView
    result: json_text.JsonText | None
    attempts: tuple[Stretch, ...] = ()


async def shown_steps(tx: TenantTransaction, run_id: UUID, steps: Sequence[StepView]) -> list[ShownStep]:
    """Return steps of a run as they are shown."""
    attempts = await _attempts(tx, run_id, [step for step in steps if was_tried_again(step)])
    return [
        ShownStep(
            step,
            None if step.result is None else json_text.laid_out(step.result, most=MOST_SHOWN),
            attempts.get((step.stage_id, step.step_id), ()),
        )
        for step in steps
    ]


async def _attempts(
    tx: TenantTransaction, run_id: UUID, steps: Sequence[StepView]
) -> dict[tuple[str, str], tuple[Stretch, ...]]:
    if not steps:
        return {}
    stages = {stage.stage_id: stage for stage in await stages_of(tx, run_id)}
    now = datetime.now(UTC)
    record = Record(
        tries=by_step(await step_tries(tx, run_id, [step.step_id for step in steps])),
        leased_at=leases_of(await job_list(tx, run_id)),
    )
    return {
        (step.stage_id, step.step_id): tuple(stretches_of(record.time_of(step, stage, stage.completed_at or now)))
        for step in steps
        if (stage := stages.get(step.stage_id)) is not None
    }


@page(RouteSpec("GET", f"{RUN}/steps", "A run's steps.", scope=Scope.RUNS_READ, query=("stage", "cursor")))
async def show_steps(visit: Visit) -> ASGIResponse:
    """Show one page of them."""
    return await Listing("steps", CURSOR, FIRST, _read).show(visit)


async def _read(tx: TenantTransaction, wanted: Wanted[StepPosition]) -> Found[StepPosition]:
    found, has_more = await step_list(
        tx, wanted.run_id, after=wanted.after, limit=PAGE_SIZE, of_stage_id=wanted.stage_id, most_bytes=MOST_BYTES
    )
    return Found(await shown_steps(tx, wanted.run_id, found), found[-1].position if has_more else None)


ROUTES: Final = (show_steps,)
