"""Writes what bodies say while they run: log lines and progress, once a second, off the bodies' path.

What a body said last, its settle writes.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from uuid import UUID

from kernel import JobReport, Kernel, LogRow, Progress, log_rows
from service.worker.executor import Execution, Executor
from tenancy import Database, DatabaseUnavailableError

logger = logging.getLogger(__name__)
EVERY_S = 1.0
# A statement that adds this many is followed by another one.
MAX_CHARACTERS = 4_194_304


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
        """Write what the journals hold, one transaction a tenant, or more where they hold much."""
        by_tenant: dict[UUID, list[Execution]] = defaultdict(list)
        for execution in self._executor.take_reportable():
            by_tenant[execution.tenant_id].append(execution)
        for tenant_id, executions in by_tenant.items():
            for command in _reports_of(executions):
                try:
                    async with self._database.transaction(tenant_id) as tx:
                        await self._kernel.dispatch(command, tx)
                except DatabaseUnavailableError:
                    logger.warning("reports_dropped", extra={"tenant_id": str(tenant_id), "lines": len(command.logs)})
                    # The others would each wait in vain for as long.
                    return
                except Exception:
                    # One tenant's report is a copy of what bodies said: losing it must not lose the others'.
                    logger.exception("report_failed", extra={"tenant_id": str(tenant_id)})


def _reports_of(executions: Iterable[Execution]) -> Iterator[JobReport]:
    """Yield what these executions of one tenant have to say, a transaction's worth at a time."""
    logs: list[LogRow] = []
    progress: list[Progress] = []
    characters = 0
    for execution in executions:
        lines, latest = execution.journal.drain_logs(), execution.journal.take_progress()
        logs += log_rows(execution.job, lines)
        if latest is not None:
            progress.append(Progress(execution.job.fence, latest.fraction, latest.message))
        characters += sum(line.size for line in lines)
        if characters >= MAX_CHARACTERS:
            yield JobReport(logs, progress)
            logs, progress, characters = [], [], 0
    if logs or progress:
        yield JobReport(logs, progress)
