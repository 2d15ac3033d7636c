"""Lanes: the ready rows of one workflow, version and priority, by rank; a claim probes each lane by itself.

A floor is a rank below which a claim does not look. Claimed rows leave dead entries at the head of a lane, which stay
as long as any older transaction of the database is open; whoever remembers how far it claimed starts behind them. What
is ready below a floor (its rank is older than what was claimed) is found by a look without floors, which the worker
takes every so often.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from kernel.changes import encode
from tenancy import Row

Pair = tuple[str, str]


class Lane(NamedTuple):
    """What a claim probes by itself; `version` is '' for runs that are not pinned yet."""

    workflow_id: str
    version: str
    priority: int


Ranks = Mapping[Lane, datetime]


@dataclass(frozen=True, slots=True)
class Look:
    """Where a claim looks: of the served pairs only in `pairs`, when given; in each lane not below its floor."""

    pairs: tuple[Pair, ...] | None = None
    floors: Ranks = field(default_factory=dict[Lane, datetime])

    def among(self, served: Iterable[Pair]) -> list[Pair]:
        """Return the served pairs that are looked at."""
        return [pair for pair in served if self.pairs is None or pair in self.pairs]


EVERYWHERE = Look()


@dataclass(frozen=True, slots=True)
class Sight:
    """What a tick saw of the lanes of runs, or of jobs.

    `taken`: the highest rank that was claimed, but never above what was seen and left. `left`: the lowest rank that was
    seen and stays ready. `promoted`: the lowest rank that came due.
    """

    taken: Ranks = field(default_factory=dict[Lane, datetime])
    left: Ranks = field(default_factory=dict[Lane, datetime])
    promoted: Ranks = field(default_factory=dict[Lane, datetime])


NOTHING_SEEN = Sight()


def lane_items(pairs: Iterable[Pair], floors: Ranks) -> str:
    """Return the pairs with their floors as JSON text: `[{workflow_id, version, floors: {priority: rank}}]`."""
    of_pairs = by_pair(floors)
    return encode(
        [
            {"workflow_id": workflow_id, "version": version, "floors": of_pairs.get((workflow_id, version))}
            for workflow_id, version in pairs
        ]
    )


def by_pair(floors: Ranks) -> dict[Pair, dict[str, datetime]]:
    """Return the floors as the statements take them: of each pair by priority."""
    grouped: dict[Pair, dict[str, datetime]] = {}
    for lane, floor in floors.items():
        grouped.setdefault((lane.workflow_id, lane.version), {})[str(lane.priority)] = floor
    return grouped


def sight_of(rows: Sequence[Row], is_taken: Callable[[Row], bool], promoted: Iterable[Row]) -> Sight:
    """Return what a claim saw; rows carry `rank` and, as `lane_*`, their lane."""
    taken: dict[Lane, datetime] = {}
    left: dict[Lane, datetime] = {}
    for row in rows:
        lane, rank = _lane(row), row["rank"]
        if is_taken(row):
            taken[lane] = max(taken.get(lane, rank), rank)
        else:
            left[lane] = min(left.get(lane, rank), rank)
    capped = {lane: min(rank, left.get(lane, rank)) for lane, rank in taken.items()}
    return Sight(capped, left, lowest(promoted))


def lowest(rows: Iterable[Row]) -> Ranks:
    """Return the lowest rank of each lane."""
    ranks: dict[Lane, datetime] = {}
    for row in rows:
        lane, rank = _lane(row), row["rank"]
        ranks[lane] = min(ranks.get(lane, rank), rank)
    return ranks


def _lane(row: Row) -> Lane:
    return Lane(row["lane_workflow_id"], row["lane_version"], row["lane_priority"])
