"""`job.report`: log lines and progress of bodies that still run, written while they run.

Progress is an event of the run and so needs its lock and the job's fence; what somebody holds just now is left out,
because newer progress follows within a second.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.events import EventType
from kernel.execution.journal import LogRecord
from kernel.fence import Fence
from kernel.fencing import Hold, lock_fenced
from kernel.jobs import LeasedJob
from kernel.states import RunStatus
from tenancy import Call, TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a body has come: `fraction` from 0 to 1, and what it does just now."""

    fence: Fence
    fraction: float
    message: str | None


@dataclass(frozen=True, slots=True)
class Reported:
    """How many progress events were written; the rest belonged to lost leases or held runs."""

    progressed: int


@dataclass(frozen=True, slots=True)
class JobReport(Command[Reported]):
    """Write log rows (`run_id stage_id attempt level message fields created_at`.

    `fields` as JSON text) and progress.
    """

    name: ClassVar[str] = "job.report"
    logs: Sequence[Mapping[str, object]] = ()
    progress: Sequence[Progress] = ()


@handles(JobReport)
async def job_report(command: JobReport, tx: TenantTransaction, _scope: Scope) -> Reported:
    """Append the logs; lock, check the fences, append the progress."""
    if command.logs:
        await tx.send([logs_call(command.logs)])
    if not command.progress:
        return Reported(0)
    fenced = await lock_fenced(tx, [item.fence for item in command.progress], wait=False)
    changes = Changes()
    drafts: dict[UUID, RunDraft] = {}
    written = 0
    for item in command.progress:
        run = fenced.runs.get(item.fence.run_id)
        if run is None or run.status is not RunStatus.RUNNING or fenced.holds[item.fence] is not Hold.MINE:
            continue
        draft = drafts.setdefault(run.run_id, RunDraft(run, changes, None))
        payload = {"fraction": item.fraction, "message": item.message}
        draft.emit(EventType.STAGE_PROGRESS, stage_id=item.fence.stage_id, **payload)
        written += 1
    await changes.write(tx)
    return Reported(written)


def log_rows(job: LeasedJob, lines: Iterable[LogRecord]) -> list[dict[str, object]]:
    """Return what the body of a job logged, as rows."""
    who = {"run_id": job.run_id, "stage_id": job.stage_id, "attempt": job.attempt}
    return [
        {**who, "level": line.level, "message": line.message, "fields": line.fields, "created_at": line.logged_at}
        for line in lines
    ]


def logs_call(rows: Sequence[Mapping[str, object]]) -> Call:
    """Return the call that writes log rows."""
    return SQL["insert_logs"], {"items": json.dumps([*rows], ensure_ascii=False, default=str)}
