"""Takes the locks that everything else stands on, and reads what may be read once they are held.

Rule (semantics.md, "Lock first"): lock the run rows in a statement of their own, in key order; decide from later
statements.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from kernel.blobs import BlobStore, find, loss, with_contents
from kernel.errors import BlobMissingError
from kernel.states import JobStatus, RunStatus, StageStatus
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
RUN_COLUMNS = (
    "run_id", "workflow_id", "version", "status", "priority", "event_sequence", "redrive_count", "traceparent",
    "tracestate", "updated_at", "now",
)  # fmt: skip


@dataclass(slots=True)
class LockedRun:
    """A run whose row this transaction has locked; `now` is the database's clock when it was read.

    `former_attempts` holds, once they were recalled, how often stages had begun whose rows a redrive removed.
    """

    run_id: UUID
    workflow_id: str
    version: str
    status: RunStatus
    priority: int
    event_sequence: int
    redrive_count: int
    traceparent: str | None
    tracestate: str | None
    updated_at: datetime
    now: datetime
    former_attempts: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class StageRow:
    """A stage of a locked run; once it is COMPLETED, `output` is JSON text, or `output_digest` says where that is.

    `lost` is the error of whoever needs the output, when it was looked for in vain.
    """

    stage_id: str
    group: int
    number: int
    status: StageStatus
    attempt: int
    announced_attempt: int
    max_attempts: int
    output: str | None = None
    output_digest: bytes | None = None
    lost: str | None = None
    settled_attempt: int | None = None
    settled_started_at: datetime | None = None
    updated_at: datetime | None = None
    next_poll_at: datetime | None = None
    deadline: datetime | None = None
    error_message: str | None = None
    generation: int = 0
    waiting_for: dict[str, Any] | None = None
    job_status: JobStatus | None = None
    job_attempt: int = 0
    job_locked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job of a locked run. `(attempt, started_at)` is its fence; `had` tells whether its row is locked as well."""

    run_id: UUID
    stage_id: str
    status: JobStatus
    replay: bool
    attempt: int
    max_attempts: int
    started_at: datetime | None
    had: bool


def lock_runs(run_ids: Iterable[UUID], *, wait: bool) -> Call:
    """Return the call that locks the runs, waiting for their holders or leaving out what is held."""
    return SQL["lock_runs_waiting" if wait else "lock_runs"], {"run_ids": sorted(set(run_ids))}


def lock_leases(keys: Iterable[tuple[UUID, str]], *, wait: bool) -> Call:
    """Return the call that locks the runs of leased jobs and then reads runs and jobs.

    One row a key of a locked run.
    """
    items = [{"run_id": run_id, "stage_id": stage_id} for run_id, stage_id in sorted(set(keys))]
    return SQL["lock_leases"], {"items": orjson.dumps(items).decode(), "wait": wait}


def locked_run(row: Row) -> LockedRun:
    """Return the run of a row that a locking statement gave, whatever else the row holds."""
    values: dict[str, Any] = {column: row[column] for column in RUN_COLUMNS}
    values["status"] = RunStatus(values["status"])
    return LockedRun(**values)


def job_row(row: Row) -> JobRow | None:
    """Return the job of a row of `lock_leases`, None when there is no such job."""
    if row["job_status"] is None:
        return None
    return JobRow(
        run_id=row["run_id"],
        stage_id=row["stage_id"],
        status=JobStatus(row["job_status"]),
        replay=row["replay"],
        attempt=row["job_attempt"],
        max_attempts=row["max_attempts"],
        started_at=row["started_at"],
        had=row["had"],
    )


async def lock_run(tx: TenantTransaction, run_id: UUID) -> LockedRun | None:
    """Lock one run, waiting for its holder; None when there is no such run of this tenant's."""
    rows = await tx.fetch_batch([lock_runs([run_id], wait=True)])
    return locked_run(rows[0][0]) if rows[0] else None


async def load_stages(
    tx: TenantTransaction, run_ids: Sequence[UUID], blobs: BlobStore | None = None
) -> dict[UUID, dict[str, StageRow]]:
    """Return the stages of locked runs, by run and stage id, in the order of their numbers.

    Outputs that are too large for their rows are read from `blobs`; without it, for who needs none, they are None.
    """
    stages: dict[UUID, dict[str, StageRow]] = {run_id: {} for run_id in run_ids}
    if run_ids:
        for row in await tx.fetch_all(SQL["stages_of_runs"], run_ids=sorted(set(run_ids))):
            stages[row["run_id"]][row["stage_id"]] = _stage_row(row)
    if blobs is not None:
        await load_outputs(tx, [(run_id, stage) for run_id, rows in stages.items() for stage in rows.values()], blobs)
    return stages


async def load_outputs(tx: TenantTransaction, stages: Iterable[tuple[UUID, StageRow]], blobs: BlobStore) -> None:
    """Fill in the outputs that are too large for the rows of these stages of locked runs; mark those that are lost."""
    lacking = [
        ((run_id, stage.output_digest), stage)
        for run_id, stage in stages
        if stage.output is None and stage.output_digest is not None
    ]
    found = await find(blobs, tx, [key for key, _ in lacking])
    for key, stage in lacking:
        stage.output = found.contents.get(key)
        if stage.output is None:
            stage.lost = loss(f"the output of stage {stage.stage_id!r}", key[1])


def first_loss(stages: Iterable[StageRow]) -> str | None:
    """Return the error of a run that needs all of these outputs; None when each was found."""
    return next((stage.lost for stage in stages if stage.lost is not None), None)


async def recall_attempts(tx: TenantTransaction, runs: Iterable[LockedRun]) -> None:
    """Fill in the former attempts of locked runs that were redriven, before a stage of theirs is created again."""
    redriven = {run.run_id: run for run in runs if run.redrive_count}
    if not redriven:
        return
    for row in await tx.fetch_all(SQL["former_attempts"], run_ids=sorted(redriven)):
        redriven[row["run_id"]].former_attempts = json.loads(row["former_attempts"])


async def existing_runs(tx: TenantTransaction, run_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of the runs exist, whoever holds them."""
    if not run_ids:
        return set()
    return {row["run_id"] for row in await tx.fetch_all(SQL["existing_runs"], run_ids=sorted(set(run_ids)))}


async def load_payloads(
    tx: TenantTransaction, run_ids: Sequence[UUID], blobs: BlobStore
) -> dict[UUID, tuple[str, str]]:
    """Return the JSON texts of input and config of these runs.

    Raises:
        BlobMissingError: the store has lost one.
    """
    if not run_ids:
        return {}
    rows = await tx.fetch_all(SQL["payloads_of_runs"], run_ids=sorted(set(run_ids)))
    rows = await with_contents(blobs, tx, rows, "input", "config")
    for row in rows:
        for digest in row.get("lost", {}).values():
            raise BlobMissingError(row["run_id"], digest.hex())
    return {row["run_id"]: (row["input"], row["config"]) for row in rows}


def _stage_row(row: Row) -> StageRow:
    return StageRow(
        stage_id=row["stage_id"],
        group=row["group_number"],
        number=row["number"],
        status=StageStatus(row["status"]),
        attempt=row["attempt"],
        announced_attempt=row["announced_attempt"],
        max_attempts=row["max_attempts"],
        output=row["output"],
        output_digest=row["output_digest"],
        settled_attempt=row["settled_attempt"],
        settled_started_at=row["settled_started_at"],
        updated_at=row["updated_at"],
        next_poll_at=row["next_poll_at"],
        deadline=row["deadline"],
        error_message=row["error_message"],
        generation=row["generation"],
        waiting_for=json.loads(row["waiting_for"]) if row["waiting_for"] is not None else None,
        job_status=JobStatus(row["job_status"]) if row["job_status"] else None,
        job_attempt=row["job_attempt"] or 0,
        job_locked_at=row["job_locked_at"],
    )
