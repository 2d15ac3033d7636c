"""A tenant, its runs and the workers that execute them, for tests that kill, stop and starve workers."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from kernel import Kernel, RunCancel, RunCreate
from tenancy import Database, DatabaseSettings
from tests.support import stress, waiting
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process

FAST: Mapping[str, str] = {
    "TENANTRY_WORKFLOWS": "tests.support.stress:REGISTRY",
    "TENANTRY_STALE_LEASE_THRESHOLD": "6s",
    "TENANTRY_HEARTBEAT_INTERVAL": "2s",
    "TENANTRY_ABORT_GRACE": "1s",
    "TENANTRY_SHUTDOWN_GRACE": "1s",
    "TENANTRY_MAINTENANCE_INTERVAL": "1s",
}
OVER = ("COMPLETED", "FAILED", "CANCELLED")


class Arena:
    """What a test sees and does: runs are made as the API makes them, states are read past all doors."""

    def __init__(self, urls: DatabaseUrls, superuser: psycopg.AsyncConnection, tenant_id: UUID, diary: Path) -> None:
        self.urls = urls
        self.superuser = superuser
        self.tenant_id = tenant_id
        self.diary = diary
        self.kernel = Kernel(stress.REGISTRY)
        # Straight at the server: what a test does must not depend on the pooler it breaks.
        self.database = Database(DatabaseSettings(urls.straight("tenantry_worker"), pool_size=2))

    async def reconnect(self) -> None:
        """Connect anew after the server was away."""
        await self.superuser.close()
        self.superuser = await psycopg.AsyncConnection.connect(self.urls.direct, autocommit=True)

    async def start(self, workflow_id: str, number: int = 1, **task: Any) -> list[UUID]:
        """Create runs whose bodies write into the diary; options of the run itself are `run_at` and `tenant_id`."""
        options = {name: task.pop(name) for name in ("run_at", "definition_version") if name in task}
        tenant_id = task.pop("tenant_id", self.tenant_id)
        payload = task if workflow_id.startswith("odd") else {"diary": str(self.diary), **task}
        async with self.database.transaction(tenant_id) as tx:
            return [
                (await self.kernel.dispatch(RunCreate(workflow_id, payload, **options), tx)).run_id
                for _ in range(number)
            ]

    async def cancel(self, run_id: UUID) -> None:
        async with self.database.transaction(self.tenant_id) as tx:
            await self.kernel.dispatch(RunCancel(run_id), tx)

    async def end_all(self) -> None:
        """Cancel what is under way: the next test's worker serves every tenant of the database."""
        for run in await self.rows(
            "select run_id from tenantry.workflow_runs"
            " where tenant_id = %(tenant)s and status in ('PENDING', 'RUNNING')"
        ):
            await self.cancel(run["run_id"])

    def worker(self, *arguments: str, **settings: str) -> Process:
        """Start a real worker through the pooler; `settings` are lower-case names without the prefix."""
        return start_worker(self.urls, *arguments, **settings)

    async def rows(self, query: str, **params: Any) -> list[dict[str, Any]]:
        """Read as the superuser; `%(tenant)s` is the tenant."""
        async with self.superuser.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query.encode(), {"tenant": self.tenant_id, **params})
            return await cursor.fetchall()

    async def statuses(self) -> Counter[str]:
        """Count the tenant's runs by status."""
        rows = await self.rows("select status from tenantry.workflow_runs where tenant_id = %(tenant)s")
        return Counter(row["status"] for row in rows)

    async def all_over(self, seconds: float = 30) -> Counter[str]:
        """Wait until every run of the tenant's is over and return how they ended."""

        async def are_over() -> bool:
            return all(status in OVER for status in await self.statuses())

        try:
            await waiting.until(are_over, "all runs are over", seconds)
        except waiting.NeverHappenedError as error:
            jobs = await self.rows("select * from tenantry.job_queue where tenant_id = %(tenant)s limit 5")
            msg = f"{error}: {await self.statuses()}, jobs {jobs}"
            raise waiting.NeverHappenedError(msg) from None
        return await self.statuses()

    async def leases(self) -> list[dict[str, Any]]:
        """Return the leased jobs."""
        return await self.rows(
            "select * from tenantry.job_queue where tenant_id = %(tenant)s and status = 'RUNNING' order by run_id"
        )

    async def stages(self) -> list[dict[str, Any]]:
        return await self.rows(
            "select * from tenantry.workflow_stages where tenant_id = %(tenant)s order by run_id, number"
        )

    async def events(self) -> Counter[str]:
        """Count the tenant's events by type."""
        rows = await self.rows("select type from tenantry.outbox_events where tenant_id = %(tenant)s")
        return Counter(row["type"] for row in rows)

    async def assert_settled_once(self) -> None:
        """Check that no stage was settled twice, no history has a gap and nothing is left in the queue."""
        doubled = await self.rows(
            "select run_id, stage_id, count(*) from tenantry.outbox_events where tenant_id = %(tenant)s"
            " and type in ('stage:completed', 'stage:failed') group by run_id, stage_id having count(*) > 1"
        )
        gaps = await self.rows(
            "select run_id from tenantry.outbox_events where tenant_id = %(tenant)s"
            " group by run_id having count(*) <> max(sequence)"
        )
        assert (doubled, gaps, await self.leases()) == ([], [], [])

    def notes(self, word: str) -> list[list[str]]:
        """Return the diary's lines of one word: run, stage, attempt, pid."""
        if not self.diary.exists():
            return []
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == word]

    async def noted(self, word: str, number: int = 1, seconds: float = 20) -> list[list[str]]:
        """Wait until the diary has so many lines of a word."""
        await waiting.until(lambda: len(self.notes(word)) >= number, f"{number} times {word}", seconds)
        return self.notes(word)


def start_worker(urls: DatabaseUrls, *arguments: str, **settings: str) -> Process:
    """Start a real worker through the pooler; `settings` are lower-case names without the prefix."""
    own = {f"TENANTRY_{name.upper()}": value for name, value in settings.items()}
    return Process("worker", *arguments, environment={**urls.environment("worker"), **FAST, **own})


async def started(*workers: Process) -> None:
    """Wait until the workers look for work."""
    await waiting.until(lambda: all("worker_started" in worker.output for worker in workers), "workers started", 30)


@asynccontextmanager
async def arena(urls: DatabaseUrls, tenant_id: UUID, diary: Path) -> AsyncIterator[Arena]:
    """Open an arena for a tenant of a database."""
    superuser = await psycopg.AsyncConnection.connect(urls.direct, autocommit=True)
    opened = Arena(urls, superuser, tenant_id, diary)
    try:
        async with opened.database:
            yield opened
            await opened.end_all()
    finally:
        await opened.superuser.close()
