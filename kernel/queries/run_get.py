"""Reads one run: its row, its stages, or only how far it is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from kernel import payloads
from kernel.blobs import POSTGRES_BLOBS, BlobStore, with_contents
from kernel.commands.run_create import RunCreate, RunCreated
from kernel.errors import RunNotFoundError
from kernel.states import TERMINAL_RUN_STATUSES, RunStatus, StageStatus
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# version "00", 32 digits of trace id, 16 of span id, flags (W3C Trace Context).
TRACEPARENT_PARTS = 4


@dataclass(frozen=True, slots=True)
class WaitView:
    """The step that a suspended stage waits for, and until when at the latest."""

    kind: str
    step_id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage that exists. `group` and `number` count from 1, `attempt` is 0 before the first execution."""

    stage_id: str
    group: int
    number: int
    status: StageStatus
    attempt: int
    max_attempts: int
    error_message: str | None
    started_at: datetime | None
    completed_at: datetime | None
    next_poll_at: datetime | None
    waiting_for: WaitView | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run without its payloads. `version` is None while it is not pinned."""

    run_id: UUID
    workflow_id: str
    version: str | None
    status: RunStatus
    priority: int
    error: str | None
    tags: tuple[str, ...]
    redrive_count: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with its stages; `input`, `config`, `output` and `summary.error` are JSON texts.

    Payloads that are `lost` are None: their store has them no more, here are their digests.
    """

    summary: RunSummary
    input: str | None
    config: str | None
    output: str | None
    stages: tuple[StageView, ...]
    lost: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is: its status and the sequence number of its last event."""

    status: RunStatus
    event_sequence: int

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the run unless somebody redrives it."""
        return self.status in TERMINAL_RUN_STATUSES


async def run_get(tx: TenantTransaction, run_id: UUID, blobs: BlobStore = POSTGRES_BLOBS) -> RunView | None:
    """Return the run with its stages; None when the bound tenant has no such run, or no longer."""
    row = await tx.fetch_one(SQL["run"], run_id=run_id)
    if row is None:
        return None
    try:
        (row,) = await with_contents(blobs, tx, [row], "input", "config", "output")
    except RunNotFoundError:
        return None
    stages = () if row["status"] == RunStatus.PENDING else await stages_of(tx, run_id)
    if not stages and row["status"] != RunStatus.PENDING and await run_progress(tx, run_id) is None:
        # It was purged before its stages were read: it is not one that ended before it began.
        return None
    lost: Mapping[str, bytes] = row.get("lost", {})
    return RunView(summary_of(row), row["input"], row["config"], row["output"], stages, lost)


def created_view(command: RunCreate, created: RunCreated) -> RunView | None:
    """Return a run as it was just created, without reading it back; None for a replayed one: it has gone on since."""
    if created.created_at is None or created.run_at is None:
        return None
    summary = RunSummary(
        run_id=created.run_id,
        workflow_id=command.workflow_id,
        version=created.definition_version,
        status=created.status,
        priority=command.priority,
        error=None,
        tags=tuple(sorted(set(command.tags))),
        redrive_count=0,
        created_at=created.created_at,
        run_at=created.run_at,
        started_at=None,
        completed_at=None,
        trace_id=_trace_id(created.traceparent),
    )
    return RunView(summary, payloads.dump(command.input), payloads.dump(dict(command.config)), None, ())


async def stages_of(tx: TenantTransaction, run_id: UUID) -> tuple[StageView, ...]:
    """Return the stages that exist, in definition order."""
    return tuple(
        StageView(
            stage_id=row["stage_id"],
            group=row["group_number"],
            number=row["number"],
            status=StageStatus(row["status"]),
            attempt=row["attempt"],
            max_attempts=row["max_attempts"],
            error_message=row["error_message"],
            started_at=row["started_at"],
            completed_at=row["completed_at"],
            next_poll_at=row["next_poll_at"],
            waiting_for=wait_of(row["waiting_for"]) if row["status"] == StageStatus.SUSPENDED else None,
        )
        for row in await tx.fetch_all(SQL["stages"], run_id=run_id)
    )


async def run_progress(tx: TenantTransaction, run_id: UUID) -> RunProgress | None:
    """Return how far the run is; None when the bound tenant has no such run."""
    row = await tx.fetch_one(SQL["progress"], run_id=run_id)
    return None if row is None else RunProgress(RunStatus(row["status"]), row["event_sequence"])


async def definition_snapshot(tx: TenantTransaction, workflow_id: str, version: str) -> str | None:
    """Return the stored structure of a version as JSON text; None when no run was ever claimed under it."""
    row = await tx.fetch_one(SQL["definition"], workflow_id=workflow_id, version=version)
    return None if row is None else str(row["snapshot"])


def summary_of(row: Row) -> RunSummary:
    """Return a row of the run's columns as its summary."""
    return RunSummary(
        run_id=row["run_id"],
        workflow_id=row["workflow_id"],
        version=row["version"],
        status=RunStatus(row["status"]),
        priority=row["priority"],
        error=row["error"],
        tags=tuple(row["tags"]),
        redrive_count=row["redrive_count"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        trace_id=_trace_id(row["traceparent"]),
    )


def wait_of(text: str | None) -> WaitView | None:
    """Read a wait as a stage's row holds it."""
    if text is None:
        return None
    wait = json.loads(text)
    return WaitView(wait["kind"], wait["step_id"], datetime.fromisoformat(wait["until"]).astimezone(UTC))


def _trace_id(traceparent: str | None) -> str | None:
    parts = traceparent.split("-") if traceparent else []
    return parts[1] if len(parts) >= TRACEPARENT_PARTS else None
