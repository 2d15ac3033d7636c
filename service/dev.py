"""API and worker in one process and one loop, for `tenantry dev`: `python -m service.dev`, configured by settings."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

import uvicorn

from kernel import Registry
from service.app import create_app
from service.cli.output import complain
from service.settings import Settings, SettingsError, load_registry
from service.worker.host import WorkerHost
from tenancy import Database, DatabaseSettings

_DRAIN_SECONDS = 2
_DISPATCHER_POOL = 1


class _Server(uvicorn.Server):
    """Leaves the process's signals to us: one signal stops the worker too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, worker_url: str, registry: Registry) -> None:
    """Serve the API and execute stages until SIGTERM or SIGINT, then stop both gracefully."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    configuration = uvicorn.Config(
        create_app(settings, registry),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    server = _Server(configuration)
    worker_settings = replace(settings, database_url=worker_url)
    async with (
        Database(DatabaseSettings(worker_url)) as database,
        Database(
            DatabaseSettings(settings.require("dispatcher_database_url"), pool_size=_DISPATCHER_POOL)
        ) as dispatcher,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(_serve_http(server, stop))
        tasks.create_task(WorkerHost(worker_settings, registry, database, dispatcher).run(stop))
        await stop.wait()
        server.should_exit = True


async def _serve_http(server: uvicorn.Server, stop: asyncio.Event) -> None:
    try:
        await server.serve()
    finally:
        stop.set()


def main() -> None:
    """Read the settings, serve, and end with 0, or 1 and a line on stderr."""
    logging.basicConfig(level=logging.WARNING)
    try:
        settings = Settings.from_environment(os.environ)
        registry = load_registry(settings.require("workflows"))
    except SettingsError as error:
        complain(str(error))
        sys.exit(1)
    asyncio.run(serve(settings, os.environ["TENANTRY_DEV_WORKER_DATABASE_URL"], registry))


if __name__ == "__main__":
    main()
