"""Reads the spans of one run that were kept for its tenant."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
# As many spans as one run keeps: a trace is read whole, because only the whole is a tree.
MAX_SPANS: Final = 1_000
# Of what a body may have written in its span's place.
_MOST_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class SpanView:
    """One span; `attributes` is the JSON text of an object, `links` that of a list of objects."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: str
    start_time: datetime
    end_time: datetime
    status: str
    attributes: str
    links: str


@dataclass(frozen=True, slots=True)
class StepTry:
    """An attempt of a step, from when to when its function was at work; `error_type` names what it raised, if it did.

    The times are those of its worker's clock.
    """

    stage_id: str
    step_id: str
    attempt: int
    began_at: datetime
    ended_at: datetime
    error_type: str | None


async def run_trace(tx: TenantTransaction, run_id: UUID) -> list[SpanView]:
    """Return the run's spans, oldest first; none for an unknown run, or one that was not sampled."""
    rows = await tx.fetch_all(SQL["spans"], run_id=run_id, limit=MAX_SPANS)
    return [
        SpanView(
            trace_id=row["trace_id"],
            span_id=row["span_id"],
            parent_span_id=row["parent_span_id"],
            name=row["name"],
            kind=row["kind"],
            start_time=row["start_time"],
            end_time=row["end_time"],
            status=row["status"],
            attributes=row["attributes"],
            links=row["links"],
        )
        for row in rows
    ]


async def step_tries(tx: TenantTransaction, run_id: UUID, step_ids: Iterable[str]) -> list[StepTry]:
    """Return the attempts of the named steps, of whichever stage, that were traced and have ended, oldest first.

    Those of a run that was not sampled, and of a worker that died, are not there.
    """
    rows = await tx.fetch_all(SQL["tries"], run_id=run_id, step_ids=sorted(set(step_ids)), limit=MAX_SPANS)
    return [
        StepTry(
            stage_id=row["stage_id"] or "",
            step_id=row["step_id"],
            attempt=int(row["attempt"]),
            began_at=row["start_time"],
            ended_at=row["end_time"],
            error_type=(row["error_type"] or "error") if row["status"] == "ERROR" else None,
        )
        for row in rows
        if row["attempt"].isdecimal() and len(row["attempt"]) <= _MOST_DIGITS
    ]
