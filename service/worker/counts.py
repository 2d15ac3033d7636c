"""What an executor has seen, for `/metrics`. No tenant, no run: those are in traces."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)


@dataclass(slots=True)
class Spread:
    """How often something took how long, in seconds; written by the loop's thread alone."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by their upper bounds, as Prometheus has them."""
        names = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, accumulate(self.counts), strict=True)]


@dataclass(slots=True)
class Counts:
    """`outcomes` are those of jobs, `runs` those of the runs that their settles ended."""

    started: int = 0
    step_attempts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    runs: Counter[str] = field(default_factory=Counter[str])
    queue_wait: Spread = field(default_factory=Spread)
    execution: Spread = field(default_factory=Spread)
