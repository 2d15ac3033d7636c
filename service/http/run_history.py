"""`/v1/runs/{id}/events`, `/logs` and `/trace`: what happened to a run, as pages or as a live stream."""

import logging
import time
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

from litestar.response.base import ASGIResponse
from litestar.response.streaming import ASGIStreamingResponse

from kernel import EventType, FieldError
from kernel.queries.run_events import EventView, run_events
from kernel.queries.run_get import RunProgress, run_progress
from kernel.queries.run_logs import OLDEST, run_logs
from kernel.queries.run_trace import run_trace
from service.auth import Scope
from service.http.queries import number_cursor, page_of, uuid_cursor
from service.http.routing import Call, RouteSpec, answer, route
from service.http.run_views import event_message, event_object, log_object, span_object
from service.http.runs import FIRST_POLL_S, LAST_POLL_S, pause
from service.problems import ProblemError, invalid, not_found
from tenancy import DatabaseUnavailableError, TenantTransaction

EVENTS: Final = number_cursor(b"e")
LOGS: Final = uuid_cursor(b"l")
STREAM_PAGE: Final = 200
PING_AFTER_S: Final = 15.0
MAX_SEQUENCE: Final = 2**31 - 1
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_log = logging.getLogger("tenantry.http")


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}/events",
        "List a run's events, oldest first, those of each `type` if any is given; with `Accept: text/event-stream`, "
        "follow all of them until the run is over.",
        scope=Scope.RUNS_READ,
        query=("type", "limit", "cursor"),
        headers=("Last-Event-ID",),
        answers={200: "EventPage"},
        refuses=(400, 404, 422),
        streams=True,
    )
)
async def list_events(call: Call) -> ASGIResponse:
    """Answer a page, or the stream when the client asks for one."""
    run_id = call.path_id("run_id", "run")
    query = call.query()
    limit, after = query.limit(), query.cursor(EVENTS, 0)
    types = query.words("type", EventType) or None
    if "text/event-stream" in call.headers.get("accept", "").lower():
        return await _stream(call, run_id, max(after, _last_event_id(call)))
    async with call.transaction() as tx:
        events = await run_events(tx, run_id, after=after, limit=limit + 1, types=types)
        await _existing(tx, run_id)
    page, last = page_of(events, limit)
    data = [event_object(run_id, event) for event in page]
    return answer({"data": data, "next_cursor": last and EVENTS.write(last.sequence)})


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}/logs",
        "List what the bodies of a run logged, oldest first; those of one stage where it is named.",
        scope=Scope.RUNS_READ,
        query=("stage_id", "limit", "cursor"),
        answers={200: "LogPage"},
        refuses=(400, 404, 422),
    )
)
async def list_logs(call: Call) -> ASGIResponse:
    """Read one page by the key of the lines."""
    run_id = call.path_id("run_id", "run")
    query = call.query()
    limit, after, stage_id = query.limit(), query.cursor(LOGS, OLDEST), query.text("stage_id")
    async with call.transaction() as tx:
        lines = await run_logs(tx, run_id, after=after, limit=limit + 1, stage_id=stage_id)
        await _existing(tx, run_id)
    page, last = page_of(lines, limit)
    return answer({"data": [log_object(line) for line in page], "next_cursor": last and LOGS.write(last.log_id)})


@route(
    RouteSpec(
        "GET",
        "/v1/runs/{run_id:str}/trace",
        "Show what was traced of a run, oldest span first; nothing, when the run was not sampled.",
        scope=Scope.RUNS_READ,
        answers={200: "Trace"},
        refuses=(404,),
    )
)
async def show_trace(call: Call) -> ASGIResponse:
    """Read the spans that were kept; a run keeps a bounded number, so they are one page."""
    run_id = call.path_id("run_id", "run")
    call.query()
    async with call.transaction() as tx:
        spans = await run_trace(tx, run_id)
        await _existing(tx, run_id)
    return answer({"data": [span_object(span) for span in spans]})


async def _stream(call: Call, run_id: UUID, after: int) -> ASGIResponse:
    # The first look comes before the response begins, so that a run that is not there is a 404 and no empty stream.
    progress, events = await _look(call, run_id, after)
    return ASGIStreamingResponse(
        iterator=_messages(call, run_id, after, progress, events), headers=_HEADERS, media_type="text/event-stream"
    )


async def _messages(
    call: Call, run_id: UUID, after: int, progress: RunProgress, events: list[EventView]
) -> AsyncIterator[bytes]:
    """Yield messages until the event that ended the run is out; each look is a transaction of its own.

    A client that comes back names the last event it has, so any end but that one is repaired by reconnecting.
    """
    yield b"retry: 2000\n\n"
    delay_s, told_at = FIRST_POLL_S, time.monotonic()
    while True:
        if events:
            yield b"".join(event_message(run_id, event) for event in events)
            after, delay_s, told_at = events[-1].sequence, FIRST_POLL_S, time.monotonic()
        if (progress.is_over and after >= progress.event_sequence) or call.api.stopping.is_set():
            return
        if after >= progress.event_sequence:
            await pause(call, delay_s)
            delay_s = min(delay_s * 1.5, LAST_POLL_S)
        if time.monotonic() - told_at > PING_AFTER_S:
            yield b": still here\n\n"
            told_at = time.monotonic()
        try:
            progress, events = await _look(call, run_id, after)
        except (ProblemError, DatabaseUnavailableError) as error:
            _log.info("http.stream_ended", extra={"run_id": str(run_id), "error": type(error).__name__})
            return


async def _look(call: Call, run_id: UUID, after: int) -> tuple[RunProgress, list[EventView]]:
    # The run first: what its row counts is there to be read by the next statement.
    async with call.transaction() as tx:
        progress = await _existing(tx, run_id)
        if progress.event_sequence <= after:
            return progress, []
        return progress, await run_events(tx, run_id, after=after, limit=STREAM_PAGE)


async def _existing(tx: TenantTransaction, run_id: UUID) -> RunProgress:
    # Asked last where a page is read: a run that is purged in between is not taken for one that has nothing to show.
    progress = await run_progress(tx, run_id)
    if progress is None:
        raise not_found("There is no such run.")
    return progress


def _last_event_id(call: Call) -> int:
    text = call.headers.get("last-event-id", "").strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE)) and int(text) <= MAX_SEQUENCE):
        raise invalid(FieldError("/last_event_id", "invalid", "must be the id of an event of this stream"))
    return int(text)


ROUTES: Final = (list_events, list_logs, show_trace)
