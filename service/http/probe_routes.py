"""`/healthz`, `/readyz`, `/metrics`: for those who run the process; no credentials, no tenant's data."""

from typing import Final

from litestar.response.base import ASGIResponse

from service.http.routing import Call, RouteSpec, answer, route
from service.metrics import CONTENT_TYPE
from service.probes import NotReadyError
from service.problems import unavailable
from tenancy import TenancyError


@route(RouteSpec("GET", "/healthz", "Whether the process lives.", audience="anyone", answers={200: "Health"}))
async def healthz(_call: Call) -> ASGIResponse:
    """Answer; a process that can do that lives."""
    return answer({"status": "ok"})


@route(RouteSpec("GET", "/readyz", "Whether requests can be served.", audience="anyone", answers={200: "Health"}))
async def readyz(call: Call) -> ASGIResponse:
    """Look at the database and its schema now."""
    if call.api.stopping.is_set():
        raise unavailable("The process is stopping.")
    try:
        await call.api.gate.check()
    except (NotReadyError, TenancyError) as refusal:
        raise unavailable(str(refusal)) from None
    return answer({"status": "ready"})


@route(RouteSpec("GET", "/metrics", "Metrics in the text format of Prometheus.", audience="anyone"))
async def metrics(call: Call) -> ASGIResponse:
    """Answer what was counted."""
    return ASGIResponse(body=call.api.exposition.text(), media_type=CONTENT_TYPE)


ROUTES: Final = (healthz, readyz, metrics)
