"""The API as an ASGI application: its routes, what all of their answers have in common, what it opens and closes."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from litestar import Litestar, Request
from litestar.datastructures import MutableScopeHeaders, State
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response
from litestar.types import Message, Scope

from kernel import Kernel, KernelLimits, Registry
from kernel.lanes import Pair
from service.console import routes as console
from service.console.engine import template_config
from service.console.refusals import is_console, refusal_page
from service.http import (
    activity,
    api_keys,
    documents,
    operator,
    probe_routes,
    redrives,
    run_history,
    run_reports,
    run_steps,
    runs,
    tenant,
    workflows,
)
from service.http.metrics import HttpMetrics
from service.http.openapi import build_document, render_page
from service.http.routing import Api, WorkDue
from service.metrics import Exposition, engine
from service.probes import ReadinessGate
from service.problems import MEDIA_TYPE, problem_of
from service.settings import Settings
from service.telemetry import current
from service.tokens import TokenVerifier
from tenancy import Database

_SANE_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_log = logging.getLogger("tenantry.http")


def create_app(settings: Settings, registry: Registry, work_due: WorkDue | None = None) -> Litestar:
    """Build the API. It opens its database when it starts and stays up, not ready, while that is away.

    Raises:
        SettingsError: `database_url` is not set.
    """
    api = _build_api(settings, registry, work_due or _tell_nobody)
    return Litestar(
        route_handlers=list(_routes(api)),
        state=State({"api": api}),
        lifespan=[opened],
        before_send=[_dress],
        exception_handlers={Exception: _refuse},
        openapi_config=None,
        template_config=template_config(),
        logging_config=None,
        # Bodies are read, and bounded, by the routes themselves.
        request_max_body_size=None,
    )


def request_id_of(scope: Scope) -> str:
    """Return the request's id: the client's when it is sane, else one of ours."""
    state = scope["state"]
    found = state.get("request_id")
    if found is None:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        found = given if _SANE_REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        state["request_id"] = found
    return str(found)


def _tell_nobody(_tenant_id: uuid.UUID, _started: Pair | None) -> None:
    """Take no notice of new work: the workers are other processes."""


def _build_api(settings: Settings, registry: Registry, work_due: WorkDue) -> Api:
    database = Database(settings.api_database())
    has_operator = bool(settings.operator_token and settings.operator_database_url)
    limits = KernelLimits(
        max_payload_bytes=settings.max_payload_bytes,
        stale_lease_threshold=settings.stale_lease_threshold,
        job_absolute_timeout=settings.job_absolute_timeout,
    )
    metrics = HttpMetrics()
    document = build_document(handler.opt["spec"] for handler in _api_routes(has_operator=has_operator))
    return Api(
        settings=settings,
        registry=registry,
        kernel=Kernel(registry, transactions=database.transaction, limits=limits),
        database=database,
        work_due=work_due,
        gate=ReadinessGate(database),
        tokens=TokenVerifier.from_settings(settings),
        operator_database=Database(settings.operator_database()) if has_operator else None,
        slots=asyncio.Semaphore(settings.pool_size),
        stopping=asyncio.Event(),
        metrics=metrics,
        exposition=Exposition(engine, metrics.observe),
        telemetry=current(),
        document=document,
        page=render_page(document),
    )


def _api_routes(*, has_operator: bool) -> tuple[HTTPRouteHandler, ...]:
    of_runs = (*runs.ROUTES, *run_history.ROUTES, *run_reports.ROUTES, *run_steps.ROUTES, *redrives.ROUTES)
    tenants = (*of_runs, *workflows.ROUTES, *tenant.ROUTES, *activity.ROUTES, *api_keys.ROUTES)
    return (*tenants, *(operator.ROUTES if has_operator else ()), *probe_routes.ROUTES, *documents.ROUTES)


def _routes(api: Api) -> tuple[HTTPRouteHandler, ...]:
    return (*_api_routes(has_operator=api.operator_database is not None), *console.ROUTES)


@asynccontextmanager
async def opened(app: Litestar) -> AsyncIterator[None]:
    """Hold the application's databases open; when it ends, whoever waits is told to stop."""
    api: Api = app.state.api
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(api.database)
        await stack.enter_async_context(api.telemetry.writing(api.database))
        api.telemetry.measure(api.metrics.observe)
        if api.operator_database is not None:
            await stack.enter_async_context(api.operator_database)
        try:
            yield
        finally:
            api.stopping.set()


async def _dress(message: Message, scope: Scope) -> None:
    """Put on every answer, refusals and unknown paths included, what every answer has."""
    if message["type"] != "http.response.start":
        return
    headers = MutableScopeHeaders.from_message(message)
    headers["X-Request-ID"] = request_id_of(scope)
    headers["X-Content-Type-Options"] = "nosniff"
    headers.setdefault("Cache-Control", "no-store")
    api: Api = scope["litestar_app"].state.api
    route = scope.get("path_template")
    method = str(scope.get("method", "")) if route else "_OTHER"
    started_at = scope["state"].get("started_at")
    seconds = time.perf_counter() - started_at if started_at else 0.0
    api.metrics.count(method, (route or "unknown").replace(":str}", "}"), message["status"], seconds)


def _refuse(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer any error as a problem; within the console, as a page."""
    request_id = request_id_of(request.scope)
    problem = problem_of(error, request_id)
    if is_console(request.scope["path"]):
        return refusal_page(request, problem, request_id)
    return Response(
        content=problem.body(request_id),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=dict(problem.headers),
    )
