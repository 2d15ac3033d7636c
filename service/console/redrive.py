"""Redriving a run that is over: a page that asks from where, and a form that does it."""

import secrets
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel import FieldError, KernelError, RunRedrive
from kernel.queries.run_get import RunView, run_get
from kernel.states import TERMINAL_RUN_STATUSES
from service.auth import Scope
from service.console.forms import Form
from service.console.run import RUN
from service.console.run_reading import no_such_run
from service.console.runs import RUNS
from service.console.visits import Visit, page
from service.http.routing import RouteSpec
from service.problems import ProblemError, problem_of
from tenancy import TenantTransaction

REDRIVE: Final = f"{RUN}/redrive"
LATEST: Final = "latest"
_FROM_STAGE: Final = "stage:"
_ELSEWHERE: Final = frozenset({"not_found", "forbidden", "unauthorized", "tenant_suspended", "unavailable"})


@page(RouteSpec("GET", REDRIVE, "The form to redrive a run.", scope=Scope.RUNS_WRITE))
async def ask_to_redrive(visit: Visit) -> ASGIResponse:
    """Ask from where it shall go on."""
    run_id = visit.path_id("run_id", "run")
    async with visit.transaction() as tx:
        run = await _existing(tx, run_id)
    return visit.show("redrive.html", {**_asked(visit, run), "idempotency_key": f"console-{secrets.token_hex(16)}"})


@page(RouteSpec("POST", REDRIVE, "Redrive a run.", scope=Scope.RUNS_WRITE))
async def redrive(visit: Visit) -> ASGIResponse:
    """Dispatch `run.redrive`. Sent twice, the form redrives once."""
    run_id = visit.path_id("run_id", "run")
    form = await visit.form()
    try:
        async with visit.transaction() as tx:
            await visit.api.kernel.dispatch(_command(run_id, form), tx)
    except (KernelError, ProblemError) as error:
        problem = problem_of(error, "")
        if problem.code in _ELSEWHERE:
            raise
        async with visit.transaction() as tx:
            run = await _existing(tx, run_id)
        context = {**_asked(visit, run), "problem": problem, "idempotency_key": form.text("idempotency_key")}
        return visit.show("redrive.html", context, status=problem.status)
    visit.api.work_due(tx.tenant_id, None)
    if not visit.may(Scope.RUNS_READ):
        return visit.show("started.html", {"run_id": run_id})
    return visit.lead_to(f"{RUNS}/{run_id}", done="redriven")


async def _existing(tx: TenantTransaction, run_id: UUID) -> RunView:
    run = await run_get(tx, run_id)
    if run is None:
        raise no_such_run()
    return run


def _asked(visit: Visit, run: RunView) -> Mapping[str, Any]:
    """Return what the form shows; stages by their ids, which whoever may write but not read runs knows."""
    served = visit.api.registry.get(run.summary.workflow_id)
    latest = served.definition_version if served is not None else None
    return {
        "run": run.summary,
        "stages": [stage.stage_id for stage in run.stages],
        "is_over": run.summary.status in TERMINAL_RUN_STATUSES,
        "has_newer": latest is not None and latest != run.summary.version,
        "problem": None,
    }


def _command(run_id: UUID, form: Form) -> RunRedrive:
    start, key = form.text("from"), form.text("idempotency_key") or None
    version = LATEST if form.text("version") == LATEST else None
    match start:
        case "last_failure" | "start":
            return RunRedrive(run_id, kind=start, definition_version=version, idempotency_key=key)
        case _ if start.startswith(_FROM_STAGE):
            stage_id = start.removeprefix(_FROM_STAGE)
            return RunRedrive(run_id, kind="stage", stage_id=stage_id, definition_version=version, idempotency_key=key)
    fault = FieldError("/from", "unknown", "is none of the choices")
    raise ProblemError("invalid_request", "Choose from where the run shall go on.", errors=(fault,))


ROUTES: Final = (ask_to_redrive, redrive)
