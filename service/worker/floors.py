"""How far the worker claimed, so that its next claims and questions start there (`kernel.lanes` says why).

Remembered for each tenant and lane: the last rank that was claimed, less a margin for what commits late. Nothing else
moves a floor up. What is ready below one, because it became ready long after its rank (a retry, a run of a long
transaction), is found by the question without floors that is due every so often; a tenant that has work then is claimed
from without floors once. Memory is bounded: the tenants that rested longest are forgotten.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kernel import Ticked, WorkerTick
from kernel.lanes import Lane, Look, Pair, Ranks, Sight, by_pair
from service.worker.dispatcher import Dispatcher, DueTenant

MARGIN = timedelta(seconds=2)
LOOK_EVERY_S = 10.0
MOST_TENANTS = 256
# A tenant's weight is what was claimed of it, and halves in about an hour: how many dead entries it may have. Floors
# are used from a weight on where passing those costs more than missing, for a while, what became ready below.
FADING = 0.998
FORGOTTEN_BELOW = 0.5
USED_FROM = 200
# The question who has work probes so many pairs by themselves, of the weightiest tenants.
MOST_PROBED = 32


@dataclass(slots=True)
class TenantFloors:
    """The floors of one tenant and its weight."""

    jobs: dict[Lane, datetime] = field(default_factory=dict[Lane, datetime])
    runs: dict[Lane, datetime] = field(default_factory=dict[Lane, datetime])
    weight: float = 0.0
    owes_look: bool = False

    @property
    def is_used(self) -> bool:
        """Whether to claim from the floors on: not while a look without them is owed."""
        return self.weight >= USED_FROM and not self.owes_look


NO_FLOORS = TenantFloors()


class FloorMemory:
    """The floors of the tenants that this worker claims from. Times are monotonic seconds."""

    def __init__(self, most_tenants: int = MOST_TENANTS) -> None:
        self._most_tenants = most_tenants
        self._tenants: OrderedDict[UUID, TenantFloors] = OrderedDict()
        self._due: dict[UUID, DueTenant] = {}
        self._looked_at: float | None = None
        # None: work of whatever kind.
        self._told: dict[UUID, frozenset[Pair] | None] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def tell(self, tenant_id: UUID, started: Pair | None) -> None:
        """Take a tenant to have work when it is asked for next: new runs of a pair, or of whatever kind."""
        known = self._told.get(tenant_id, frozenset())
        self._told[tenant_id] = None if started is None or known is None else known | {started}

    async def due(self, dispatcher: Dispatcher, now: float, *, is_told: bool = False) -> list[DueTenant]:
        """Ask who has work, from the floors on, or without them when that is due.

        Nobody is asked when it `is_told` who has, and somebody told of tenants since the last time.
        """
        told, self._told = self._told, {}
        if told and is_told:
            found = [
                DueTenant(it, is_ready=True, is_waiting=False, weight=1, is_active=True, runs=tuple(started or ()))
                for it, started in told.items()
            ]
            self._due = {tenant.tenant_id: tenant for tenant in found if tenant.runs}
            return found
        is_look = self.wants_look(now)
        found = await dispatcher.due(() if is_look else self.probed())
        if is_look:
            self.looked(found, now)
        self._due = {tenant.tenant_id: tenant for tenant in found}
        return found

    def wants_look(self, now: float) -> bool:
        """Whether the next question is to be asked without floors."""
        return self._looked_at is None or now - self._looked_at >= LOOK_EVERY_S

    def looked(self, found: Iterable[DueTenant], now: float) -> None:
        """Note what was found without floors: those tenants are claimed from without floors once."""
        self._looked_at = now
        for tenant in found:
            if tenant.is_ready and tenant.tenant_id in self._tenants:
                self._tenants[tenant.tenant_id].owes_look = True
        for tenant_id, floors in list(self._tenants.items()):
            floors.weight *= FADING
            if floors.weight < FORGOTTEN_BELOW:
                del self._tenants[tenant_id]

    def aim(self, tick: WorkerTick, tenant_id: UUID) -> WorkerTick:
        """Return the tick as it looks only at what was said to be due, and from the floors on.

        One that makes rows ready by itself looks at every pair.
        """
        due = None if tick.promote or tick.reap else self._due.get(tenant_id)
        floors = self._tenants.get(tenant_id, NO_FLOORS)
        if not floors.is_used:
            floors = NO_FLOORS
        return replace(
            tick,
            job_lanes=Look(due.jobs if due else None, floors.jobs),
            run_lanes=Look(due.runs if due else None, floors.runs),
        )

    def note(self, tenant_id: UUID, tick: WorkerTick, ticked: Ticked) -> None:
        """Move the tenant's floors by what a committed tick saw."""
        jobs, runs = ticked.job_lanes, ticked.run_lanes
        floors = self._tenants.get(tenant_id)
        if floors is None:
            if not jobs.taken and not runs.taken:
                return
            floors = self._tenants[tenant_id] = TenantFloors()
            if len(self._tenants) > self._most_tenants:
                self._tenants.popitem(last=False)
        is_look = tick.limit > 0 and not ticked.is_blocked and not tick.job_lanes.floors and not tick.run_lanes.floors
        if is_look:
            floors.owes_look = False
            floors.jobs, floors.runs = _after_look(floors.jobs, jobs), _after_look(floors.runs, runs)
        else:
            floors.jobs, floors.runs = _raised(floors.jobs, jobs), _raised(floors.runs, runs)
        if jobs.taken or runs.taken:
            self._tenants.move_to_end(tenant_id)
            floors.weight += len(ticked.leased) + len(ticked.runs.claimed)

    def probed(self) -> list[dict[str, Any]]:
        """Return the floors for the question who has work: those of the tenants with the most dead entries."""
        used = ((tenant_id, floors) for tenant_id, floors in self._tenants.items() if floors.is_used)
        items: list[dict[str, Any]] = []
        for tenant_id, floors in heapq.nlargest(MOST_PROBED, used, key=lambda entry: entry[1].weight):
            items += _items(tenant_id, floors.jobs, is_job=True) + _items(tenant_id, floors.runs, is_job=False)
        return items[:MOST_PROBED]


def _raised(floors: Ranks, seen: Sight) -> dict[Lane, datetime]:
    """Return the floors after a claim that started from them."""
    raised = {lane: rank - MARGIN for lane, rank in seen.taken.items()}
    moved = {lane: max(floor, raised.get(lane, floor)) for lane, floor in floors.items()}
    return _lowered({**raised, **moved}, seen)


def _after_look(floors: Ranks, seen: Sight) -> dict[Lane, datetime]:
    """Return the floors after a claim without floors.

    What it did not see may be ready above the highest rank that it saw; below there is only what it left.
    """
    ranks = [*seen.taken.values(), *seen.left.values()]
    if not ranks:
        return _lowered(floors, seen)
    highest = max(ranks)
    kept = {lane: min(floor, highest, seen.left.get(lane, highest)) for lane, floor in floors.items()}
    return _lowered({**kept, **{lane: rank - MARGIN for lane, rank in seen.taken.items()}}, seen)


def _lowered(floors: Ranks, seen: Sight) -> dict[Lane, datetime]:
    """Return the floors, none above what came due: a promotion may come long after the rank."""
    return {lane: min(floor, seen.promoted.get(lane, floor)) for lane, floor in floors.items()}


def _items(tenant_id: UUID, floors: Ranks, *, is_job: bool) -> list[dict[str, Any]]:
    return [
        {"is_job": is_job, "tenant_id": tenant_id, "workflow_id": workflow_id, "version": version, "floors": ranks}
        for (workflow_id, version), ranks in by_pair(floors).items()
    ]
