"""A worker host inside the test, so that a test can stand between it and its database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kernel import Registry
from service.settings import Settings
from service.worker.host import WorkerHost
from service.worker.process import worker_databases
from tenancy import Database
from tests.support import stress
from tests.support.environment import DatabaseUrls


def settings(urls: DatabaseUrls, **changes: Any) -> Settings:
    """Return settings with leases that outlast the test: what is free before was given back, not reaped."""
    quick = Settings(
        database_url=urls.worker,
        dispatcher_database_url=urls.dispatcher,
        shutdown_grace=timedelta(seconds=1),
        abort_grace=timedelta(seconds=1),
        heartbeat_interval=timedelta(seconds=1),
    )
    return replace(quick, **changes)


@asynccontextmanager
async def running(wanted: Settings, registry: Registry = stress.REGISTRY) -> AsyncIterator[WorkerHost]:
    """Run a host until the context ends; its end must be in bounded time."""
    work, dispatch = worker_databases(wanted)
    async with Database(work) as database, Database(dispatch) as dispatch_database:
        host = WorkerHost(wanted, registry, database, dispatch_database)
        stop = asyncio.Event()
        task = asyncio.create_task(host.run(stop))
        try:
            yield host
        finally:
            stop.set()
            async with asyncio.timeout(20):
                await task
