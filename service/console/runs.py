"""`/console/runs`: the tenant's runs, newest first, with every filter in the address."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from litestar.response.base import ASGIResponse

from kernel import FieldError
from kernel.queries.run_list import NEWEST, RunFilter, run_list
from kernel.queries.stage_active import ActiveStage, stage_active
from kernel.states import TERMINAL_RUN_STATUSES, RunStatus, StageStatus
from service.auth import Scope
from service.console.forms import moment
from service.console.visits import ROOT, Visit, page
from service.console.waits import STEP_WORDS
from service.http.queries import Query, page_of
from service.http.routing import RouteSpec
from service.http.runs import CURSOR
from service.problems import invalid

RUNS: Final = f"{ROOT}/runs"
PAGE_SIZE: Final = 50
STAGES_NAMED: Final = 2
FILTERS: Final = ("workflow", "tag", "created_after", "created_before")


@page(RouteSpec("GET", RUNS, "The runs.", scope=Scope.RUNS_READ, query=("status", *FILTERS, "cursor")))
async def show_runs(visit: Visit) -> ASGIResponse:
    """Read one page by the query of `GET /v1/runs`."""
    query = visit.query()
    before = query.cursor(CURSOR, NEWEST)
    wanted = RunFilter(
        statuses=query.words("status", RunStatus),
        workflow_id=query.text("workflow"),
        tags=query.tags(),
        created_after=_instant(query, "created_after"),
        created_before=_instant(query, "created_before"),
    )
    async with visit.transaction() as tx:
        runs = await run_list(tx, wanted, limit=PAGE_SIZE + 1, before=before)
        shown, last = page_of(runs, PAGE_SIZE)
        running = [run.run_id for run in shown if run.status is RunStatus.RUNNING]
        active = await stage_active(tx, running, limit=STAGES_NAMED + 1)
    chosen = {name: (query.many(name) or [""])[0] for name in ("status", *FILTERS)}
    context = {
        "runs": shown,
        "doings": {run_id: doing_of(stages) for run_id, stages in active.items()},
        "tabs": [("", "All", _address({**chosen, "status": ""}))]
        + [(str(status), str(status).capitalize(), _address({**chosen, "status": status})) for status in RunStatus],
        "chosen": chosen,
        "is_filtered": any(chosen.values()),
        "workflows": sorted({workflow.id for workflow in visit.api.registry.workflows} | {chosen["workflow"]} - {""}),
        "older": _address({**chosen, "cursor": CURSOR.write(last.run_id)}) if last is not None else None,
        "newest": _address(chosen),
        "is_first_page": before == NEWEST,
        "is_any_active": any(run.status not in TERMINAL_RUN_STATUSES for run in shown),
    }
    return visit.show("runs.html", context)


def doing_of(stages: Sequence[ActiveStage]) -> str:
    """Return what a run's first active stages are at, in words."""
    told = [f"{stage.stage_id}: {_at_what(stage)}" for stage in stages[:STAGES_NAMED]]
    return ", ".join([*told, "…"] if len(stages) > STAGES_NAMED else told)


def _at_what(stage: ActiveStage) -> str:
    if stage.status is StageStatus.PENDING:
        return f"is in line for attempt {stage.attempt + 1}" if stage.attempt else "is in line"
    if stage.status is StageStatus.RUNNING:
        return f"runs, attempt {stage.attempt}" if stage.attempt > 1 else "runs"
    return STEP_WORDS.get(stage.waiting_for.kind, "waits") if stage.waiting_for is not None else "waits"


def _address(parameters: Mapping[str, str]) -> str:
    given = {name: value for name, value in parameters.items() if value}
    return f"{RUNS}?{urlencode(given)}" if given else RUNS


def _instant(query: Query, name: str) -> datetime | None:
    try:
        # The + of an offset may have come in as the blank it means in a query string.
        return moment((query.one(name) or "").replace(" ", "+"))
    except ValueError as error:
        raise invalid(FieldError(f"/{name}", "invalid", str(error))) from None


ROUTES: Final = (show_runs,)
