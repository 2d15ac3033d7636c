"""Reads the tenant's queue: how deep it is, what runs, and why each waiting run waits."""

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from kernel.queries.tenant_get import MAX_COUNT, tenant_get
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# How many of a tenant's queued jobs are looked at for those that do not sleep.
LOOK_AT: Final = 10 * MAX_COUNT


class WaitReason(StrEnum):
    """Why a run that could be worked on is not."""

    TENANT_SUSPENDED = "tenant_suspended"
    VERSION_NOT_SERVED = "version_not_served"
    RUN_AT = "run_at"
    BACKOFF = "backoff"
    TENANT_CAP = "tenant_cap"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One workflow's share; `oldest_age_s` is None when nothing is due."""

    workflow_id: str
    depth: int
    running: int
    oldest_age_s: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run and what it waits for."""

    run_id: UUID
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue; counts are exact up to `MAX_COUNT` in all and at least what they say above."""

    by_workflow: tuple[QueueDepth, ...]
    waiting: tuple[Waiting, ...]

    @property
    def depth(self) -> int:
        """Runs and jobs that wait."""
        return sum(share.depth for share in self.by_workflow)

    @property
    def running(self) -> int:
        """Jobs under a lease."""
        return sum(share.running for share in self.by_workflow)

    @property
    def oldest_age_s(self) -> float | None:
        """For how long the entry that has been due longest has been due."""
        return max((share.oldest_age_s for share in self.by_workflow if share.oldest_age_s is not None), default=None)


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds for all of a tenant's waiting runs alike."""

    is_suspended: bool
    is_at_cap: bool


async def queue_get(tx: TenantTransaction, served: Container[tuple[str, str]], *, limit: int) -> QueueView:
    """Return the queue with the first `limit` runs in line. A stage that sleeps or waits for a step is not in it.

    `served` holds the (workflow, version) pairs that are served, and (workflow, "") for runs not pinned yet.
    """
    shares = tuple(
        QueueDepth(row["workflow_id"], row["depth"], row["running"], row["oldest_age_s"])
        for row in await tx.fetch_all(SQL["by_workflow"], count_to=MAX_COUNT + 1, look_at=LOOK_AT)
    )
    entries = await tx.fetch_all(SQL["waiting"], limit=limit, look_at=LOOK_AT)
    tenant = await tenant_get(tx)
    cap = tenant.limits.running_jobs if tenant else None
    standing = Standing(
        is_suspended=tenant is not None and tenant.status != "active",
        is_at_cap=cap is not None and sum(share.running for share in shares) >= cap,
    )
    return QueueView(shares, tuple(Waiting(entry["run_id"], reason_of(entry, standing, served)) for entry in entries))


def reason_of(entry: Row, standing: Standing, served: Container[tuple[str, str]]) -> WaitReason:
    """Decide why an entry of `queue_get.sql`'s `waiting` waits: the first reason that would hold it back by itself."""
    if standing.is_suspended:
        return WaitReason.TENANT_SUSPENDED
    if (entry["workflow_id"], entry["version"]) not in served:
        return WaitReason.VERSION_NOT_SERVED
    if entry["is_early"]:
        return WaitReason.BACKOFF if entry["is_job"] else WaitReason.RUN_AT
    return WaitReason.TENANT_CAP if standing.is_at_cap else WaitReason.PRIORITY
