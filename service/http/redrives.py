"""`/v1/runs/{id}/redrive` and `/v1/runs/redrive`: runs that are over go on."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from litestar.response.base import ASGIResponse

from kernel import FieldError, InvalidRequestError, KernelError, RunRedrive
from kernel.queries.run_list import NEWEST, over_run_ids
from kernel.states import RunStatus
from service.auth import Scope
from service.http.requests import BulkRedriveBody, RunRedriveBody
from service.http.routing import Call, RouteSpec, answer, route
from service.http.runs import BULK_PAGE, bulk_filter, idempotency_key, shown
from service.problems import invalid, problem_of

REFUSALS_TOLD: Final = 100
_FAILED: Final = frozenset({RunStatus.FAILED})
_log = logging.getLogger("tenantry.http")


@route(
    RouteSpec(
        "POST",
        "/v1/runs/{run_id:str}/redrive",
        "Let a run that is over go on, from where it ended, from a stage or from its start. "
        "With an Idempotency-Key a repeat changes nothing and answers the run as it is then.",
        scope=Scope.RUNS_WRITE,
        headers=("Idempotency-Key",),
        body=RunRedriveBody,
        is_body_optional=True,
        answers={200: "Run"},
        refuses=(400, 404, 409, 413, 415, 422),
    )
)
async def redrive_run(call: Call) -> ASGIResponse:
    """Dispatch `run.redrive` and answer the run as it is then."""
    run_id = call.path_id("run_id", "run")
    key = idempotency_key(call)
    body = await call.body(RunRedriveBody)
    command = RunRedrive(
        run_id,
        kind=body.start.kind,
        stage_id=body.start.stage_id,
        definition_version=body.definition_version,
        idempotency_key=key,
    )
    async with call.transaction() as tx:
        try:
            redriven = await call.api.kernel.dispatch(command, tx)
        except InvalidRequestError as refusal:
            raise invalid(*map(_in_body, refusal.errors)) from None
        run = await shown(tx, call, run_id)
    call.api.work_due(tx.tenant_id, None)
    return answer(run, 200, {"Idempotent-Replayed": "true"} if redriven.replayed else {})


@route(
    RouteSpec(
        "POST",
        "/v1/runs/redrive",
        "Redrive all runs of a filter that are over from where they ended; without a status those that FAILED.",
        scope=Scope.RUNS_WRITE,
        body=BulkRedriveBody,
        answers={200: "BulkRedriveResult"},
        refuses=(400, 413, 415, 422),
    )
)
async def redrive_runs(call: Call) -> ASGIResponse:
    """Page through the runs, then redrive each in a transaction of its own, so that one that is held delays no other.

    A run that has moved meanwhile, or cannot go on in this build, stays as it is, and the answer says so.
    """
    body = await call.body(BulkRedriveBody)
    wanted = bulk_filter(body.filter)
    if not wanted.statuses:
        wanted = replace(wanted, statuses=_FAILED)
    matched, before = 0, NEWEST
    refusals: list[Mapping[str, object]] = []
    while True:
        async with call.transaction() as tx:
            run_ids = await over_run_ids(tx, wanted, limit=BULK_PAGE, before=before)
        matched += len(run_ids)
        for run_id in [] if body.dry_run else run_ids:
            async with call.transaction() as tx:
                try:
                    await call.api.kernel.dispatch(RunRedrive(run_id), tx)
                except KernelError as refusal:
                    _log.warning("http.redrive_refused", extra={"run_id": str(run_id), "code": refusal.code})
                    problem = problem_of(refusal, "")
                    refusals.append({"run_id": run_id, "code": problem.code, "detail": problem.detail})
        if run_ids and not body.dry_run:
            call.api.work_due(tx.tenant_id, None)
        if len(run_ids) < BULK_PAGE:
            refused = {"refused": len(refusals), "refusals": refusals[:REFUSALS_TOLD]} if refusals else {}
            return answer({"matched": matched, "dry_run": body.dry_run, **refused})
        before = run_ids[-1]


def _in_body(fault: FieldError) -> FieldError:
    """Return a fault of the command with its place in the body of the request."""
    is_below = fault.pointer in ("/kind", "/stage_id")
    return FieldError(f"/from{fault.pointer}", fault.code, fault.message) if is_below else fault


ROUTES: Final = (redrive_run, redrive_runs)
