"""`/v1/tenant` and `/v1/queue`: the tenant that asks, its limits, what it uses, and what of it waits for what."""

from dataclasses import asdict
from typing import Any, Final

from litestar.response.base import ASGIResponse

from kernel import Registry
from kernel.queries.queue_get import QueueView, queue_get
from kernel.queries.tenant_get import MAX_COUNT, tenant_get, tenant_usage
from service.auth import Scope
from service.http.routing import Call, RouteSpec, answer, route
from service.problems import unauthorized

WAITING_SHOWN: Final = 100


@route(RouteSpec("GET", "/v1/tenant", "Show the tenant with its limits and what it uses.", answers={200: "Tenant"}))
async def show_tenant(call: Call) -> ASGIResponse:
    """Count what the tenant has; any valid credential may ask."""
    call.query()
    async with call.transaction() as tx:
        tenant = await tenant_get(tx)
        usage = await tenant_usage(tx)
    if tenant is None:
        raise unauthorized()
    return answer(
        {
            "id": tenant.tenant_id,
            "slug": tenant.slug,
            "name": tenant.name,
            "status": tenant.status,
            "limits": asdict(tenant.limits),
            "usage": {name: counted(count) for name, count in asdict(usage).items()},
        }
    )


@route(
    RouteSpec(
        "GET",
        "/v1/queue",
        "Show how deep the queue is, what runs, and why each of the first waiting runs waits.",
        scope=Scope.RUNS_READ,
        answers={200: "Queue"},
    )
)
async def show_queue(call: Call) -> ASGIResponse:
    """Read the oldest part of the queue."""
    call.query()
    async with call.transaction() as tx:
        queue = await queue_get(tx, served_pairs(call.api.registry), limit=WAITING_SHOWN)
    return answer(_queue_object(queue))


def counted(count: int) -> int | str:
    """Return a count as it is shown: nobody needs to know more than that there are more than 10,000."""
    return count if count <= MAX_COUNT else f"{MAX_COUNT}+"


def served_pairs(registry: Registry) -> frozenset[tuple[str, str]]:
    """Return what is served here, with an empty version for runs that are pinned when they are claimed."""
    return frozenset(registry.served) | {(workflow.id, "") for workflow in registry.workflows}


def _queue_object(queue: QueueView) -> dict[str, Any]:
    return {
        "depth": counted(queue.depth),
        "running": counted(queue.running),
        "oldest_age_seconds": queue.oldest_age_s,
        "by_workflow": [
            {
                "workflow": share.workflow_id,
                "depth": counted(share.depth),
                "running": counted(share.running),
                "oldest_age_seconds": share.oldest_age_s,
            }
            for share in queue.by_workflow
        ],
        "waiting": [{"run_id": entry.run_id, "reason": entry.reason} for entry in queue.waiting],
    }


ROUTES: Final = (show_tenant, show_queue)
