"""What this process has counted of the engine's work: plain numbers, cheap enough for the hot path.

What becomes of runs is counted once it is committed (`Moves`), by every command alike; executions are counted where
they begin and end (`kernel.execution.tracing`). No tenant and no run: those are in traces.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)


@dataclass(slots=True)
class Spread:
    """How often something took how long, in seconds; `counts` has one more place, for what is above all bounds."""

    bounds: tuple[float, ...] = BOUNDS_S
    counts: list[int] = field(default_factory=list[int])
    total_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin with nothing, unless told otherwise."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class Moves:
    """What one transaction makes of runs. A redriven run starts, and ends, once more."""

    runs_started: int = 0
    runs_finished: Counter[str] = field(default_factory=Counter[str])
    leases_expired: int = 0

    def __bool__(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.runs_started or self.runs_finished or self.leases_expired)


@dataclass(slots=True)
class Counts:
    """Since the process began. Runs are counted by how they ended, jobs by what their executions came to.

    `queue_wait` runs from due to leased, `execution` from leased to settled. `step_attempts` are calls of the functions
    of `run` steps.
    """

    runs_started: int = 0
    runs_finished: Counter[str] = field(default_factory=Counter[str])
    leases_expired: int = 0
    jobs_started: int = 0
    jobs_finished: Counter[str] = field(default_factory=Counter[str])
    step_attempts: int = 0
    queue_wait: Spread = field(default_factory=Spread)
    execution: Spread = field(default_factory=Spread)

    def add(self, moves: Moves) -> None:
        """Count what a transaction made of its runs, now that it is committed."""
        self.runs_started += moves.runs_started
        self.runs_finished.update(moves.runs_finished)
        self.leases_expired += moves.leases_expired


# One a process, like the SDK's own: whoever executes, settles or ends a run in it adds here.
COUNTS: Final = Counts()
