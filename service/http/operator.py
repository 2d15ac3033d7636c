"""`/operator/v1/tenants`: what operators of the installation do; only there when its token and database are set."""

from typing import Any, Final

from litestar.response.base import ASGIResponse

from service import tenants
from service.http.queries import page_of, uuid_cursor
from service.http.requests import LimitsBody, TenantChangeBody, TenantCreateBody
from service.http.routing import TRANSACTION_TIMEOUT_S, Call, RouteSpec, answer, empty, route
from service.patience import within

CURSOR: Final = uuid_cursor(b"t")
PATH: Final = "/operator/v1/tenants"
ONE: Final = PATH + "/{tenant_id:str}"


@route(
    RouteSpec(
        "POST",
        PATH,
        "Create a tenant.",
        audience="operator",
        body=TenantCreateBody,
        answers={201: "OperatorTenant"},
        refuses=(400, 409, 413, 415, 422),
    )
)
async def create_tenant(call: Call) -> ASGIResponse:
    """Create an active tenant; a slug that is taken is a conflict."""
    database = call.operator_database()
    body = await call.body(TenantCreateBody)
    async with within(TRANSACTION_TIMEOUT_S):
        created = await tenants.create_tenant(database, body.slug, body.name, _limits(body.limits))
    return answer(created, 201, {"Location": f"{PATH}/{created['id']}"})


@route(
    RouteSpec(
        "GET",
        PATH,
        "List the tenants, oldest first.",
        audience="operator",
        query=("limit", "cursor"),
        answers={200: "OperatorTenantPage"},
        refuses=(400, 422),
    )
)
async def list_tenants(call: Call) -> ASGIResponse:
    """Read one page by the key of the tenants."""
    database = call.operator_database()
    query = call.query()
    limit, after = query.limit(), query.cursor(CURSOR, None)
    async with within(TRANSACTION_TIMEOUT_S):
        found = await tenants.list_tenants(database, limit=limit + 1, after=after)
    page, last = page_of(found, limit)
    return answer({"data": page, "next_cursor": last and CURSOR.write(last["id"])})


@route(RouteSpec("GET", ONE, "Show a tenant.", audience="operator", answers={200: "OperatorTenant"}, refuses=(404,)))
async def get_tenant(call: Call) -> ASGIResponse:
    """Read one tenant."""
    database = call.operator_database()
    tenant_id = call.path_id("tenant_id", "tenant")
    async with within(TRANSACTION_TIMEOUT_S):
        return answer(await tenants.get_tenant(database, tenant_id))


@route(
    RouteSpec(
        "PATCH",
        ONE,
        "Change a tenant's limits, weight or retention.",
        audience="operator",
        body=TenantChangeBody,
        answers={200: "OperatorTenant"},
        refuses=(400, 404, 409, 413, 415, 422),
    )
)
async def change_tenant(call: Call) -> ASGIResponse:
    """Change what the body names and nothing else."""
    database = call.operator_database()
    tenant_id = call.path_id("tenant_id", "tenant")
    body = await call.body(TenantChangeBody)
    changes = tenants.TenantChanges(
        limits=_limits(body.limits),
        weight=body.weight if "weight" in body.model_fields_set else tenants.UNCHANGED,
        retention=body.retention if "retention" in body.model_fields_set else tenants.UNCHANGED,
    )
    async with within(TRANSACTION_TIMEOUT_S):
        return answer(await tenants.update_tenant(database, tenant_id, changes))


@route(
    RouteSpec(
        "POST",
        ONE + "/suspend",
        "Suspend a tenant: its keys are refused and nothing of it is claimed; what runs goes on.",
        audience="operator",
        answers={200: "OperatorTenant"},
        refuses=(404, 409),
    )
)
async def suspend_tenant(call: Call) -> ASGIResponse:
    """Suspend; a repeat changes nothing."""
    database = call.operator_database()
    tenant_id = call.path_id("tenant_id", "tenant")
    async with within(TRANSACTION_TIMEOUT_S):
        return answer(await tenants.suspend_tenant(database, tenant_id))


@route(
    RouteSpec(
        "POST",
        ONE + "/resume",
        "Make a suspended tenant active again.",
        audience="operator",
        answers={200: "OperatorTenant"},
        refuses=(404, 409),
    )
)
async def resume_tenant(call: Call) -> ASGIResponse:
    """Resume; a repeat changes nothing."""
    database = call.operator_database()
    tenant_id = call.path_id("tenant_id", "tenant")
    async with within(TRANSACTION_TIMEOUT_S):
        return answer(await tenants.resume_tenant(database, tenant_id))


@route(
    RouteSpec(
        "DELETE",
        ONE,
        "Delete a tenant and everything it owns.",
        audience="operator",
        answers={204: None},
        refuses=(404,),
    )
)
async def delete_tenant(call: Call) -> ASGIResponse:
    """Delete page by page; when the client goes away meanwhile the deletion goes on, and a repeat completes it."""
    database = call.operator_database()
    await tenants.delete_tenant(database, call.path_id("tenant_id", "tenant"))
    return empty()


def _limits(body: LimitsBody) -> dict[str, Any]:
    return body.model_dump(include=body.model_fields_set)


ROUTES: Final = (
    create_tenant,
    list_tenants,
    get_tenant,
    change_tenant,
    suspend_tenant,
    resume_tenant,
    delete_tenant,
)
