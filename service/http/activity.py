"""`/v1/activity` and `/v1/workers`: what a tenant's runs have been doing lately, and who works for it now."""

from datetime import timedelta
from typing import Any, Final

from litestar.response.base import ASGIResponse

from kernel import FieldError
from kernel.execution.durations import parse_duration
from kernel.queries.activity_get import Activity, StageActivity, activity_get
from kernel.queries.job_list import worker_list
from service.auth import Scope
from service.http.routing import Call, RouteSpec, answer, route
from service.problems import invalid

DEFAULT_WINDOW: Final = "24h"
LONGEST: Final = timedelta(days=31)
SHORTEST: Final = timedelta(minutes=1)
SLICES: Final = 48


@route(
    RouteSpec(
        "GET",
        "/v1/activity",
        "Show what the runs of a window (`1h`, `24h`, `7d`) came to, and how long their stages took and waited.",
        scope=Scope.RUNS_READ,
        query=("window",),
        answers={200: "Activity"},
        refuses=(422,),
    )
)
async def show_activity(call: Call) -> ASGIResponse:
    """Count the runs of the window and measure the executions of the newest of them."""
    window = _window(call.query().one("window") or DEFAULT_WINDOW)
    async with call.transaction() as tx:
        activity = await activity_get(tx, window=window, slices=SLICES)
    return answer(_activity_object(activity))


@route(
    RouteSpec(
        "GET",
        "/v1/workers",
        "List the workers that hold leases of the tenant, busiest first.",
        scope=Scope.RUNS_READ,
        answers={200: "WorkerList"},
    )
)
async def list_workers(call: Call) -> ASGIResponse:
    """Read the leases by their holders; names of workers say nothing of the hosts that they run on."""
    call.query()
    async with call.transaction() as tx:
        workers = await worker_list(tx)
    data = [
        {
            "id": worker.worker_id,
            "jobs": worker.jobs,
            "workflows": worker.workflows,
            "oldest_lease_at": worker.oldest_started_at,
            "heard_at": worker.heard_at,
        }
        for worker in workers
    ]
    return answer({"data": data, "next_cursor": None})


def _window(text: str) -> timedelta:
    try:
        window = timedelta(seconds=parse_duration(text, name="window", allow_zero=False))
    except (ValueError, OverflowError):
        raise invalid(FieldError("/window", "invalid", "must be a duration such as 1h, 24h or 7d")) from None
    if not SHORTEST <= window <= LONGEST:
        raise invalid(FieldError("/window", "out_of_range", "must be from a minute to 31 days"))
    return window


def _activity_object(activity: Activity) -> dict[str, Any]:
    return {
        "since": activity.since,
        "slices": [
            {"begins_at": bucket.begins_at, "runs": {str(status): runs for status, runs in bucket.counts.items()}}
            for bucket in activity.buckets
        ],
        "stages": [_stage_object(stage) for stage in activity.stages],
    }


def _stage_object(stage: StageActivity) -> dict[str, Any]:
    return {
        "workflow": stage.workflow_id,
        "stage_id": stage.stage_id,
        "executions": stage.executions,
        "retries": stage.retries,
        "failures": stage.failures,
        "leases_lost": stage.leases_lost,
        "execution_seconds": {"p50": stage.run_p50_s, "p95": stage.run_p95_s},
        "queue_seconds": {"p50": stage.wait_p50_s, "p95": stage.wait_p95_s},
    }


ROUTES: Final = (show_activity, list_workers)
