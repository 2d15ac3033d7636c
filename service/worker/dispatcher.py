"""Finds the tenants that have something to do, and shares the worker's room fairly between them.

Reads as the scheduler on a connection of its own, never held together with another.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import orjson

from kernel import KernelLimits, Registry
from kernel.lanes import Pair
from tenancy import Database, Row, load_sql

SQL = load_sql(__file__)
FIRST = UUID(int=0)
PAGE = 200
MAINTENANCE_PAGE = 100


@dataclass(frozen=True, slots=True)
class DueTenant:
    """A tenant with something to do: `is_ready` work can be claimed, `is_waiting` work has come due and is promoted.

    `jobs` and `runs` are the pairs of workflow and version that have ready ones.
    """

    tenant_id: UUID
    is_ready: bool
    is_waiting: bool
    weight: int
    is_active: bool
    jobs: tuple[Pair, ...] = ()
    runs: tuple[Pair, ...] = ()


@dataclass(slots=True)
class Cursors:
    """Where each walk over the tenants goes on next time."""

    due: UUID = FIRST
    leases: UUID = FIRST
    running: UUID = FIRST
    tenants: UUID = FIRST


class Dispatcher:
    """Asks the database who has work; remembers nothing but where its walks stopped."""

    def __init__(self, database: Database, registry: Registry, limits: KernelLimits) -> None:
        self._database = database
        self._limits = limits
        self._served = json.dumps([{"workflow_id": w, "version": v} for w, v in registry.served])
        self._cursors = Cursors()

    async def due(self, floors: Sequence[Mapping[str, object]] = ()) -> list[DueTenant]:
        """Return the tenants with ready work of the served versions, and those with rows to promote.

        More tenants than a page holds are walked in turns: a call starts where the last full one ended. Those of
        `floors` are probed by themselves, from there on: `{is_job, tenant_id, workflow_id, version, floors}`.
        """
        where: dict[str, object] = {"served": self._served, "after": self._cursors.due, "page": PAGE}
        if floors:
            rows = await self._read("due_from", **where, floors=orjson.dumps(floors).decode())
        else:
            rows = await self._read("due", **where)
        walked = [row for row in rows if row["was_walked"]]
        self._cursors.due = walked[-1]["tenant_id"] if len(walked) >= PAGE else FIRST
        return [_due_tenant(row) for row in rows]

    async def lapsed(self) -> list[UUID]:
        """Return the tenants of leases that ran out, among the next page of all leases."""
        rows = await self._read(
            "leases",
            after=self._cursors.leases,
            stale_after=self._limits.stale_lease_threshold,
            absolute_timeout=self._limits.job_absolute_timeout,
        )
        is_full = sum(row["running"] for row in rows) >= 1000  # noqa: PLR2004 - the statement's own page
        self._cursors.leases = rows[-1]["tenant_id"] if is_full else FIRST
        return [row["tenant_id"] for row in rows if row["has_lapsed"]]

    async def running_tenants(self) -> list[UUID]:
        """Return the next page of tenants that have a RUNNING run."""
        rows = await self._read("running_tenants", after=self._cursors.running, page=MAINTENANCE_PAGE)
        self._cursors.running = rows[-1]["tenant_id"] if len(rows) >= MAINTENANCE_PAGE else FIRST
        return [row["tenant_id"] for row in rows]

    async def all_tenants(self) -> list[UUID]:
        """Return the next page of the list of tenants."""
        rows = await self._read("all_tenants", after=self._cursors.tenants, page=MAINTENANCE_PAGE)
        self._cursors.tenants = rows[-1]["tenant_id"] if len(rows) >= MAINTENANCE_PAGE else FIRST
        return [row["tenant_id"] for row in rows]

    async def depth(self) -> dict[str, float]:
        """Return depth, running jobs and the age of the oldest due work in seconds, over all tenants.

        By metric name; `served` is what this build's workers can do.
        """
        (served,) = await self._read("served_depth", served=self._served)
        (row,) = await self._read("depth")
        return {
            "tenantry.queue.served.depth": served["depth"],
            "tenantry.queue.served.oldest_age": served["oldest_age_s"],
            "tenantry.queue.depth": row["depth"],
            "tenantry.queue.running": row["running"],
            "tenantry.queue.oldest_age": row["oldest_age_s"],
        }

    async def _read(self, name: str, **params: object) -> list[Row]:
        return await self._database.read_as("tenantry_scheduler", SQL[name], **params)


def _due_tenant(row: Row) -> DueTenant:
    jobs, runs = (
        tuple((workflow_id, version) for workflow_id, version in orjson.loads(row[kind] or "[]"))
        for kind in ("jobs", "runs")
    )
    is_active = row["status"] == "active"
    return DueTenant(row["tenant_id"], bool(jobs or runs), row["is_waiting"], row["weight"], is_active, jobs, runs)


def share_out(due: Iterable[DueTenant], room: int, running: Mapping[UUID, int]) -> dict[UUID, int]:
    """Return how many jobs each due tenant may claim of `room`: slot by slot to who runs least for its weight.

    Counted with what runs already, so that a slot or two at a time are shared as fairly as many; one that runs nothing
    comes first. Work-conserving: what a tenant cannot use is there again in the next round.
    """
    queue = [
        ((running.get(tenant.tenant_id, 0) + 1) / tenant.weight, tenant.tenant_id, tenant.weight)
        for tenant in due
        if tenant.is_ready and tenant.is_active
    ]
    heapq.heapify(queue)
    shares: Counter[UUID] = Counter()
    for _ in range(room if queue else 0):
        load, tenant_id, weight = queue[0]
        shares[tenant_id] += 1
        heapq.heapreplace(queue, (load + 1 / weight, tenant_id, weight))
    return dict(shares)
