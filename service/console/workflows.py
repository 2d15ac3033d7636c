"""`/console/workflows`: what is served here, its versions, its schemas, and the form that starts a run."""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel import FieldError, KernelError, RunCreate, RunListVersions, Workflow, WorkflowVersion
from kernel.payloads import pointer_token
from kernel.queries.run_get import run_get
from service.auth import Scope
from service.console import json_text
from service.console.forms import Form, moment
from service.console.run_reading import no_such_run
from service.console.runs import RUNS
from service.console.schema_form import Field, Filled, field_of, filled, value_of
from service.console.visits import ROOT, Visit, page
from service.http.routing import RouteSpec
from service.problems import ProblemError, not_found, problem_of
from tenancy import TenantTransaction

WORKFLOWS: Final = f"{ROOT}/workflows"
WORKFLOW: Final = f"{WORKFLOWS}/{{workflow_id:str}}"
START: Final = f"{WORKFLOW}/start"
_UNREADABLE: Final = frozenset({"forbidden", "unauthorized", "tenant_suspended", "unavailable", "internal_error"})


@page(RouteSpec("GET", WORKFLOWS, "The workflows.", scope=Scope.RUNS_READ))
async def show_workflows(visit: Visit) -> ASGIResponse:
    """Show every workflow that is served or still has runs, with its versions."""
    async with visit.transaction() as tx:
        listed = await visit.api.kernel.dispatch(RunListVersions(), tx)
    versions: dict[str, list[WorkflowVersion]] = {workflow.id: [] for workflow in visit.api.registry.workflows}
    for version in listed.versions:
        versions.setdefault(version.workflow_id, []).append(version)
    served = {workflow.id: workflow for workflow in visit.api.registry.workflows}
    context = {
        "workflows": [
            (workflow_id, served.get(workflow_id), versions[workflow_id]) for workflow_id in sorted(versions)
        ],
        "may_start": visit.may(Scope.RUNS_WRITE),
    }
    return visit.show("workflows.html", context)


@page(RouteSpec("GET", WORKFLOW, "A workflow.", scope=Scope.RUNS_READ))
async def show_workflow(visit: Visit) -> ASGIResponse:
    """Show the stages and schemas of a workflow, and its versions."""
    workflow_id = visit.path_text("workflow_id")
    async with visit.transaction() as tx:
        listed = await visit.api.kernel.dispatch(RunListVersions(workflow_id=workflow_id), tx)
    workflow = visit.api.registry.get(workflow_id)
    if workflow is None and not listed.versions:
        raise not_found("There is no such workflow.")
    context = {
        "workflow_id": workflow_id,
        "workflow": workflow,
        "versions": listed.versions,
        "input_schema": json_text.shown(json.dumps(workflow.input_schema)) if workflow else None,
        "may_start": visit.may(Scope.RUNS_WRITE) and workflow is not None,
    }
    return visit.show("workflow.html", context)


@page(RouteSpec("GET", START, "The form to start a run.", scope=Scope.RUNS_WRITE, query=("like", "as")))
async def ask_to_start(visit: Visit) -> ASGIResponse:
    """Show the form made of the input's schema; with `like`, filled in as that run was."""
    workflow = _served(visit)
    query = visit.query()
    like = query.one("like")
    run_input: Any = None
    async with visit.transaction() as tx:
        if like is not None:
            run_input = await _input_like(visit, tx, like)
    starting = Starting(workflow, as_json=query.one("as") == "json")
    return starting.show(visit, starting.filled(run_input, has_value=like is not None))


@page(RouteSpec("POST", START, "Start a run.", scope=Scope.RUNS_WRITE))
async def start(visit: Visit) -> ASGIResponse:
    """Dispatch `run.create`; what the form got wrong is shown at its fields. Sent twice, it starts one run."""
    workflow = _served(visit)
    form = await visit.form()
    starting = Starting(workflow, as_json=form.text("as") == "json")
    try:
        async with visit.transaction() as tx:
            created = await visit.api.kernel.dispatch(starting.command(form), tx)
    except (KernelError, ProblemError) as error:
        problem = problem_of(error, "")
        if problem.code in _UNREADABLE:
            raise
        return starting.show(visit, starting.sent(form, problem.errors), form=form, problem=problem)
    visit.api.run_due(tx.tenant_id, workflow.id, created.definition_version)
    if not visit.may(Scope.RUNS_READ):
        return visit.show("started.html", {"run_id": created.run_id})
    return visit.lead_to(f"{RUNS}/{created.run_id}", done="repeated" if created.replayed else "started")


class Starting:
    """The form that starts a run of a workflow: its input, a config for each stage that has one, and the rest."""

    def __init__(self, workflow: Workflow, *, as_json: bool) -> None:
        self.workflow = workflow
        self.as_json = as_json
        whole = Field("/input", "Input", "json", is_required=True)
        self._input = whole if as_json else field_of(workflow.input_schema, "/input", "Input")
        self._configs = {
            placed.stage.id: field_of(schema, f"/config{pointer_token(placed.stage.id)}", placed.stage.name)
            for placed in workflow.stages
            if (schema := placed.stage.models.config_schema) is not None
        }

    def filled(self, value: Any, *, has_value: bool) -> list[Filled]:
        """Return the fields with a run's input in them, or empty."""
        first = filled(self._input, value) if has_value else filled(self._input)
        return [first, *(filled(field) for field in self._configs.values())]

    def sent(self, form: Form, errors: Sequence[FieldError]) -> list[Filled]:
        """Return the fields as they were sent, with what is wrong with each."""
        return [filled(field, form=form, errors=errors) for field in (self._input, *self._configs.values())]

    def command(self, form: Form) -> RunCreate:
        """Return what was filled in as a command.

        Raises:
            ProblemError: 422, with a pointer to each field that does not hold what it should.
        """
        return RunCreate(
            workflow_id=self.workflow.id,
            input=value_of(self._input, form),
            config=self._config(form),
            priority=_priority(form.text("priority")),
            run_at=_moment(form.text("run_at")),
            tags=tuple(tag for word in form.text("tags").replace(",", "\n").split("\n") if (tag := word.strip())),
            idempotency_key=form.text("idempotency_key") or None,
        )

    def _config(self, form: Form) -> Mapping[str, Any]:
        found = {stage_id: value_of(field, form) for stage_id, field in self._configs.items()}
        return {stage_id: value for stage_id, value in found.items() if value not in (None, {})}

    def show(
        self, visit: Visit, fields: list[Filled], *, form: Form | None = None, problem: ProblemError | None = None
    ) -> ASGIResponse:
        """Answer the form."""
        errors = problem.errors if problem is not None else ()
        options = ("priority", "tags", "run_at")
        context = {
            "workflow": self.workflow,
            "as_json": self.as_json,
            "filled_input": fields[0],
            "configs": fields[1:],
            "given": {name: form.text(name) if form is not None else "" for name in options},
            "errors": {name: fault.message for name in options for fault in errors if _names(fault, name)},
            "others": [
                fault for fault in errors if not fault.pointer.startswith(("/input", "/config", *map(_path, options)))
            ],
            "problem": problem,
            # Kept while the form is mended, so that it still stands for one run.
            "idempotency_key": form.text("idempotency_key") if form is not None else f"console-{secrets.token_hex(16)}",
        }
        return visit.show("start.html", context, status=problem.status if problem is not None else 200)


def _served(visit: Visit) -> Workflow:
    workflow = visit.api.registry.get(visit.path_text("workflow_id"))
    if workflow is None:
        raise not_found("There is no such workflow.")
    return workflow


async def _input_like(visit: Visit, tx: TenantTransaction, like: str) -> Any:
    try:
        run_id = UUID(like)
    except ValueError:
        raise no_such_run() from None
    run = await run_get(tx, run_id)
    # What another run was given may only be seen by those who may read runs.
    if run is None or not visit.may(Scope.RUNS_READ):
        raise no_such_run()
    return None if run.input is None else json.loads(run.input)


def _path(name: str) -> str:
    return f"/{name}"


def _names(fault: FieldError, name: str) -> bool:
    return fault.pointer == _path(name) or fault.pointer.startswith(f"{_path(name)}/")


def _priority(text: str) -> int:
    if not text:
        return 5
    if not (text.isascii() and text.isdigit() and len(text) == 1):
        raise ProblemError(
            "invalid_request", "Check the options.", errors=(FieldError("/priority", "out_of_range", "is 0 to 9"),)
        )
    return int(text)


def _moment(text: str) -> datetime | None:
    try:
        return moment(text)
    except ValueError as error:
        raise ProblemError(
            "invalid_request", "Check the options.", errors=(FieldError("/run_at", "invalid", str(error)),)
        ) from None


ROUTES: Final = (show_workflows, show_workflow, ask_to_start, start)
