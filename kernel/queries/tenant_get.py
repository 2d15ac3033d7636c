"""Reads the bound tenant: who it is, what limits it has and how much of them it uses."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
# Counts are shown up to here and as "10000+" above: a tenant with millions of runs is answered as fast as one with ten.
MAX_COUNT: Final = 10_000


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant; None is no limit."""

    running_jobs: int | None
    pending_runs: int | None
    runs_per_minute: int | None
    payload_bytes: int | None


@dataclass(frozen=True, slots=True)
class TenantView:
    """The bound tenant."""

    tenant_id: UUID
    slug: str
    name: str
    status: str
    limits: TenantLimits


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What the tenant has; a count of `MAX_COUNT` + 1 means more than `MAX_COUNT`."""

    pending_runs: int
    running_jobs: int
    stored_runs: int


async def tenant_get(tx: TenantTransaction) -> TenantView | None:
    """Return the bound tenant; None when it has no row (a product that keeps its own list of tenants)."""
    row = await tx.fetch_one(SQL["tenant"])
    if row is None:
        return None
    limits = TenantLimits(row["running_jobs"], row["pending_runs"], row["runs_per_minute"], row["payload_bytes"])
    return TenantView(row["tenant_id"], row["slug"], row["name"], row["status"], limits)


async def tenant_usage(tx: TenantTransaction) -> TenantUsage:
    """Count what the bound tenant has."""
    (row,) = await tx.fetch_all(SQL["usage"], count_to=MAX_COUNT + 1)
    return TenantUsage(row["pending_runs"], row["running_jobs"], row["stored_runs"])
