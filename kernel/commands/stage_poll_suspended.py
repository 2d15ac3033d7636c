"""`stage.poll_suspended`: suspended stages that are due are leased for a replay of their bodies.

Waking is claiming the parked job: under the run's lock, so that whoever loses leases nothing. A worker's tick does the
same for all kinds of jobs at once; this is for hosts that poll by themselves.
"""

import json
from dataclasses import dataclass
from typing import ClassVar

from kernel.capacity import room_for, standing_call
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands import job_claim
from kernel.jobs import LeasedJob
from kernel.opening import LeaseBudget
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class SuspendedPolled:
    """The replays leased to the worker."""

    claimed: tuple[LeasedJob, ...]


@dataclass(frozen=True, slots=True)
class StagePollSuspended(Command[SuspendedPolled]):
    """Lease up to `limit` due replays of this tenant to `worker_id`. Never waits for a row.

    Of a tenant that is suspended, or at its cap of running jobs, none is leased.
    """

    name: ClassVar[str] = "stage.poll_suspended"
    worker_id: str
    limit: int = 10


@handles(StagePollSuspended)
async def stage_poll_suspended(command: StagePollSuspended, tx: TenantTransaction, scope: Scope) -> SuspendedPolled:
    """Lock, look, lease."""
    if not scope.registry.served:
        return SuspendedPolled(())
    served = json.dumps([{"workflow_id": w, "version": v} for w, v in scope.registry.served])
    claim = (SQL["claim"], {"served": served, "limit": command.limit})
    (standing,), rows = await tx.fetch_batch([standing_call(), claim])
    allowed = await room_for(command.limit, standing, tx)
    if allowed <= 0:
        return SuspendedPolled(())
    changes = Changes()
    leases = LeaseBudget(command.worker_id, allowed, scope.limits.replay_margin)
    drafts, _ = await job_claim.lease_jobs(rows[:allowed], leases, changes, tx, scope)
    await changes.write(tx)
    return SuspendedPolled(job_claim.leased_of(drafts))
