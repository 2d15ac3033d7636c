"""What a harness and its runs share: the tenant's transactions on a clock of their own, and a worker for what is due.

The clock is the database's, moved by the setting `tenantry.clock_offset` within each transaction that is opened here.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from kernel.commands.worker_tick import Ticked, WorkerTick
from kernel.kernel import Kernel, TransactionProvider
from kernel.states import RunStatus
from kernel.testing.kills import Kill, Mortality
from kernel.testing.script import Script
from kernel.testing.worker import HarnessWorker, WorkerParts
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
RunOutcome = Literal["completed", "failed", "cancelled", "suspended", "incomplete"]
LEASES = 100
MAX_ROUNDS = 1_000
_ENDS: dict[RunStatus, RunOutcome] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


class Session:
    """One tenant of one test: `offset` is how far its clock is ahead, `kill` where its next worker dies."""

    def __init__(self, kernel: Kernel, tenant_id: UUID, provider: TransactionProvider, linger_s: float | None) -> None:
        workflows = kernel.scope.registry.workflows
        self.kernel = kernel
        self.tenant_id = tenant_id
        self.offset = timedelta(0)
        self._looked_at: datetime | None = None
        self.kill: Kill | None = None
        self.script = Script(frozenset(placed.stage.id for workflow in workflows for placed in workflow.stages))
        self._provider = provider
        self._parts = WorkerParts(kernel, tenant_id, self.transaction, self.script, linger_s)
        self._workers: list[HarnessWorker] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[TenantTransaction]:
        """Open a transaction of the tenant's on the session's clock."""
        async with self._provider(self.tenant_id) as tx:
            await tx.send([(SQL["advance"], {"offset": f"{self.offset // timedelta(microseconds=1)} microseconds"})])
            yield tx

    def stage_ids(self, workflow_id: str) -> list[str]:
        """Return the ids of a workflow's stages, in the order of its definition."""
        workflow = self.kernel.scope.registry.get(workflow_id)
        return [] if workflow is None else [placed.stage.id for placed in workflow.stages]

    async def outcome(self, run_id: UUID) -> RunOutcome:
        """Return how far a run is."""
        async with self.transaction() as tx:
            row = await tx.fetch_one(SQL["standing"], run_id=run_id)
        assert row is not None
        status = RunStatus(row["status"])
        if status in _ENDS:
            return _ENDS[status]
        return "suspended" if row["is_waiting"] and not row["is_active"] else "incomplete"

    async def next_due(self, run_ids: Sequence[UUID]) -> timedelta | None:
        """Return how far away the next moment is at which one of the runs goes on by itself; None if none does.

        One that has come since the last look for work, the database's own clock going on, is now: zero.
        """
        stale_after = self.kernel.scope.limits.stale_lease_threshold
        async with self.transaction() as tx:
            rows = await tx.fetch_all(
                SQL["moments"], run_ids=list(run_ids), stale_after=stale_after, since=self._looked_at
            )
        ahead = [row["at"] - row["now"] for row in rows if row["at"] > (self._looked_at or row["now"])]
        return max(min(ahead), timedelta(0)) if ahead else None

    async def work(self) -> None:
        """Do what is due in the tenant, as one worker process does, until nothing is or it is killed.

        Raises:
            ValueError: a mock does not fit its step.
            RuntimeError: there is no end of it.
        """
        worker = HarnessWorker(self._parts, Mortality(self.kill))
        self._workers.append(worker)
        try:
            for _ in range(MAX_ROUNDS):
                if not await self._round(worker) or worker.is_dead:
                    return
        finally:
            self._workers.remove(worker)
        message = f"there was something due in each of {MAX_ROUNDS} rounds: a stage or a poll is repeated without delay"
        raise RuntimeError(message)

    def abort(self, run_id: UUID) -> None:
        """Tell the bodies of a run that it was cancelled."""
        for worker in self._workers:
            worker.abort(run_id)

    async def _round(self, worker: HarnessWorker) -> bool:
        """Take what is due and execute it; whether there was anything."""
        async with self.transaction() as tx:
            clock = await tx.fetch_one(SQL["clock"])
            assert clock is not None
            self._looked_at = clock["now"]
            ticked = await self.kernel.dispatch(WorkerTick(worker.worker_id, LEASES), tx)
        jobs = list(ticked.leased)
        while jobs:
            # A settle leases ahead at most what it frees, where the tenant has a cap.
            jobs = await worker.execute(jobs, 1 if ticked.is_capped else LEASES)
            self.script.raise_fault()
        return _has_moved(ticked)


def _has_moved(ticked: Ticked) -> bool:
    return bool(ticked.leased or ticked.runs.refused or ticked.ghosts or ticked.promoted or ticked.reaped.leases)
