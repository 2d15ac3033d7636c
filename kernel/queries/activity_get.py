"""Reads what a tenant's runs have been doing lately: how many, how they ended, and how long their stages took.

Everything comes from runs, stages and events: it is complete whatever share of the traces is kept. It is bounded: of a
window with more runs than are looked at, the newest are.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kernel.states import RunStatus
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# Runs are only counted; of stages every execution is read.
RUNS_COUNTED: Final = 50_000
RUNS_LOOKED_AT: Final = 2_000
EVENTS_OF_A_RUN: Final = 500


@dataclass(frozen=True, slots=True)
class Bucket:
    """The runs that were created within one slice of the window, by what became of them."""

    begins_at: datetime
    counts: dict[RunStatus, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class StageActivity:
    """What the executions of one stage were like; times in seconds, None while there is nothing to measure.

    An execution lasts from its start to its end or to its first wait. `wait_*` is the time in line before the first.
    """

    workflow_id: str
    stage_id: str
    executions: int
    retries: int
    failures: int
    leases_lost: int
    run_p50_s: float | None
    run_p95_s: float | None
    wait_p50_s: float | None
    wait_p95_s: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """The window from `since` to `now`, in slices; slices without runs are there too."""

    since: datetime
    now: datetime
    buckets: tuple[Bucket, ...]
    stages: tuple[StageActivity, ...]

    def count(self, status: RunStatus) -> int:
        """Return how many runs of the window have come to this status."""
        return sum(bucket.counts.get(status, 0) for bucket in self.buckets)

    @property
    def total(self) -> int:
        """Return how many runs were created in the window."""
        return sum(bucket.total for bucket in self.buckets)


async def activity_get(tx: TenantTransaction, *, window: timedelta, slices: int) -> Activity:
    """Return the activity of the last `window`, cut into `slices`."""
    width = window / slices
    (frame,) = await tx.fetch_all(SQL["frame"], window=window, width=width)
    since = frame["since"]
    counted = await tx.fetch_all(SQL["throughput"], since=since, width=width, most_runs=RUNS_COUNTED)
    bounds = {"since": since, "most_runs": RUNS_LOOKED_AT}
    executions = await tx.fetch_all(SQL["executions"], **bounds, most_events=EVENTS_OF_A_RUN)
    waits = await tx.fetch_all(SQL["waits"], **bounds)
    return Activity(since, frame["now"], _buckets(counted, since, width, slices), _stages(executions, waits))


def _buckets(rows: list[Row], since: datetime, width: timedelta, slices: int) -> tuple[Bucket, ...]:
    # The first slice begins at or before the window, so that slices stay where they are as time goes on.
    counts = [dict[RunStatus, int]() for _ in range(slices + 1)]
    for row in rows:
        if 0 <= row["slice"] < len(counts):
            counts[row["slice"]][RunStatus(row["status"])] = row["runs"]
    return tuple(Bucket(since + number * width, each) for number, each in enumerate(counts))


def _stages(executions: list[Row], waits: list[Row]) -> tuple[StageActivity, ...]:
    waited = {(row["workflow_id"], row["stage_id"]): row for row in waits}
    return tuple(
        StageActivity(
            workflow_id=row["workflow_id"],
            stage_id=row["stage_id"],
            executions=row["executions"],
            retries=row["retries"],
            failures=row["failures"],
            leases_lost=row["leases_lost"],
            run_p50_s=row["run_p50_s"],
            run_p95_s=row["run_p95_s"],
            wait_p50_s=wait["wait_p50_s"] if wait else None,
            wait_p95_s=wait["wait_p95_s"] if wait else None,
        )
        for row in executions
        for wait in [waited.get((row["workflow_id"], row["stage_id"]))]
    )
