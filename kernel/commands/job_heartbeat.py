"""`job.heartbeat`: one statement keeps all leases of a worker in one tenant.

And brings back what became of their runs.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from kernel.command import Command, Scope, handles
from kernel.fence import Fence
from kernel.jobs import LeasedJob
from kernel.states import RunStatus
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a lease stands: `run_status` is None when the run is gone; without `lease_held` somebody else has the job.

    The fence tells it from another lease of the same stage: a worker may hold a lost one and its successor at once.
    """

    fence: Fence
    run_status: RunStatus | None
    lease_held: bool

    @property
    def run_id(self) -> UUID:
        """The run of the job."""
        return self.fence.run_id

    @property
    def stage_id(self) -> str:
        """The stage of the job."""
        return self.fence.stage_id


@dataclass(frozen=True, slots=True)
class JobHeartbeat(Command[tuple[Heartbeat, ...]]):
    """Refresh the leases of jobs, named by their fences or as they were leased; answers come in their order.

    An expired but untaken lease is refreshed too, and a repeat does no harm. Never waits.
    """

    name: ClassVar[str] = "job.heartbeat"
    jobs: Sequence[Fence | LeasedJob]


@handles(JobHeartbeat)
async def job_heartbeat(command: JobHeartbeat, tx: TenantTransaction, scope: Scope) -> tuple[Heartbeat, ...]:
    """Run the one statement."""
    if not command.jobs:
        return ()
    fences = [job if isinstance(job, Fence) else job.fence for job in command.jobs]
    (rows,) = await tx.fetch_batch([beat_call(fences, scope.limits.replay_margin)])
    told = {beat.fence: beat for beat in heartbeats(rows)}
    return tuple(told[fence] for fence in fences)


def beat_call(fences: Iterable[Fence], replay_margin: timedelta) -> Call:
    """Return the call that refreshes these leases, and sets the next poll of a replay so far ahead."""
    items = [
        {
            "run_id": str(fence.run_id),
            "stage_id": fence.stage_id,
            "attempt": fence.attempt,
            "started_at": fence.started_at.isoformat(),
        }
        for fence in fences
    ]
    return SQL["beat"], {"items": json.dumps(items), "replay_margin": replay_margin}


def heartbeats(rows: Iterable[Row]) -> tuple[Heartbeat, ...]:
    """Return the answers of the statement's rows."""
    return tuple(
        Heartbeat(
            Fence(row["run_id"], row["stage_id"], row["attempt"], row["started_at"]),
            RunStatus(row["run_status"]) if row["run_status"] else None,
            row["lease_held"],
        )
        for row in rows
    )
