"""The API as a process: one uvicorn server in the very process that was started, ended gracefully by a signal."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator

import uvicorn
from litestar import Litestar

from kernel import Registry
from service.app import create_app
from service.http.routing import Api, WorkDue
from service.listening import listen
from service.memory import collect_rarely
from service.probes import RECHECK_AFTER_S, NotReadyError, ReadinessGate
from service.settings import Settings, load_registry
from service.telemetry import current, set_up
from tenancy import UnsafeRoleError

if sys.platform != "win32":
    import uvloop

_log = logging.getLogger("tenantry.process")


class ApiServer(uvicorn.Server):
    """uvicorn, but signals only ask it to stop: its own handler would end the process by the signal afterwards."""

    def __init__(self, app: Litestar, settings: Settings) -> None:
        self._api: Api = app.state.api
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            lifespan="on",
            server_header=False,
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=max(1, int(settings.shutdown_grace.total_seconds())),
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs the server."""
        yield

    def stop(self) -> None:
        """Ask the server to end: waiting requests and streams are answered at once, the others are finished."""
        self._api.stopping.set()
        self.should_exit = True


async def serve_api(
    settings: Settings, registry: Registry, stop: asyncio.Event, work_due: WorkDue | None = None
) -> None:
    """Serve until `stop` is set; login and schema are checked as soon as the database can be reached.

    `work_due` is told of a tenant, and of a new run's workflow and version, when work has been committed: a worker in
    the same process need not wait for its poll.

    Raises:
        UnsafeRoleError: the login could pass row-level security by.
        OSError: the address cannot be listened on.
    """
    app = create_app(settings, registry, work_due)
    server = ApiServer(app, settings)
    api: Api = app.state.api
    # Closed here too: refused before the server runs, a pool that is still connecting would outlive the loop's end.
    async with api.database:
        # Not ready is no reason to leave: nothing is let through the gate, and the login is checked when it can be.
        is_ready = await _is_ready(api.gate)
        with listen(settings.host, settings.port) as listener:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_stop_when(stop, server))
                check = None if is_ready else tasks.create_task(_find_refusal(api.gate, server))
                try:
                    await server.serve(sockets=[listener])
                finally:
                    watch.cancel()
                    if check is not None:
                        check.cancel()
    if check is not None and not check.cancelled() and (refusal := check.result()) is not None:
        raise refusal


def run_api(settings: Settings) -> int:
    """Run the API until SIGTERM or SIGINT and return the exit status: 0 after a graceful stop, 1 when refused.

    Raises:
        SettingsError: a setting is missing, or the workflows cannot be loaded.
    """
    settings.require("database_url")
    registry = load_registry(settings.require("workflows"))
    collect_rarely()
    set_up("tenantry-api", settings.trace_tenant_header, registry.modules)
    loop_factory = None if sys.platform == "win32" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        status = runner.run(_run(settings, registry))
    current().close()
    return status


async def _run(settings: Settings, registry: Registry) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await serve_api(settings, registry, stop)
    except (UnsafeRoleError, OSError) as refused:
        sys.stderr.write(f"tenantry: {refused}\n")
        return 1
    return 0


async def _is_ready(gate: ReadinessGate) -> bool:
    try:
        await gate.check()
    except NotReadyError as refusal:
        _log.warning("api_not_ready: %s", refusal)
        return False
    return True


async def _find_refusal(gate: ReadinessGate, server: ApiServer) -> UnsafeRoleError | None:
    """Look until the database is ready, whether anybody asks or not; end the server when its login is refused."""
    try:
        while True:
            await asyncio.sleep(RECHECK_AFTER_S)
            with contextlib.suppress(NotReadyError):
                await gate.check()
                return None
    except UnsafeRoleError as refusal:
        server.stop()
        return refusal


async def _stop_when(stop: asyncio.Event, server: ApiServer) -> None:
    await stop.wait()
    server.stop()
