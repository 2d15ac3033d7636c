"""`job.report`: log lines and progress of bodies that still run, written while they run.

Progress is an event of the run and so needs its lock and the job's fence; what somebody holds just now is left out,
because newer progress follows within a second.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, TypedDict
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.events import EventType
from kernel.execution.journal import LogLevel, LogRecord
from kernel.fence import Fence
from kernel.fencing import Hold, lock_fenced
from kernel.jobs import LeasedJob
from kernel.states import RunStatus
from tenancy import Call, TenantTransaction, load_sql

SQL = load_sql(__file__)
# What a run keeps of what its bodies log: so many lines at first, and as many again by each redrive.
KEPT_LOGS: Final = 10_000
TOLD_THAT_IT_IS_FULL: Final = (
    f"a run keeps {KEPT_LOGS:,} log lines: what it logs from here on, until it is redriven, is dropped"
)


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


class LogRow(TypedDict):
    """A log line of a run that has been redriven `redrive_count` times; `fields` is the JSON text of an object."""

    run_id: UUID
    stage_id: str
    attempt: int
    level: LogLevel
    message: str
    fields: str
    created_at: datetime
    redrive_count: int


@dataclass(frozen=True, slots=True)
class JobReport(Command[Reported]):
    """Write log lines, as far as their runs keep so many, and progress."""

    name: ClassVar[str] = "job.report"
    logs: Sequence[LogRow] = ()
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


def log_rows(job: LeasedJob, lines: Iterable[LogRecord]) -> list[LogRow]:
    """Return what the body of a job logged, as rows."""
    return [
        LogRow(
            run_id=job.run_id,
            stage_id=job.stage_id,
            attempt=job.attempt,
            level=line.level,
            message=line.message,
            fields=line.fields,
            created_at=line.logged_at,
            redrive_count=job.redrive_count,
        )
        for line in lines
    ]


def logs_call(rows: Iterable[LogRow]) -> Call:
    """Return the call that writes log rows, as far as their runs keep so many."""
    given: Counter[UUID] = Counter()
    keeps: dict[UUID, int] = {}
    items: list[dict[str, object]] = []
    for row in rows:
        run_id = row["run_id"]
        given[run_id] += 1
        keeps[run_id] = max(keeps.get(run_id, 0), KEPT_LOGS * (1 + row["redrive_count"]))
        items.append({**row, "number": given[run_id]})
    return SQL["insert_logs"], {
        "items": json.dumps(items, ensure_ascii=False, default=str),
        "run_ids": [*keeps],
        "keeps": [*keeps.values()],
        "told": TOLD_THAT_IT_IS_FULL,
    }
