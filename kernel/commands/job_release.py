"""`job.release`: leases under a worker's id that it does not know go back to the queue, their attempts with them.

They come from a COMMIT whose reply was lost: the database says the worker has them, the worker never heard of it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.fence import Fence
from kernel.fencing import Hold, lock_fenced
from kernel.locking import load_stages
from kernel.states import RunStatus
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class JobsReleased:
    """The leases that went back; `busy` ones are held by somebody and want another round."""

    released: tuple[Fence, ...]
    busy: int = 0


@dataclass(frozen=True, slots=True)
class JobRelease(Command[JobsReleased]):
    """Give back what `worker_id` holds and does not know.

    Nothing that began after `before` (a claim still in flight).
    """

    name: ClassVar[str] = "job.release"
    worker_id: str
    known: Collection[Fence] = ()
    before: datetime | None = None


@handles(JobRelease)
async def job_release(command: JobRelease, tx: TenantTransaction, _scope: Scope) -> JobsReleased:
    """Look, lock, check the fences, give back."""
    rows = await tx.fetch_all(SQL["held"], worker_id=command.worker_id, before=command.before)
    held = [Fence(row["run_id"], row["stage_id"], row["attempt"], row["started_at"]) for row in rows]
    known = set(command.known)
    unknown = [fence for fence in held if fence not in known]
    if not unknown:
        return JobsReleased(())
    fenced = await lock_fenced(tx, unknown, wait=False)
    mine = [fence for fence in unknown if fenced.holds[fence] is Hold.MINE]
    stages = await load_stages(tx, sorted({fence.run_id for fence in mine}))
    changes = Changes()
    drafts: dict[UUID, RunDraft] = {}
    for fence in mine:
        draft = drafts.get(fence.run_id)
        if draft is None:
            run = fenced.runs[fence.run_id]
            draft = drafts[fence.run_id] = RunDraft(run, changes, None, stages[fence.run_id])
        stage = draft.stages.get(fence.stage_id)
        if stage is None or draft.run.status is not RunStatus.RUNNING:
            draft.drop_job(fence.stage_id)
        else:
            draft.defer(stage, fence.attempt, timedelta(0))
    await changes.write(tx)
    busy = sum(fenced.holds[fence] is Hold.BUSY for fence in unknown)
    return JobsReleased(tuple(mine), busy)
