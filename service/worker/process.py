"""`tenantry worker` in one process.

Settings, registry, readiness, the host, and a graceful end on SIGTERM or SIGINT.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import threading
from contextlib import AsyncExitStack

import uvloop

from kernel import Registry
from service.memory import collect_rarely
from service.probes import NotReadyError, ReadinessGate
from service.settings import Settings, load_registry
from service.telemetry import current, set_up
from service.worker.executor import LET_GO_S
from service.worker.host import LAST_WRITES_S, WorkerHost
from service.worker.metrics import HostMetrics
from service.worker.status import serve_status
from tenancy import Database, DatabaseSettings, DatabaseUnavailableError

logger = logging.getLogger(__name__)
ASK_AGAIN_S = 1.0
# Pools of a worker: ticks, flushes and watches share the first; finding tenants has one connection, held with no other.
WORK_POOL = 8
DISPATCH_POOL = 1
# What closing pools and ports may take at the end of a stop.
MARGIN_S = 3.0


def run_worker(settings: Settings) -> int:
    """Execute stages in this very process until SIGTERM or SIGINT; return the exit status, 0 after a graceful stop.

    Raises:
        SettingsError: a setting is missing or wrong.
        UnsafeRoleError: a login could read past the policies.
    """
    registry = load_registry(settings.require("workflows"))
    databases = worker_databases(settings)
    collect_rarely()
    set_up("tenantry-worker", settings.trace_tenant_header, registry.modules)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        host = runner.run(_run(settings, registry, databases))
        current().close()
        if host.executor is not None and host.executor.abandoned:
            # A body that does not stop holds its thread or the loop, and the interpreter would wait for it for ever.
            _leave()
    return 0


def _leave() -> None:
    logging.shutdown()
    os._exit(0)


def _leave_late() -> None:
    logger.warning("worker_left_without_its_leases")
    # Where every thread stands: this is a body that blocks the loop, or a bug of ours.
    faulthandler.dump_traceback(all_threads=True)
    _leave()


def _stop_on_signals(stop: asyncio.Event, limit_s: float) -> None:
    """Set `stop` on SIGTERM and SIGINT; `limit_s` later the process leaves, whatever blocks its loop or connections."""
    loop = asyncio.get_running_loop()
    watchdog = threading.Timer(limit_s, _leave_late)
    watchdog.daemon = True

    def ask(_number: int, _frame: object) -> None:
        # Not the loop's own handlers: a body that blocks the loop would block them too.
        if watchdog.ident is None:
            watchdog.start()
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)


def worker_databases(settings: Settings) -> tuple[DatabaseSettings, DatabaseSettings]:
    """Return how a worker reaches the database: for its tenants' work, and for finding tenants that have some.

    Raises:
        SettingsError: one of the two URLs is not set.
    """

    def database(name: str, pool_size: int) -> DatabaseSettings:
        return DatabaseSettings(
            settings.require(name),
            prepared_statements=settings.prepared_statements,
            pool_size=pool_size,
            max_lifetime=settings.pool_max_lifetime.total_seconds(),
        )

    return database("database_url", WORK_POOL), database("dispatcher_database_url", DISPATCH_POOL)


async def _run(
    settings: Settings, registry: Registry, databases: tuple[DatabaseSettings, DatabaseSettings]
) -> WorkerHost:
    stop = asyncio.Event()
    graces = settings.shutdown_grace + settings.abort_grace
    _stop_on_signals(stop, graces.total_seconds() + LET_GO_S + LAST_WRITES_S + MARGIN_S)
    work, dispatch = databases
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database(work))
        dispatch_database = await stack.enter_async_context(Database(dispatch))
        gate = ReadinessGate(database)
        host = WorkerHost(settings, registry, database, dispatch_database)
        metrics = HostMetrics(host)
        current().measure(metrics.observe, metrics.refresh)
        if settings.worker_http_port is not None:
            await stack.enter_async_context(serve_status(settings, gate, host, metrics, stop))
        await run_host(host, gate, dispatch_database, stop)
        return host


async def run_host(host: WorkerHost, gate: ReadinessGate, dispatch_database: Database, stop: asyncio.Event) -> None:
    """Wait until the database is what this build needs, then work until told to stop."""
    told: str | None = None
    while not stop.is_set():
        try:
            await gate.check()
            await dispatch_database.check_login()
            break
        except NotReadyError as refusal:
            if str(refusal) != told:
                told = str(refusal)
                logger.warning("worker_not_ready: %s", told)
        except DatabaseUnavailableError:
            logger.warning("worker_not_ready: the dispatcher's database cannot be reached")
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await stop.wait()
        except TimeoutError:
            continue
    if not stop.is_set():
        logger.info("worker_started", extra={"worker_id": host.worker_id})
        await host.run(stop)
