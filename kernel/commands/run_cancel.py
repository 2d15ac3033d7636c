"""`run.cancel`: a run, its active stages and its queued jobs end together; leased bodies learn of it and stop."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from kernel import payloads
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.locking import load_stages, lock_run
from kernel.states import TERMINAL_RUN_STATUSES, RunStatus
from tenancy import TenantTransaction


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """`cancelled` is true when this command ended the run.

    `status` is the run's now, None when there is no such run.
    """

    cancelled: bool
    status: RunStatus | None


@dataclass(frozen=True, slots=True)
class RunCancel(Command[RunCancelled]):
    """Cancel a PENDING or RUNNING run; a run that finished first stays finished.

    Takes the run's lock and waits for it: whoever settles a stage of this run at the same time comes before or after
    as a whole.
    """

    name: ClassVar[str] = "run.cancel"
    run_id: UUID
    reason: str | None = None


@handles(RunCancel)
async def run_cancel(command: RunCancel, tx: TenantTransaction, _scope: Scope) -> RunCancelled:
    """Lock, look, cancel."""
    run = await lock_run(tx, command.run_id)
    if run is None:
        return RunCancelled(cancelled=False, status=None)
    if run.status in TERMINAL_RUN_STATUSES:
        return RunCancelled(cancelled=False, status=run.status)
    stages = await load_stages(tx, [run.run_id] if run.status is RunStatus.RUNNING else [])
    draft = RunDraft(run, Changes(), workflow=None, stages=stages.get(run.run_id, {}))
    reason = payloads.clean_text(command.reason) if command.reason is not None else None
    draft.finish(RunStatus.CANCELLED, reason=reason)
    await draft.changes.write(tx)
    return RunCancelled(cancelled=True, status=RunStatus.CANCELLED)
