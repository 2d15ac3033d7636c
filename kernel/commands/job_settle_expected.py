"""`job.settle_expected`: settles decided before their locks are had, so that they fit into one statement.

A worker knows what the lock would tell it: while its lease stands and the run's event sequence is the one it saw,
nothing has happened to the run. The statement locks, looks whether that is so, and writes; or it writes nothing, and
`job.settle` decides from what is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import orjson

from kernel.blobs import INLINE_BYTES, is_large
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands.job_settle import NOTHING_SAID, SettleBatch, Settled, Settlement, settle_one
from kernel.commands.step_write import encode_ops, has_large_result
from kernel.execution.outcome import StageCompleted
from kernel.fencing import Fenced, Hold
from kernel.jobs import LeasedJob
from kernel.locking import JobRow, LockedRun
from kernel.opening import LeaseBudget
from kernel.states import JobStatus, RunStatus
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class SettledAsExpected:
    """The answers in the order of the settlements, None when nothing was written; `now` is the database's clock."""

    settled: tuple[Settled, ...] | None
    now: datetime


@dataclass(frozen=True, slots=True)
class JobSettleExpected(Command[SettledAsExpected]):
    """Settle jobs leased to `worker_id` at `at`, the database's time as its caller knows it; all of them, or none.

    Refused, with nothing written, when a lease does not stand, its run has moved or is held, or `at` is not within the
    last second of the database's clock. Sends a single statement, which a transaction of one message can carry.
    """

    name: ClassVar[str] = "job.settle_expected"
    worker_id: str
    settlements: Sequence[Settlement]
    at: datetime
    lease_ahead: int = 0


def is_expectable(settlements: Sequence[Settlement], inline_bytes: int = INLINE_BYTES) -> bool:
    """Whether the settles can be decided without a look: completed stages, each alone in its group and in its run.

    Stages of redriven runs count on from attempts that only a look can tell. What bodies said is no part of the
    statement, and what has more than `inline_bytes` fits into no row.
    """
    runs = {item.job.run_id for item in settlements}
    return len(runs) == len(settlements) and all(_is_plain(item, inline_bytes) for item in settlements)


def _is_plain(item: Settlement, inline_bytes: int) -> bool:
    job, outcome = item.job, item.outcome
    return (
        isinstance(outcome, StageCompleted)
        and job.begun
        and not job.redrive_count
        and item.report == NOTHING_SAID
        and len(job.workflow.groups[job.placed.group - 1]) == 1
        and not is_large(outcome.output, inline_bytes)
        and not has_large_result(item.steps, inline_bytes)
    )


@handles(JobSettleExpected)
async def job_settle_expected(command: JobSettleExpected, tx: TenantTransaction, _scope: Scope) -> SettledAsExpected:
    """Decide as if the locks were had, and send the decision together with what it stands on."""
    fenced = Fenced({}, {}, {})
    for item in command.settlements:
        _expect(item.job, command.at, fenced)
    batch = SettleBatch(fenced, {}, LeaseBudget(command.worker_id, command.lease_ahead), {}, Changes())
    expected = [
        {
            "run_id": item.job.run_id,
            "stage_id": item.job.stage_id,
            "version": item.job.workflow.definition_version,
            "event_sequence": item.job.event_sequence,
            "attempt": item.job.fence.attempt,
            "started_at": item.job.fence.started_at,
        }
        for item in command.settlements
    ]
    settled = tuple(settle_one(item, batch) for item in command.settlements)
    steps = [op for item in command.settlements for op in item.steps]
    writes = batch.changes.arguments()
    assert writes.pop("definitions") is None, "a settle pins no version"
    row = await tx.fetch_one(
        SQL["settle"],
        expected=orjson.dumps(expected).decode(),
        at=command.at,
        ops=encode_ops(steps) if steps else None,
        run_ids=batch.changes.run_ids(),
        **writes,
    )
    assert row is not None
    if row["is_written"]:
        batch.changes.tell_after(tx)
    return SettledAsExpected(settled if row["is_written"] else None, row["now"])


def _expect(job: LeasedJob, at: datetime, fenced: Fenced) -> None:
    """Put down what the lock would tell if nothing had happened since the job was leased."""
    fence = job.fence
    fenced.holds[fence] = Hold.MINE
    fenced.runs[job.run_id] = LockedRun(
        run_id=job.run_id,
        workflow_id=job.workflow.id,
        version=job.workflow.definition_version,
        status=RunStatus.RUNNING,
        priority=job.priority,
        event_sequence=job.event_sequence,
        redrive_count=job.redrive_count,
        traceparent=job.traceparent,
        tracestate=job.tracestate,
        updated_at=at,
        now=at,
    )
    fenced.jobs[job.run_id, job.stage_id] = JobRow(
        run_id=job.run_id,
        stage_id=job.stage_id,
        status=JobStatus.RUNNING,
        replay=job.replay,
        attempt=fence.attempt,
        max_attempts=job.placed.stage.max_attempts,
        started_at=fence.started_at,
        had=True,
    )
