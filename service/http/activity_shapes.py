"""The shapes of what a tenant's runs have been doing, and of who works for it."""

from datetime import datetime

from kernel.states import RunStatus
from service.http.shapes import Shape


class Percentiles(Shape):
    """What half of them, and what 19 of 20, stay within; null when there is nothing to measure."""

    p50: float | None
    p95: float | None


class StageActivity(Shape):
    """The executions of one stage. One lasts from its start to its end, or to its first wait."""

    workflow: str
    stage_id: str
    executions: int
    retries: int
    failures: int
    leases_lost: int
    execution_seconds: Percentiles
    queue_seconds: Percentiles


class ActivitySlice(Shape):
    """The runs that were created within a slice of the window, by what became of them."""

    begins_at: datetime
    runs: dict[RunStatus, int]


class Activity(Shape):
    """What runs have been doing; of a window with very many runs, stages tell of the newest."""

    since: datetime
    slices: list[ActivitySlice]
    stages: list[StageActivity]


class Worker(Shape):
    """A worker that holds leases of the tenant; `heard_at` is its last sign of life."""

    id: str
    jobs: int
    workflows: list[str]
    oldest_lease_at: datetime
    heard_at: datetime


class WorkerList(Shape):
    """Workers, busiest first."""

    data: list[Worker]
    next_cursor: None
