"""Tells bodies within a second that their run is over: one indexed read a tenant for the jobs that look idle."""

import asyncio
import logging
from collections import defaultdict
from time import monotonic
from uuid import UUID

from service.worker.executor import Execution, Executor
from tenancy import Database, DatabaseUnavailableError, load_sql

logger = logging.getLogger(__name__)
SQL = load_sql(__file__)
EVERY_S = 1.0


class CancellationWatch:
    """Watches the runs of the executions that have lasted longer than a second.

    Shorter ones settle and hear it then.
    """

    def __init__(self, database: Database, executor: Executor) -> None:
        self._database = database
        self._executor = executor

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            for tenant_id, executions in self._watched().items():
                try:
                    await self._look(tenant_id, executions)
                except DatabaseUnavailableError:
                    break
                except Exception:
                    logger.exception("watch_failed", extra={"tenant_id": str(tenant_id)})

    def _watched(self) -> dict[UUID, list[Execution]]:
        watched: dict[UUID, list[Execution]] = defaultdict(list)
        now = monotonic()
        for execution in self._executor.executions.values():
            if now - execution.began_at >= EVERY_S and not execution.is_settling and not execution.abort.aborted:
                watched[execution.tenant_id].append(execution)
        return watched

    async def _look(self, tenant_id: UUID, executions: list[Execution]) -> None:
        run_ids = sorted({execution.job.run_id for execution in executions})
        async with self._database.transaction(tenant_id) as tx:
            rows = await tx.fetch_all(SQL["not_running"], run_ids=run_ids)
        over = {row["run_id"] for row in rows}
        for execution in executions:
            if execution.job.run_id in over:
                self._executor.abort(execution, "cancelled")
