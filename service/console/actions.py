"""Cancelling and signalling a run: each a page that says what it will do, and a form that does it."""

from typing import Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel import FieldError, KernelError, RunCancel, StepSignal
from kernel.queries.run_get import run_progress
from service.auth import Scope
from service.console.forms import Form
from service.console.run import RUN
from service.console.run_reading import no_such_run
from service.console.runs import RUNS
from service.console.schema_form import json_of
from service.console.visits import Visit, page
from service.http.routing import RouteSpec
from service.problems import ProblemError, problem_of

CANCEL: Final = f"{RUN}/cancel"
SIGNAL: Final = f"{RUN}/signal"
MAX_REASON: Final = 1_000


@page(RouteSpec("GET", CANCEL, "The form to cancel a run.", scope=Scope.RUNS_WRITE))
async def ask_to_cancel(visit: Visit) -> ASGIResponse:
    """Ask whether it is meant."""
    run_id = visit.path_id("run_id", "run")
    async with visit.transaction() as tx:
        progress = await run_progress(tx, run_id)
    if progress is None:
        raise no_such_run()
    return visit.show("cancel.html", {"run_id": run_id, "is_over": progress.is_over, "max_reason": MAX_REASON})


@page(RouteSpec("POST", CANCEL, "Cancel a run.", scope=Scope.RUNS_WRITE))
async def cancel(visit: Visit) -> ASGIResponse:
    """Dispatch `run.cancel`."""
    run_id = visit.path_id("run_id", "run")
    form = await visit.form()
    reason = form.text("reason").strip()[:MAX_REASON] or None
    async with visit.transaction() as tx:
        if await run_progress(tx, run_id) is None:
            raise no_such_run()
        cancelled = await visit.api.kernel.dispatch(RunCancel(run_id, reason=reason), tx)
    return visit.lead_to(f"{RUNS}/{run_id}", done="cancelled" if cancelled.cancelled else "over")


@page(RouteSpec("GET", SIGNAL, "The form to signal a step.", scope=Scope.SIGNALS_WRITE, query=("stage", "step")))
async def ask_to_signal(visit: Visit) -> ASGIResponse:
    """Ask for the payload, and whether it is meant: the first signal of a step counts and stays."""
    run_id = visit.path_id("run_id", "run")
    query = visit.query()
    async with visit.transaction() as tx:
        if await run_progress(tx, run_id) is None:
            raise no_such_run()
    given = {"stage_id": query.one("stage") or "", "step_id": query.one("step") or "", "payload": ""}
    return visit.show("signal.html", {"run_id": run_id, "given": given, "errors": {}, "error": ""})


@page(RouteSpec("POST", SIGNAL, "Signal a step.", scope=Scope.SIGNALS_WRITE))
async def signal(visit: Visit) -> ASGIResponse:
    """Dispatch `step.signal`; what is wrong with the form is shown at its fields."""
    run_id = visit.path_id("run_id", "run")
    form = await visit.form()
    try:
        async with visit.transaction() as tx:
            if await run_progress(tx, run_id) is None:
                raise no_such_run()
            signalled = await visit.api.kernel.dispatch(_signal_of(run_id, form), tx)
    except (KernelError, ProblemError) as error:
        problem = problem_of(error, "")
        if problem.code in {"not_found", "forbidden", "unauthorized", "tenant_suspended"}:
            raise
        given = {name: form.text(name) for name in ("stage_id", "step_id", "payload")}
        errors = {fault.pointer.removeprefix("/").partition("/")[0]: fault.message for fault in problem.errors}
        context = {"run_id": run_id, "given": given, "errors": errors, "error": problem.detail}
        return visit.show("signal.html", context, status=problem.status)
    visit.api.work_due(tx.tenant_id, None)
    done = "signalled-before" if signalled.already_completed else "signalled"
    if not visit.may(Scope.RUNS_READ):
        # Who may only signal is not led to a page that they may not see.
        return visit.show("signalled.html", {"run_id": run_id, "is_repeat": signalled.already_completed})
    return visit.lead_to(f"{RUNS}/{run_id}", done=done)


def _signal_of(run_id: UUID, form: Form) -> StepSignal:
    faults: list[FieldError] = []
    payload: object = None
    try:
        payload = json_of(form.text("payload"))
    except ValueError as error:
        faults.append(FieldError("/payload", "invalid", str(error)))
    faults += [
        FieldError(f"/{name}", "missing", "is required") for name in ("stage_id", "step_id") if not form.text(name)
    ]
    if form.text("confirmed") != "yes":
        faults.append(FieldError("/confirmed", "missing", "Check this to send the signal."))
    if faults:
        raise ProblemError("invalid_request", "The signal was not sent.", errors=tuple(faults))
    return StepSignal(run_id, stage_id=form.text("stage_id"), step_id=form.text("step_id"), payload=payload)


ROUTES: Final = (ask_to_cancel, cancel, ask_to_signal, signal)
