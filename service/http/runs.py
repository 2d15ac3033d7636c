"""`/v1/runs`: start, list, show, wait for and cancel runs."""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from kernel import FieldError, RateLimitedError, RunCancel, RunCreate, RunCreated, admission_call
from kernel.queries.run_get import created_view, run_progress
from kernel.queries.run_list import NEWEST, RunFilter, active_run_ids, run_list
from kernel.queries.tenant_get import tenant_get
from kernel.states import RunStatus
from service.auth import Scope
from service.http.queries import page_of, uuid_cursor
from service.http.requests import BulkCancelBody, RunCancelBody, RunCreateBody, RunFilterBody
from service.http.routing import Call, RouteSpec, answer, route
from service.http.run_views import read_run, run_object, summary_object
from service.problems import invalid, not_found, rate_limited
from tenancy import TenantTransaction

CURSOR: Final = uuid_cursor(b"r")
FIRST_POLL_S: Final = 0.01
LAST_POLL_S: Final = 0.5
BULK_PAGE: Final = 500
MAX_KEY_LENGTH: Final = 255


@route(
    RouteSpec(
        "POST",
        "/v1/runs",
        "Start a run. With an Idempotency-Key a repeat answers the run that the first request started.",
        scope=Scope.RUNS_WRITE,
        headers=("Idempotency-Key", "traceparent", "tracestate"),
        body=RunCreateBody,
        answers={201: "Run", 200: "Run"},
        refuses=(400, 409, 413, 415, 422, 429),
    )
)
async def create_run(call: Call) -> ASGIResponse:
    """Dispatch `run.create` and answer the run as it is then."""
    key = idempotency_key(call)
    body = await call.body(RunCreateBody)
    command = RunCreate(
        workflow_id=body.workflow,
        input=body.input,
        config=body.config,
        priority=body.priority,
        run_at=body.run_at,
        tags=tuple(body.tags),
        definition_version=body.definition_version,
        idempotency_key=key,
    )
    created, run = await _created(call, command)
    while run is None:
        # The run that the key stood for was purged before it was read, and the key with it.
        created, run = await _created(call, command)
    headers = {"Location": f"/v1/runs/{created.run_id}"}
    if created.replayed:
        return answer(run, 200, {**headers, "Idempotent-Replayed": "true"})
    return answer(run, 201, headers)


@route(
    RouteSpec(
        "GET",
        "/v1/runs",
        "List runs, newest first. `status` and `tag` may be repeated: any of the statuses, all of the tags.",
        scope=Scope.RUNS_READ,
        query=("status", "workflow", "tag", "created_after", "created_before", "limit", "cursor"),
        answers={200: "RunPage"},
        refuses=(400, 422),
    )
)
async def list_runs(call: Call) -> ASGIResponse:
    """Read one page by the key of the runs."""
    query = call.query()
    limit, before = query.limit(), query.cursor(CURSOR, NEWEST)
    wanted = RunFilter(
        statuses=query.words("status", RunStatus),
        workflow_id=query.text("workflow"),
        tags=query.tags(),
        created_after=query.instant("created_after"),
        created_before=query.instant("created_before"),
    )
    async with call.transaction() as tx:
        runs = await run_list(tx, wanted, limit=limit + 1, before=before)
    page, last = page_of(runs, limit)
    return answer({"data": [summary_object(run) for run in page], "next_cursor": last and CURSOR.write(last.run_id)})


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}",
        "Show a run. With `wait` the answer comes when the run is over, or after that many seconds.",
        scope=Scope.RUNS_READ,
        query=("wait",),
        answers={200: "Run"},
        refuses=(404, 422),
    )
)
async def get_run(call: Call) -> ASGIResponse:
    """Look until the run is over; no connection is held between looks."""
    run_id = call.path_id("run_id", "run")
    wait_s = call.query().wait_s()
    if wait_s:
        await _wait_for_end(call, run_id, wait_s)
    async with call.transaction() as tx:
        run = await shown(tx, call, run_id)
    return answer(run)


@route(
    RouteSpec(
        "POST",
        "/v1/runs/{run_id:str}/cancel",
        "Cancel a run. One that is over already is answered as it is.",
        scope=Scope.RUNS_WRITE,
        body=RunCancelBody,
        is_body_optional=True,
        answers={200: "Run"},
        refuses=(400, 404, 413, 415, 422),
    )
)
async def cancel_run(call: Call) -> ASGIResponse:
    """Dispatch `run.cancel`."""
    run_id = call.path_id("run_id", "run")
    body = await call.body(RunCancelBody)
    async with call.transaction() as tx:
        await call.api.kernel.dispatch(RunCancel(run_id, reason=body.reason), tx)
        run = await shown(tx, call, run_id)
    return answer(run)


@route(
    RouteSpec(
        "POST",
        "/v1/runs/cancel",
        "Cancel all runs of a filter that are not over.",
        scope=Scope.RUNS_WRITE,
        body=BulkCancelBody,
        answers={200: "BulkResult"},
        refuses=(400, 413, 415, 422),
    )
)
async def cancel_runs(call: Call) -> ASGIResponse:
    """Page through the runs, then cancel each in a transaction of its own, so that one that is held delays no other."""
    body = await call.body(BulkCancelBody)
    wanted = bulk_filter(body.filter)
    matched, before = 0, NEWEST
    while True:
        async with call.transaction() as tx:
            run_ids = await active_run_ids(tx, wanted, limit=BULK_PAGE, before=before)
        matched += len(run_ids)
        for run_id in [] if body.dry_run else run_ids:
            async with call.transaction() as tx:
                await call.api.kernel.dispatch(RunCancel(run_id, reason=body.reason), tx)
        if len(run_ids) < BULK_PAGE:
            return answer({"matched": matched, "dry_run": body.dry_run})
        before = run_ids[-1]


async def _created(call: Call, command: RunCreate) -> tuple[RunCreated, dict[str, Any] | None]:
    """Dispatch `run.create` and return the run as it is then: None when an earlier one is meant that is gone by now."""
    async with call.transaction(admission_call()) as tx:
        try:
            created = await call.api.kernel.dispatch(command, tx)
        except RateLimitedError as refusal:
            raise rate_limited(refusal, await _quota(tx, refusal.limit)) from None
        call.concerns(created.run_id, command.workflow_id)
        view = created_view(command, created)
        run = run_object(view, {}) if view is not None else await read_run(tx, created.run_id, call.api.registry)
    call.api.run_due(tx.tenant_id, command.workflow_id, created.definition_version)
    return created, run


async def pause(call: Call, seconds: float) -> None:
    """Sleep, or wake up when the process is told to stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await call.api.stopping.wait()


async def _wait_for_end(call: Call, run_id: UUID, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    delay_s = FIRST_POLL_S
    while True:
        async with call.transaction() as tx:
            progress = await run_progress(tx, run_id)
        left_s = deadline - time.monotonic()
        if progress is None or progress.is_over or left_s <= 0 or call.api.stopping.is_set():
            return
        await pause(call, min(delay_s, left_s))
        delay_s = min(delay_s * 1.5, LAST_POLL_S)


async def shown(tx: TenantTransaction, call: Call, run_id: UUID) -> dict[str, Any]:
    """Return a run as it is now; 404 when the tenant has none of that id."""
    run = await read_run(tx, run_id, call.api.registry)
    if run is None:
        raise not_found("There is no such run.")
    return run


def idempotency_key(call: Call) -> str | None:
    """Return the request's Idempotency-Key; 422 for one that cannot be."""
    raw = call.headers.get("idempotency-key")
    if raw is None:
        return None
    try:
        # Header values arrive as latin-1; clients mean UTF-8, as the other doors do.
        key = raw.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise invalid(FieldError("/idempotency_key", "invalid_key", "must be UTF-8")) from None
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        message = f"must have 1 to {MAX_KEY_LENGTH} characters"
        raise invalid(FieldError("/idempotency_key", "invalid_key", message))
    return key


async def _quota(tx: TenantTransaction, limit: str) -> int | None:
    tenant = await tenant_get(tx)
    quota: int | None = getattr(tenant.limits, limit, None) if tenant else None
    return quota


def bulk_filter(body: RunFilterBody) -> RunFilter:
    """Return the filter of a request on many runs; 422 when it names nothing."""
    if not body.model_dump(exclude_none=True):
        raise invalid(FieldError("/filter", "empty", "must name at least one condition"))
    return RunFilter(
        statuses=frozenset({RunStatus(body.status)}) if body.status else frozenset(),
        workflow_id=body.workflow,
        tags=(body.tag,) if body.tag else (),
        created_after=body.created_after,
        created_before=body.created_before,
    )


ROUTES: Final = (create_run, list_runs, get_run, cancel_run, cancel_runs)
