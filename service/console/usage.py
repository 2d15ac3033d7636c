"""`/console/usage`: the tenant, its limits, and how much of them it uses."""

from dataclasses import dataclass
from typing import Final

from litestar.response.base import ASGIResponse

from kernel.queries.tenant_get import tenant_get, tenant_usage
from service.console.visits import ROOT, Visit, page
from service.console.words import counted
from service.http.routing import RouteSpec
from service.problems import unauthorized

_KIB: Final = 1024
_NEARLY: Final = 80.0


@dataclass(frozen=True, slots=True)
class Meter:
    """What is used of what there is; `limit` is empty without one, `share` in percent."""

    title: str
    used: str
    limit: str
    share: float | None = None

    @property
    def is_high(self) -> bool:
        """Whether the limit is near."""
        return self.share is not None and self.share >= _NEARLY


@page(RouteSpec("GET", f"{ROOT}/usage", "Usage and limits."))
async def show_usage(visit: Visit) -> ASGIResponse:
    """Count what the tenant has; whoever is signed in may ask."""
    async with visit.transaction() as tx:
        tenant = await tenant_get(tx)
        usage = await tenant_usage(tx)
    if tenant is None:
        raise unauthorized()
    limits = tenant.limits
    meters = [
        _meter("Jobs running at once", usage.running_jobs, limits.running_jobs),
        _meter("Runs that have not started", usage.pending_runs, limits.pending_runs),
        Meter("Runs stored", counted(usage.stored_runs), ""),
    ]
    payload = limits.payload_bytes or visit.api.settings.max_payload_bytes
    context = {
        "tenant": tenant,
        "meters": meters,
        "runs_per_minute": limits.runs_per_minute,
        "payload": f"{payload // _KIB:,} KiB" if payload >= _KIB else f"{payload} bytes",
    }
    return visit.show("usage.html", context)


def _meter(title: str, used: int, limit: int | None) -> Meter:
    if limit is None:
        return Meter(title, counted(used), "")
    share = min(100.0 * used / limit, 100.0) if limit else 100.0
    return Meter(title, counted(used), f"{limit:,}", round(share, 1))


ROUTES: Final = (show_usage,)
