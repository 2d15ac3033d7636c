"""The worker host: the one loop that finds due tenants, ticks them and keeps all else going until it is stopped.

Everything a process owns lives in one task group: the dispatch loop, the ticks, the bodies, the flushes, the watches.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic, time_ns
from uuid import UUID, uuid4

from kernel import (
    Fence,
    Heartbeat,
    JobRelease,
    JobsReleased,
    Kernel,
    KernelLimits,
    Registry,
    RunStatus,
    Ticked,
    WorkerTick,
)
from kernel.lanes import Pair
from service.settings import Settings
from service.telemetry import current
from service.worker.dispatcher import Dispatcher, DueTenant, share_out
from service.worker.executor import LET_GO_S, Executor, ExecutorLimits
from service.worker.floors import FloorMemory
from service.worker.heartbeat import HeartbeatThread, replay_margin
from service.worker.ledger_writer import LedgerWriter, WriterHooks
from service.worker.maintenance import Maintenance
from service.worker.reporter import Reporter
from service.worker.tracing import tell_tick
from service.worker.watch import CancellationWatch
from tenancy import Database, DatabaseUnavailableError, load_sql

logger = logging.getLogger(__name__)
SQL = load_sql(__file__)
FOUND_RECENTLY_S = 1.0
LAPSED_EVERY_S = 1.0
SHORTEST_COOLDOWN_S = 0.025
LONGEST_COOLDOWN_S = 1.0
CONCURRENT_TICKS = 4
LAST_WRITES_S = 5.0


@dataclass(slots=True)
class TenantState:
    """What the host remembers of a tenant: whether it is capped or owed a release, how long to leave it alone."""

    is_capped: bool = False
    is_ticking: bool = False
    needs_release: bool = False
    cooldown_s: float = 0.0
    not_before: float = 0.0


@dataclass(slots=True)
class Pulse:
    """When the host last did what; monotonic seconds."""

    found_at: float = 0.0
    lapsed_at: float = 0.0
    ticks: int = 0
    is_database_away: bool = False
    due: list[DueTenant] = field(default_factory=list[DueTenant])


class WorkerHost:
    """Executes the stages of a registry's workflows for all tenants that have work due."""

    def __init__(self, settings: Settings, registry: Registry, database: Database, dispatch_database: Database) -> None:
        self.worker_id = f"worker-{uuid4()}"
        self.limits = KernelLimits(
            max_payload_bytes=settings.max_payload_bytes,
            stale_lease_threshold=settings.stale_lease_threshold,
            job_absolute_timeout=settings.job_absolute_timeout,
            replay_margin=replay_margin(settings.heartbeat_interval),
        )
        self.kernel = Kernel(registry, limits=self.limits)
        self.pulse = Pulse()
        self._settings = settings
        self._database = database
        self._dispatcher = Dispatcher(dispatch_database, registry, self.limits)
        self._tenants: dict[UUID, TenantState] = {}
        self._floors = FloorMemory()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.executor: Executor | None = None
        self._writer: LedgerWriter | None = None

    def wake(self, tenant_id: UUID, started: Pair | None = None) -> None:
        """Look at once for this tenant's work, or only for runs of the workflow and version that it `started`.

        A start in this process need not wait for a poll.
        """
        self._floors.tell(tenant_id, started)
        self._wake.set()

    async def depth(self) -> dict[str, float]:
        """Return what `/metrics` says of the queue over all tenants."""
        return await self._dispatcher.depth()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then let bodies finish, abort the rest, give leases back and return."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            executor = self.executor = Executor(ExecutorLimits.of(self._settings), tasks)
            hooks = WriterHooks(self._lease_ahead, self._outcome_unknown)
            self._writer = executor.writer = LedgerWriter(self.kernel, self._database, self.worker_id, hooks, tasks)
            executor.on_room = self._room_made
            heartbeat = HeartbeatThread(
                self._database.settings,
                self._settings.heartbeat_interval.total_seconds(),
                self._leases,
                self._heard,
            )
            heartbeat.start()
            background = [
                tasks.create_task(loop)
                for loop in (
                    CancellationWatch(self._database, executor).run(),
                    Reporter(self._database, self.kernel, executor).run(),
                    current().run(self._database),
                    Maintenance(self._settings, self.kernel, self._database, self._dispatcher).run(),
                )
            ]
            dispatching = tasks.create_task(self._dispatch())
            try:
                await stop.wait()
                await self._drain(executor, dispatching)
            finally:
                for task in (*background, dispatching):
                    task.cancel()
                heartbeat.stop()
                executor.close()

    # -- finding work

    async def _dispatch(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                found = await self._round()
                self.pulse.is_database_away = False
            except DatabaseUnavailableError as error:
                if not self.pulse.is_database_away:
                    logger.warning("database_away", extra={"error": type(error).__name__})
                self.pulse.is_database_away = True
                await self._rest()
                continue
            except Exception:
                # Whatever the server refuses just now, the bodies under way want their outcomes stored.
                logger.exception("dispatch_failed")
                await self._rest()
                continue
            if found:
                self.pulse.found_at = monotonic()
            else:
                await self._pause()

    async def _rest(self) -> None:
        await asyncio.sleep(random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret

    async def _pause(self) -> None:
        is_busy = monotonic() - self.pulse.found_at < FOUND_RECENTLY_S
        longest_s = self._settings.poll_interval_max.total_seconds()
        interval_s = min(self._settings.poll_interval_min.total_seconds(), longest_s) if is_busy else longest_s
        try:
            async with asyncio.timeout(interval_s * random.uniform(0.8, 1.2)):  # noqa: S311 - jitter, not a secret
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _round(self) -> bool:
        """Ask who has work and tick those tenants; returns whether anything was found."""
        assert self.executor is not None
        now = monotonic()
        lapsed: list[UUID] = []
        if now - self.pulse.lapsed_at >= LAPSED_EVERY_S:
            self.pulse.lapsed_at = now
            lapsed = await self._dispatcher.lapsed()
        elif self.executor.room <= 0:
            return False
        # Taken at its word while nobody is known to be due: a busy teller keeps nobody else waiting.
        found_due = await self._floors.due(self._dispatcher, now, is_told=not self.pulse.due)
        self.pulse.due = [tenant for tenant in found_due if self._may_tick(tenant.tenant_id, now)]
        shares = share_out(self.pulse.due, self.executor.room, self.executor.by_tenant)
        waiting = {tenant.tenant_id for tenant in self.pulse.due if tenant.is_waiting}
        asked = {*shares, *waiting, *lapsed}
        asked.update(tenant_id for tenant_id, state in self._tenants.items() if state.needs_release)
        if not asked:
            return False
        gate = asyncio.Semaphore(CONCURRENT_TICKS)
        # Each to its end, whatever becomes of the others: one cancelled at COMMIT leaves leases that nobody knows.
        found = await asyncio.gather(
            *(
                self._tick(
                    WorkerTick(
                        self.worker_id,
                        shares.get(tenant_id, 0),
                        reap=tenant_id in lapsed,
                        promote=tenant_id in waiting,
                    ),
                    tenant_id,
                    gate,
                )
                for tenant_id in sorted(asked, key=lambda tenant_id: -shares.get(tenant_id, 0))
            )
        )
        if None in found:
            raise DatabaseUnavailableError("the database went away under a tick")
        return any(found)

    def _may_tick(self, tenant_id: UUID, now: float) -> bool:
        state = self._tenants.get(tenant_id)
        return state is None or (state.not_before <= now and not state.is_ticking)

    async def _tick(self, wanted: WorkerTick, tenant_id: UUID, gate: asyncio.Semaphore) -> bool | None:
        """Tick one tenant in a transaction of its own; a failure is its own, None says that the database is away."""
        assert self.executor is not None
        state = self._tenants.setdefault(tenant_id, TenantState())
        if state.is_ticking:
            return False
        state.is_ticking = True
        began_ns = time_ns()
        try:
            async with gate:
                if state.needs_release:
                    await self._release(tenant_id, state)
                # Flushes lease ahead in the meantime: the room is what there is now.
                command = self._floors.aim(replace(wanted, limit=min(wanted.limit, self.executor.room)), tenant_id)
                async with self._database.transaction(tenant_id) as tx:
                    ticked = await self.kernel.dispatch(command, tx)
                self._floors.note(tenant_id, command, ticked)
        except DatabaseUnavailableError:
            # What it leased may be ours without our knowing, and what is ours may wait for its reply.
            state.needs_release = True
            return None
        except asyncio.CancelledError:
            state.needs_release = True
            raise
        except Exception:
            # A tenant whose rows cannot be read must not stop the others: it is left alone for a while.
            logger.exception("tick_failed", extra={"tenant_id": str(tenant_id)})
            self._cool(state, LONGEST_COOLDOWN_S)
            return False
        finally:
            state.is_ticking = False
        if is_found := self._take(tenant_id, state, ticked):
            tell_tick(tenant_id, ticked, began_ns)
        return is_found

    def _take(self, tenant_id: UUID, state: TenantState, ticked: Ticked) -> bool:
        assert self.executor is not None
        state.is_capped = ticked.is_capped
        self.pulse.ticks += 1
        self.executor.start(tenant_id, ticked.leased)
        is_found = bool(
            ticked.leased or ticked.promoted or ticked.reaped.leases or ticked.runs.refused or ticked.ghosts
        )
        if is_found:
            state.cooldown_s = state.not_before = 0.0
        else:
            # Due, but capped, suspended or held by others: asking again at once would only burn time.
            self._cool(state, max(state.cooldown_s * 2, SHORTEST_COOLDOWN_S))
        return is_found

    def _cool(self, state: TenantState, cooldown_s: float) -> None:
        state.cooldown_s = min(cooldown_s, LONGEST_COOLDOWN_S)
        state.not_before = monotonic() + state.cooldown_s

    def _room_made(self, tenant_id: UUID) -> None:
        state = self._tenants.get(tenant_id)
        if state is not None:
            state.cooldown_s = state.not_before = 0.0
            if not state.needs_release and not state.is_ticking and not self._is_known_busy(tenant_id):
                del self._tenants[tenant_id]
        if self.pulse.due:
            self._wake.set()

    def _is_known_busy(self, tenant_id: UUID) -> bool:
        return self.executor is not None and self.executor.by_tenant[tenant_id] > 0

    # -- leases

    def _lease_ahead(self, tenant_id: UUID, settling: int) -> int:
        """Return how many jobs a settle of this tenant may lease ahead: its own slots, and what is nobody else's."""
        assert self.executor is not None
        if self._is_stopping:
            return 0
        state = self._tenants.get(tenant_id)
        if state is not None and state.is_capped:
            return settling
        others = [tenant for tenant in self.pulse.due if tenant.tenant_id != tenant_id and tenant.is_ready]
        room = self.executor.room + settling
        if not others:
            return room
        weights = {tenant.tenant_id: tenant.weight for tenant in self.pulse.due}
        mine = weights.get(tenant_id, 1)
        total = sum(weights.values()) + (0 if tenant_id in weights else mine)
        share = max(self.executor.concurrency * mine // total, 1)
        return max(min(share - self.executor.by_tenant[tenant_id] + settling, room), 0)

    def _outcome_unknown(self, tenant_id: UUID) -> None:
        self._tenants.setdefault(tenant_id, TenantState()).needs_release = True
        self._wake.set()

    async def _release(self, tenant_id: UUID, state: TenantState) -> None:
        """Give back what the database says this worker has and the worker does not know.

        What was leased before the clock is read, by a flush that has ended since, is known or was never heard of.
        Called by the only tick of this tenant's, so nothing else can lease.
        """
        assert self.executor is not None
        assert self._writer is not None
        state.needs_release = False
        try:
            async with self._database.transaction(tenant_id) as tx:
                clock = await tx.fetch_one(SQL["clock"])
            if clock is not None:
                # Whatever is settled from here on leases at a later time, and so is left alone.
                self._writer.clock.observe(clock["now"])
            await self._writer.written(tenant_id)
            released = await self._release_before(tenant_id, clock["now"] if clock is not None else None)
        except BaseException:
            state.needs_release = True
            raise
        if released.released:
            logger.info("leases_given_back", extra={"tenant_id": str(tenant_id), "leases": len(released.released)})
        if released.busy:
            state.needs_release = True

    async def _release_before(self, tenant_id: UUID, before: datetime | None) -> JobsReleased:
        assert self.executor is not None
        known = [fence for fence, execution in self.executor.executions.items() if execution.tenant_id == tenant_id]
        async with self._database.transaction(tenant_id) as tx:
            return await self.kernel.dispatch(JobRelease(self.worker_id, known, before), tx)

    def _leases(self) -> dict[UUID, list[Fence]]:
        """Return the leases to keep, by tenant. Called in the heartbeat thread: takes one copy of the dictionary."""
        leases: dict[UUID, list[Fence]] = {}
        if self.executor is not None:
            for fence, execution in self.executor.executions.copy().items():
                leases.setdefault(execution.tenant_id, []).append(fence)
        return leases

    def _heard(self, _tenant_id: UUID, answers: Sequence[Heartbeat]) -> None:
        """Take the heartbeat thread's answers over to the loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._react, answers)

    def _react(self, answers: Iterable[Heartbeat]) -> None:
        assert self.executor is not None
        for answer in answers:
            execution = self.executor.executions.get(answer.fence)
            if execution is None or execution.is_settling:
                continue
            if answer.run_status is not RunStatus.RUNNING:
                self.executor.abort(execution, "cancelled")
            elif not answer.lease_held:
                self.executor.abort(execution, "lease-lost")

    # -- stopping

    async def _drain(self, executor: Executor, dispatching: asyncio.Task[None]) -> None:
        """Claim nothing more, let bodies finish within the grace, abort the rest and wait until all leases are back."""
        self._is_stopping = True
        self._wake.set()
        logger.info("worker_stopping", extra={"executing": len(executor.executions)})
        try:
            async with asyncio.timeout(self._settings.shutdown_grace.total_seconds()):
                # Shielded: cancelling a tick's statement may take seconds, in which no body would be told to stop.
                await asyncio.shield(dispatching)
                await executor.idle()
        except TimeoutError:
            executor.abort_all("shutdown")
        await self._let_go(executor, dispatching)

    async def _let_go(self, executor: Executor, dispatching: asyncio.Task[None]) -> None:
        """Wait for the last tick and the last outcomes; what a database that is away does not take back lapses."""
        assert self._writer is not None
        try:
            async with asyncio.timeout(self._settings.abort_grace.total_seconds() + LET_GO_S + LAST_WRITES_S):
                await asyncio.shield(dispatching)
                await executor.idle()
                for tenant_id, state in list(self._tenants.items()):
                    if state.needs_release:
                        await self._release(tenant_id, state)
        except (TimeoutError, DatabaseUnavailableError):
            logger.warning("worker_stopped_with_leases", extra={"executing": len(executor.executions)})
            executor.give_up()
            self._writer.give_up()
