"""Writes what bodies say while they run: log lines and progress, once a second, off the bodies' path.

What a body said last, its settle writes.
"""

import asyncio
import logging
from collections import defaultdict
from uuid import UUID

from kernel import JobReport, Kernel, Progress, log_rows
from service.worker.executor import Execution, Executor
from tenancy import Database, DatabaseUnavailableError

logger = logging.getLogger(__name__)
EVERY_S = 1.0


class Reporter:
    """Drains the journals of executions under way, and of those that ended since the last round."""

    def __init__(self, database: Database, kernel: Kernel, executor: Executor) -> None:
        self._database = database
        self._kernel = kernel
        self._executor = executor

    async def run(self) -> None:
        """Report every second until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self.report()
        finally:
            await asyncio.shield(self.report())

    async def report(self) -> None:
        """Write what the journals hold, one transaction a tenant."""
        by_tenant: dict[UUID, list[Execution]] = defaultdict(list)
        for execution in self._executor.take_reportable():
            by_tenant[execution.tenant_id].append(execution)
        for tenant_id, executions in by_tenant.items():
            command = _report_of(executions)
            if not command.logs and not command.progress:
                continue
            try:
                async with self._database.transaction(tenant_id) as tx:
                    await self._kernel.dispatch(command, tx)
            except DatabaseUnavailableError:
                logger.warning("reports_dropped", extra={"lines": len(command.logs)})
                # The others would each wait in vain for as long.
                return
            except Exception:
                logger.exception("report_failed", extra={"tenant_id": str(tenant_id)})


def _report_of(executions: list[Execution]) -> JobReport:
    logs: list[dict[str, object]] = []
    progress: list[Progress] = []
    for execution in executions:
        job = execution.job
        logs += log_rows(job, execution.journal.drain_logs())
        latest = execution.journal.take_progress()
        if latest is not None:
            progress.append(Progress(job.fence, latest.fraction, latest.message))
    return JobReport(logs, progress)
