"""Reads the jobs of one run, and who works for the tenant right now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from kernel.queries.tenant_get import MAX_COUNT
from kernel.states import JobStatus
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
WORKERS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class JobView:
    """One job; `replay` when its stage is suspended, `locked_at` is the last heartbeat of its lease."""

    stage_id: str
    workflow_id: str
    version: str
    status: JobStatus
    replay: bool
    attempt: int
    available_at: datetime
    is_early: bool
    worker_id: str | None
    locked_at: datetime | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that holds leases of the tenant; `heard_at` is its last sign of life on any of them."""

    worker_id: str
    jobs: int
    workflows: tuple[str, ...]
    oldest_started_at: datetime
    heard_at: datetime


async def job_list(tx: TenantTransaction, run_id: UUID) -> list[JobView]:
    """Return the live and dead jobs of the run, by stage; none for an unknown run."""
    return [
        JobView(
            stage_id=row["stage_id"],
            workflow_id=row["workflow_id"],
            version=row["version"],
            status=JobStatus(row["status"]),
            replay=row["replay"],
            attempt=row["attempt"],
            available_at=row["available_at"],
            is_early=row["is_early"],
            worker_id=row["worker_id"],
            locked_at=row["locked_at"],
            started_at=row["started_at"],
        )
        for row in await tx.fetch_all(SQL["of_run"], run_id=run_id)
    ]


async def worker_list(tx: TenantTransaction) -> list[WorkerView]:
    """Return the workers that hold leases of the bound tenant, busiest first, from at most `MAX_COUNT` leases."""
    rows = await tx.fetch_all(SQL["workers"], look_at=MAX_COUNT, limit=WORKERS_SHOWN)
    return [
        WorkerView(row["worker_id"], row["jobs"], tuple(row["workflows"]), row["oldest_started_at"], row["heard_at"])
        for row in rows
    ]
