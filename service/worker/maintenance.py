"""The slow rounds: stuck runs, retention, expired keys; a page of tenants at a time, from cursors that wrap around."""

import asyncio
import logging
import random
from collections.abc import Awaitable
from datetime import datetime
from uuid import UUID

from kernel import IdempotencyExpire, Kernel, RunPurge, RunReapStuck
from service.settings import Settings
from service.spans import prune
from service.worker.dispatcher import Dispatcher
from tenancy import Database, DatabaseUnavailableError, load_sql

logger = logging.getLogger(__name__)
SQL = load_sql(__file__)
PURGE_PAGE = 500
# Of old spans, at most, each time that a tenant has its turn.
PRUNE_PAGES = 20


class Maintenance:
    """Looks after tenants at rest; several workers may do the same at once, none waits for another."""

    def __init__(self, settings: Settings, kernel: Kernel, database: Database, dispatcher: Dispatcher) -> None:
        self._settings = settings
        self._kernel = kernel
        self._database = database
        self._dispatcher = dispatcher

    async def run(self) -> None:
        """Do a round every maintenance interval, jittered, until cancelled."""
        interval_s = self._settings.maintenance_interval.total_seconds()
        while True:
            await asyncio.sleep(interval_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
            try:
                await self.round()
            except DatabaseUnavailableError:
                continue
            except Exception:
                logger.exception("maintenance_failed")

    async def round(self) -> None:
        """Reap stuck runs of the next tenants that run something, and purge for the next of all tenants."""
        for tenant_id in await self._dispatcher.running_tenants():
            await self._guarded(self._reap_stuck(tenant_id), tenant_id)
        for tenant_id in await self._dispatcher.all_tenants():
            await self._guarded(self._purge(tenant_id), tenant_id)

    async def _guarded(self, work: Awaitable[None], tenant_id: UUID) -> None:
        try:
            await work
        except DatabaseUnavailableError:
            raise
        except Exception:
            logger.exception("maintenance_failed", extra={"tenant_id": str(tenant_id)})

    async def _reap_stuck(self, tenant_id: UUID) -> None:
        after: UUID | None = None
        while True:
            async with self._database.transaction(tenant_id) as tx:
                reaped = await self._kernel.dispatch(RunReapStuck(after=after), tx)
            if reaped.healed or reaped.failed:
                logger.warning(
                    "stuck_runs", extra={"tenant_id": str(tenant_id), "healed": reaped.healed, "failed": reaped.failed}
                )
            after = reaped.next_after
            if after is None:
                return

    async def _purge(self, tenant_id: UUID) -> None:
        async with self._database.transaction(tenant_id) as tx:
            await self._kernel.dispatch(IdempotencyExpire(), tx)
            kept = await tx.fetch_one(SQL["retention"])
            if kept is None:
                return
            older_than: datetime = kept["now"] - self._settings.span_retention
            has_more = await prune(tx, older_than)
            retention = kept["retention"] if kept["retention"] is not None else self._settings.retention
            if retention:
                await self._kernel.dispatch(RunPurge(kept["now"] - retention, limit=PURGE_PAGE), tx)
        # There may be thousands of tenants before this one's next turn, and each run may have left a thousand spans.
        for _ in range(PRUNE_PAGES if has_more else 0):
            async with self._database.transaction(tenant_id) as tx:
                if not await prune(tx, older_than):
                    return
