"""Runs, stages, steps and events as JSON objects; payloads go in as the text they are stored as."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import orjson

from kernel import Registry
from kernel.queries.run_events import EventView
from kernel.queries.run_get import RunSummary, RunView, StageView, WaitView, definition_snapshot, run_get
from kernel.queries.run_logs import LogView
from kernel.queries.run_trace import SpanView
from kernel.queries.step_list import StepView
from service.http.routing import JSON_OPTIONS, fragment
from tenancy import TenantTransaction


async def read_run(tx: TenantTransaction, run_id: UUID, registry: Registry) -> dict[str, Any] | None:
    """Return a run as HTTP shows it; None when the tenant has no such run."""
    view = await run_get(tx, run_id)
    if view is None:
        return None
    return run_object(view, await stage_names(tx, view, registry))


def summary_object(run: RunSummary) -> dict[str, Any]:
    """Return a run as lists show it."""
    return {
        "id": run.run_id,
        "workflow": run.workflow_id,
        "definition_version": run.version,
        "status": run.status,
        "priority": run.priority,
        "error": fragment(run.error),
        "tags": run.tags,
        "redrive_count": run.redrive_count,
        "created_at": run.created_at,
        "run_at": run.run_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "trace_id": run.trace_id,
        # No run starts another one yet.
        "parent": None,
    }


def run_object(view: RunView, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a run with its payloads and stages; a stage without a known name goes by its id."""
    return {
        **summary_object(view.summary),
        "input": fragment(view.input),
        "config": fragment(view.config),
        "output": fragment(view.output),
        "stages": [_stage_object(stage, names.get(stage.stage_id, stage.stage_id)) for stage in view.stages],
        **lost_payloads(view.lost),
    }


def lost_payloads(names: Iterable[str]) -> dict[str, list[str]]:
    """Return what an object says of payloads that are null because their store has lost them; nothing of none."""
    lost = sorted(names)
    return {"lost_payloads": lost} if lost else {}


def event_object(run_id: UUID, event: EventView) -> dict[str, Any]:
    """Return an event."""
    return {
        "run_id": run_id,
        "sequence": event.sequence,
        "type": event.type,
        "occurred_at": event.occurred_at,
        "stage_id": event.stage_id,
        "data": fragment(event.data),
    }


def event_message(run_id: UUID, event: EventView) -> bytes:
    """Return an event as a message of an event stream; line breaks of stored JSON text become blanks."""
    data = orjson.dumps(event_object(run_id, event), option=JSON_OPTIONS)
    flat = data.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.type.encode(), flat)


def log_object(line: LogView) -> dict[str, Any]:
    """Return a line that a body logged."""
    return {
        "created_at": line.created_at,
        "level": line.level,
        "message": line.message,
        "fields": fragment(line.fields),
        "stage_id": line.stage_id,
        "attempt": line.attempt,
    }


def span_object(span: SpanView) -> dict[str, Any]:
    """Return a span of a run's trace."""
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_span_id": span.parent_span_id,
        "name": span.name,
        "kind": span.kind,
        "start_time": span.start_time,
        "end_time": span.end_time,
        "status": span.status,
        "attributes": fragment(span.attributes),
        "links": fragment(span.links),
    }


def step_object(step: StepView) -> dict[str, Any]:
    """Return a durable step."""
    return {
        "stage_id": step.stage_id,
        "step_id": step.step_id,
        "seq": step.seq,
        "kind": step.kind,
        "status": step.status,
        "attempt": step.attempt,
        "external_key": step.external_key,
        "result": fragment(step.result),
        "error": step.error,
        "lease_expires_at": step.lease_expires_at,
        "deadline_at": step.deadline_at,
        **lost_payloads(["result"] if step.is_lost else []),
    }


def _stage_object(stage: StageView, name: str) -> dict[str, Any]:
    return {
        "id": stage.stage_id,
        "name": name,
        "group": stage.group,
        "number": stage.number,
        "status": stage.status,
        "attempt": stage.attempt,
        "max_attempts": stage.max_attempts,
        "error_message": stage.error_message,
        "started_at": stage.started_at,
        "completed_at": stage.completed_at,
        "next_poll_at": stage.next_poll_at,
        "waiting_for": _wait_object(stage.waiting_for),
    }


def _wait_object(wait: WaitView | None) -> dict[str, Any] | None:
    return None if wait is None else {"kind": wait.kind, "step_id": wait.step_id, "until": wait.until}


async def stage_names(tx: TenantTransaction, view: RunView, registry: Registry) -> Mapping[str, str]:
    """Return the names of the stages of the run's version, as far as they are known here."""
    version = view.summary.version
    if not view.stages or version is None:
        return {}
    workflow = registry.find(view.summary.workflow_id, version)
    if workflow is not None:
        return {placed.stage.id: placed.stage.name for placed in workflow.stages}
    stored = await definition_snapshot(tx, view.summary.workflow_id, version)
    if stored is None:
        return {}
    return {stage["id"]: stage.get("name", stage["id"]) for stage in json.loads(stored).get("stages", [])}
