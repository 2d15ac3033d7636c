"""`/console/workers`: who works for the tenant right now, and what of it waits for whom."""

from typing import Final

from litestar.response.base import ASGIResponse

from kernel.queries.job_list import worker_list
from kernel.queries.queue_get import queue_get
from service.auth import Scope
from service.console.visits import ROOT, Visit, page
from service.console.words import REASONS
from service.http.routing import RouteSpec
from service.http.tenant import WAITING_SHOWN, served_pairs


@page(RouteSpec("GET", f"{ROOT}/workers", "Workers and the queue.", scope=Scope.RUNS_READ))
async def show_workers(visit: Visit) -> ASGIResponse:
    """Show the leases by their holders; names of workers say nothing of the hosts that they run on."""
    async with visit.transaction() as tx:
        workers = await worker_list(tx)
        queue = await queue_get(tx, served_pairs(visit.api.registry), limit=WAITING_SHOWN)
    context = {
        "workers": workers,
        "queue": queue,
        "reasons": REASONS,
        "stale_after_s": visit.api.settings.stale_lease_threshold.total_seconds(),
    }
    return visit.show("workers.html", context)


ROUTES: Final = (show_workers,)
