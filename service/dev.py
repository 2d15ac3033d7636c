"""API and worker in one process and one loop, for `tenantry dev`: `python -m service.dev`, configured by settings."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Final

import uvloop

from kernel import Registry
from service.cli.dev import WORKER_URL
from service.cli.logs import log_lines
from service.cli.output import complain
from service.cli.refusals import explain
from service.probes import ReadinessGate
from service.process import serve_api
from service.settings import Settings, load_registry
from service.telemetry import current, set_up
from service.worker.host import WorkerHost
from service.worker.metrics import HostMetrics
from service.worker.process import run_host, worker_databases
from tenancy import Database

# A stream that somebody watches must not keep the old code alive for longer.
DRAIN: Final = timedelta(seconds=2)


async def serve(settings: Settings, worker_url: str, registry: Registry) -> None:
    """Serve the API and execute stages until SIGTERM or SIGINT, then stop both gracefully.

    Raises:
        ExceptionGroup: of what stopped one of them; the other is stopped with it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    worker_settings = replace(settings, database_url=worker_url)
    work, dispatch = worker_databases(worker_settings)
    async with Database(work) as database, Database(dispatch) as dispatcher, asyncio.TaskGroup() as tasks:
        host = WorkerHost(worker_settings, registry, database, dispatcher)
        metrics = HostMetrics(host)
        current().measure(metrics.observe, metrics.refresh)
        tasks.create_task(serve_api(replace(settings, shutdown_grace=DRAIN), registry, stop, host.wake))
        tasks.create_task(run_host(host, ReadinessGate(database), dispatcher, stop))


def main() -> None:
    """Read the settings, serve, and end with 0, or 1 and a line on stderr."""
    log_lines(level="warning")
    try:
        settings = Settings.from_environment(os.environ)
        registry = load_registry(settings.require("workflows"))
        set_up("tenantry", settings.trace_tenant_header, registry.modules)
        uvloop.run(serve(settings, os.environ[WORKER_URL], registry))
        current().close()
    except Exception as error:  # noqa: BLE001 - the outermost frame: what comes here has no other handler
        for line in explain(error):
            complain(line)
        sys.exit(1)


if __name__ == "__main__":
    main()
