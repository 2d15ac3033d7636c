"""One-shot entry points, for functions that are started when there is something to do and end when it is done.

No loop, no thread of our own and no connection that outlives the call: each opens what it needs and closes it. A lease
is kept alive by heartbeats while its body runs. What a platform kills in the middle lapses, and the next maintenance
tick, or any worker, takes it back. `service.serverless_app` is the same over HTTP.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from kernel import (
    BlobStore,
    Execution,
    Fence,
    GhostJob,
    IdempotencyExpire,
    JobExecute,
    JobExecuted,
    JobHeartbeat,
    Kernel,
    KernelLimits,
    LeasedJob,
    PostgresBlobs,
    Registry,
    RunCompletion,
    RunPurge,
    RunReapStuck,
    WorkerTick,
    claim_named,
    execute_leased,
    unexecuted,
)
from tenancy import Database, DatabaseSettings

logger = logging.getLogger(__name__)
PURGE_PAGE = 500


@dataclass(frozen=True, slots=True)
class Processed:
    """How many jobs were executed, by what they came to; `has_more` says that the call stopped at its bound."""

    jobs: int
    outcomes: Counter[str]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Maintained:
    """What a maintenance tick did for one tenant."""

    promoted: int
    reaped: int
    healed: int
    failed: int
    purged: int


@dataclass(frozen=True, slots=True)
class Serverless:
    """The entry points for the workflows of a registry. `settings` log in as a worker does; the pool may be small."""

    registry: Registry
    settings: DatabaseSettings
    limits: KernelLimits = field(default_factory=KernelLimits)
    blobs: BlobStore = field(default_factory=PostgresBlobs)

    @property
    def kernel(self) -> Kernel:
        """A kernel for these workflows."""
        return Kernel(self.registry, limits=self.limits, blobs=self.blobs)

    async def handle_job(self, tenant_id: UUID, run_id: UUID, stage_id: str) -> JobExecuted:
        """Execute the job of one stage, due or not: for a queue outside that names what to do. Safe to repeat.

        Raises:
            JobNotAvailableError: the stage has no job, or somebody has leased it.
            TenantSuspendedError: the tenant is suspended.
            RateLimitedError: as many of the tenant's jobs run as may.
        """
        async with self._execution(tenant_id) as who:
            async with who.transactions() as tx:
                job = await claim_named(JobExecute(run_id, stage_id), who.worker_id, tx, who.scope)
            if isinstance(job, GhostJob):
                return unexecuted(job)
            async with self._beating(who, [job]):
                return await execute_leased(job, who)

    async def process_available_jobs(self, tenant_id: UUID, max_jobs: int = 10, concurrency: int = 10) -> Processed:
        """Start what is due of a tenant and execute it, `concurrency` bodies at a time, at most `max_jobs` of them."""
        outcomes: Counter[str] = Counter()
        async with self._execution(tenant_id) as who:
            while (left := max_jobs - outcomes.total()) > 0:
                async with who.transactions() as tx:
                    tick = WorkerTick(who.worker_id, min(left, concurrency))
                    ticked = await self.kernel.dispatch(tick, tx)
                if not ticked.leased:
                    return Processed(outcomes.total(), outcomes, has_more=False)
                async with self._beating(who, ticked.leased), asyncio.TaskGroup() as tasks:
                    made = [tasks.create_task(execute_leased(job, who)) for job in ticked.leased]
                outcomes.update(task.result().outcome for task in made)
        return Processed(outcomes.total(), outcomes, has_more=True)

    async def run_to_completion(self, tenant_id: UUID, run_id: UUID, max_jobs: int = 50) -> RunCompletion:
        """Bring one run as far as it goes, in one transaction: all of it is kept, or nothing.

        Raises:
            RunNotFoundError: the tenant has no such run.
        """
        async with Database(self.settings) as database, database.transaction(tenant_id) as tx:
            return await self.kernel.bound_to(tx).run_to_completion(run_id, max_jobs)

    async def run_maintenance_tick(self, tenant_id: UUID, *, purge_before: datetime | None = None) -> Maintained:
        """Promote what came due, take lapsed leases back, heal or fail stuck runs, expire keys; purge if asked to."""
        kernel = self.kernel
        async with Database(self.settings) as database:
            async with database.transaction(tenant_id) as tx:
                ticked = await kernel.dispatch(WorkerTick(f"serverless-{uuid4()}", 0), tx)
            async with database.transaction(tenant_id) as tx:
                stuck = await kernel.dispatch(RunReapStuck(), tx)
            async with database.transaction(tenant_id) as tx:
                await kernel.dispatch(IdempotencyExpire(), tx)
                purged: Sequence[UUID] = ()
                if purge_before is not None:
                    purged = (await kernel.dispatch(RunPurge(purge_before, limit=PURGE_PAGE), tx)).run_ids
        return Maintained(ticked.promoted, len(ticked.reaped.leases), stuck.healed, stuck.failed, len(purged))

    @asynccontextmanager
    async def _execution(self, tenant_id: UUID) -> AsyncIterator[Execution]:
        async with Database(self.settings) as database:
            scope = self.kernel.scope
            yield Execution(f"serverless-{uuid4()}", tenant_id, lambda: database.transaction(tenant_id), scope)

    @asynccontextmanager
    async def _beating(self, who: Execution, jobs: Sequence[LeasedJob]) -> AsyncIterator[None]:
        """Keep the leases alive while the bodies run."""
        beating = asyncio.get_running_loop().create_task(self._beat(who, [job.fence for job in jobs]))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, who: Execution, fences: Sequence[Fence]) -> None:
        every_s = min(self.limits.stale_lease_threshold / 10, self.limits.replay_margin / 2).total_seconds()
        while True:
            await asyncio.sleep(every_s)
            try:
                async with who.transactions() as tx:
                    await self.kernel.dispatch(JobHeartbeat(fences), tx)
            except Exception as error:  # noqa: BLE001 - it must go on for as long as the bodies do
                # The leases outlast several rounds.
                logger.warning(
                    "heartbeat_failed", extra={"tenant_id": str(who.tenant_id), "error": type(error).__name__}
                )
