"""`/v1/runs/{id}/steps` and `/signals`: what a run's stages have done durably, and how a waiting step goes on."""

from datetime import UTC, datetime, timedelta
from typing import Final

from litestar.response.base import ASGIResponse

from kernel import StepSignal
from kernel.queries.run_get import run_progress
from kernel.queries.step_list import FIRST, StepPosition, step_list
from service.auth import Scope
from service.http.queries import CursorKind
from service.http.requests import SignalBody
from service.http.routing import Call, RouteSpec, answer, route
from service.http.run_views import step_object
from service.problems import not_found

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LAST_MICROSECOND: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_TIME_BYTES: Final = 8
_PLACE_BYTES: Final = 4


def _pack(position: StepPosition) -> bytes:
    time = ((position.created_at - _EPOCH) // _MICROSECOND).to_bytes(_TIME_BYTES, "big")
    return time + position.place.to_bytes(_PLACE_BYTES, "big") + f"{position.stage_id}\0{position.step_id}".encode()


def _unpack(raw: bytes) -> StepPosition:
    """Return the position; a ValueError when the bytes are none. What comes out of it can be asked of the database."""
    microseconds = min(int.from_bytes(raw[:_TIME_BYTES], "big"), _LAST_MICROSECOND)
    place = int.from_bytes(raw[_TIME_BYTES : _TIME_BYTES + _PLACE_BYTES], "big") & 0x7FFF_FFFF
    stage_id, step_id = raw[_TIME_BYTES + _PLACE_BYTES :].decode().split("\0")
    return StepPosition(_EPOCH + microseconds * _MICROSECOND, stage_id, place, step_id)


CURSOR: Final = CursorKind(b"s", _pack, _unpack)


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}/steps",
        "List the durable steps of a run, oldest first: what its stages have done, and what they wait for.",
        scope=Scope.RUNS_READ,
        query=("limit", "cursor"),
        answers={200: "StepPage"},
        refuses=(400, 404, 422),
    )
)
async def list_steps(call: Call) -> ASGIResponse:
    """Read one page by the order in which the steps began; large results make it short."""
    run_id = call.path_id("run_id", "run")
    query = call.query()
    limit, after = query.limit(), query.cursor(CURSOR, FIRST)
    async with call.transaction() as tx:
        page = await step_list(tx, run_id, after=after, limit=limit)
        # Looked at last: a run that is purged in between is not taken for one without steps.
        if await run_progress(tx, run_id) is None:
            raise not_found("There is no such run.")
    last = page.steps[-1] if page.has_more else None
    return answer(
        {"data": [step_object(step) for step in page.steps], "next_cursor": last and CURSOR.write(last.position)}
    )


@route(
    RouteSpec(
        "POST",
        "/v1/runs/{run_id:str}/signals",
        "Signal a step that waits, or will wait, for it. The first signal of a step counts; a repeat changes nothing.",
        scope=Scope.SIGNALS_WRITE,
        body=SignalBody,
        answers={200: "Signalled"},
        refuses=(400, 404, 409, 413, 415, 422),
    )
)
async def signal_step(call: Call) -> ASGIResponse:
    """Dispatch `step.signal`."""
    run_id = call.path_id("run_id", "run")
    body = await call.body(SignalBody)
    command = StepSignal(run_id, stage_id=body.stage_id, step_id=body.step_id, payload=body.payload)
    async with call.transaction() as tx:
        signalled = await call.api.kernel.dispatch(command, tx)
    call.api.work_due(tx.tenant_id, None)
    return answer({"signalled": signalled.signalled, "already_completed": signalled.already_completed})


ROUTES: Final = (list_steps, signal_step)
