"""`/v1/workflows`: what this process serves, with JSON Schemas, and which versions still have runs."""

from typing import Any, Final

from litestar.response.base import ASGIResponse

from kernel import RunListVersions, Workflow
from service.auth import Scope
from service.http.routing import Call, RouteSpec, answer, route
from service.problems import not_found


@route(
    RouteSpec(
        "GET",
        "/v1/workflows",
        "List the workflows that are served.",
        scope=Scope.RUNS_READ,
        answers={200: "WorkflowList"},
    )
)
async def list_workflows(call: Call) -> ASGIResponse:
    """Answer the registry."""
    call.query()
    async with call.transaction():
        data = [_object(workflow) for workflow in call.api.registry.workflows]
    return answer({"data": data, "next_cursor": None})


@route(
    RouteSpec(
        "GET",
        "/v1/workflows/{workflow_id:str}",
        "Show a workflow with its JSON Schemas.",
        scope=Scope.RUNS_READ,
        answers={200: "Workflow"},
        refuses=(404,),
    )
)
async def get_workflow(call: Call) -> ASGIResponse:
    """Answer one workflow of the registry."""
    call.query()
    async with call.transaction():
        workflow = call.api.registry.get(call.path_text("workflow_id"))
    if workflow is None:
        raise not_found("There is no such workflow.")
    return answer(_object(workflow))


@route(
    RouteSpec(
        "GET",
        "/v1/workflows/{workflow_id:str}/versions",
        "List a workflow's versions: what is served and what runs are pinned to.",
        scope=Scope.RUNS_READ,
        answers={200: "WorkflowVersionList"},
        refuses=(404,),
    )
)
async def list_versions(call: Call) -> ASGIResponse:
    """Dispatch `run.list_versions`; a workflow that neither is served nor has runs does not exist."""
    call.query()
    workflow_id = call.path_text("workflow_id")
    async with call.transaction() as tx:
        listed = await call.api.kernel.dispatch(RunListVersions(workflow_id=workflow_id), tx)
    if not listed.versions and call.api.registry.get(workflow_id) is None:
        raise not_found("There is no such workflow.")
    data = [
        {
            "definition_version": version.definition_version or None,
            "counts": {str(status): count for status, count in version.counts.items()},
            "active": version.active,
            "drained": version.drained,
            "served": version.served,
            "oldest_created_at": version.oldest_created_at,
        }
        for version in listed.versions
    ]
    return answer({"data": data, "next_cursor": None})


def _object(workflow: Workflow) -> dict[str, Any]:
    return {
        "id": workflow.id,
        "definition_version": workflow.definition_version,
        "input_schema": workflow.input_schema,
        "stages": [
            {
                "id": placed.stage.id,
                "name": placed.stage.name,
                "group": placed.group,
                "number": placed.number,
                "max_attempts": placed.stage.max_attempts,
                "input_schema": placed.stage.models.input_schema,
                "output_schema": placed.stage.models.output_schema,
                "config_schema": placed.stage.models.config_schema,
            }
            for placed in workflow.stages
        ],
    }


ROUTES: Final = (list_workflows, get_workflow, list_versions)
