"""`job.begin`: stages whose `when` said yes move to RUNNING under their leases.

The rest were begun when they were leased.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.fencing import Fenced, Hold, lock_fenced
from kernel.jobs import LeasedJob
from kernel.locking import StageRow, load_stages
from kernel.states import RunStatus, StageStatus
from tenancy import TenantTransaction

BeginStatus = Literal["begun", "ghost", "superseded", "busy"]


@dataclass(frozen=True, slots=True)
class Begun:
    """What became of one begin; `job` is the lease with its attempt counted when `status` is `begun`."""

    job: LeasedJob
    status: BeginStatus


@dataclass(frozen=True, slots=True)
class JobBegin(Command[tuple[Begun, ...]]):
    """Begin leased jobs whose stages are PENDING. Locks the runs; waits for them only with `wait`."""

    name: ClassVar[str] = "job.begin"
    jobs: Sequence[LeasedJob]
    wait: bool = False


@handles(JobBegin)
async def job_begin(command: JobBegin, tx: TenantTransaction, _scope: Scope) -> tuple[Begun, ...]:
    """Lock, check the fences and the runs, begin."""
    fenced = await lock_fenced(tx, [job.fence for job in command.jobs], wait=command.wait)
    mine = {job.run_id for job in command.jobs if fenced.holds[job.fence] is Hold.MINE}
    stages = await load_stages(tx, sorted(mine))
    changes = Changes()
    drafts = {run_id: RunDraft(fenced.runs[run_id], changes, None, stages[run_id]) for run_id in mine}
    answers = tuple(_begin(job, fenced, drafts) for job in command.jobs)
    await changes.write(tx)
    return answers


def _begin(job: LeasedJob, fenced: Fenced, drafts: dict[UUID, RunDraft]) -> Begun:
    hold = fenced.holds[job.fence]
    if hold is Hold.BUSY:
        return Begun(job, "busy")
    if hold is not Hold.MINE:
        return Begun(job, "ghost" if hold is Hold.GONE else "superseded")
    draft = drafts[job.run_id]
    stage: StageRow | None = draft.stages.get(job.stage_id)
    if draft.run.status is not RunStatus.RUNNING or stage is None:
        draft.drop_job(job.stage_id)
        return Begun(job, "ghost")
    # A repeat after a COMMIT whose reply was lost finds the stage begun under this very fence.
    attempt = stage.attempt if stage.status is StageStatus.RUNNING else draft.begin(stage)
    sequence = draft.run.event_sequence
    return Begun(replace(job, attempt=attempt, begun=True, event_sequence=sequence), "begun")
