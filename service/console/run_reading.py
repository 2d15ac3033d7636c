"""Reads what the pages of one run show, in one transaction and with the queries of the public API."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from kernel.queries.job_list import JobView, job_list, worker_list
from kernel.queries.queue_get import Standing
from kernel.queries.run_annotations import run_annotations
from kernel.queries.run_events import EventView, run_events, run_last_events
from kernel.queries.run_get import RunProgress, RunView, run_get, run_progress
from kernel.queries.run_logs import LogView, run_last_logs
from kernel.queries.run_trace import step_tries
from kernel.queries.stage_progress import StageProgress, stage_progress
from kernel.queries.step_list import step_list
from kernel.queries.tenant_get import tenant_get, tenant_usage
from kernel.states import TERMINAL_RUN_STATUSES, JobStatus, RunStatus
from service.console import waterfall
from service.console.notes import MOST_READ, Told, told
from service.console.step_stretches import by_step, was_tried_again
from service.console.visits import Visit
from service.console.waits import Surroundings, Wait, waits_of
from service.http.run_views import stage_names
from service.http.tenant import served_pairs
from service.problems import ProblemError, not_found
from tenancy import TenantTransaction

LIFECYCLE_READ: Final = 2_000
EVENTS_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Portion:
    """How much of a run is read: last log lines, first annotations; those of one stage where it is named."""

    logs: int
    annotations: int
    stage_id: str | None = None


OF_RUN: Final = Portion(logs=50, annotations=100)
# A waterfall of more lines than this is read by nobody; the others are on the pages of steps.
STEPS_DRAWN: Final = 100


@dataclass(frozen=True, slots=True)
class Reading:
    """A run with its surroundings.

    `events` and `logs` are the last ones. `record`, of the first events and steps and without results, is what the
    waterfall is made of. A page of one stage needs neither `events` nor `record`: they are not read for it.
    """

    run: RunView
    portion: Portion
    names: Mapping[str, str]
    record: waterfall.Record
    has_more_steps: bool
    events: Sequence[EventView]
    logs: Sequence[LogView]
    progress: Sequence[StageProgress]
    told: Told
    waits: tuple[Wait, ...]
    now: datetime
    event_count: int

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the run by itself."""
        return self.run.summary.status in TERMINAL_RUN_STATUSES

    @property
    def waterfall(self) -> waterfall.Waterfall | None:
        """Draw the run."""
        return waterfall.draw(self.run, self.names, self.record, self.now)


def no_such_run() -> ProblemError:
    """Return the 404 for a run that is not there, or not the tenant's: the two look alike."""
    return not_found("There is no such run.")


async def standing(tx: TenantTransaction, run_id: UUID) -> RunProgress:
    """Return how far a run is; 404 when there is none.

    Asked last, when a page is read: a run that is purged meanwhile is not taken for one that has nothing to show.
    """
    progress = await run_progress(tx, run_id)
    if progress is None:
        raise no_such_run()
    return progress


async def read_run(visit: Visit, tx: TenantTransaction, run_id: UUID, portion: Portion = OF_RUN) -> Reading:
    """Read a run; 404 when the tenant has none of this id."""
    run = await run_get(tx, run_id)
    if run is None:
        raise no_such_run()
    jobs = await job_list(tx, run_id)
    names = await stage_names(tx, run, visit.api.registry)
    now = datetime.now(UTC)
    around = Surroundings(
        standing=await _standing(tx, run, jobs),
        served=served_pairs(visit.api.registry),
        now=now,
        stale_after=visit.api.settings.stale_lease_threshold,
        is_at_work=await _is_at_work(tx, run, jobs),
    )
    annotations = await run_annotations(
        tx, run_id, limit=portion.annotations, stage_id=portion.stage_id, most_length=MOST_READ
    )
    record, has_more_steps = (
        await _record(tx, run_id, jobs) if portion.stage_id is None else (waterfall.Record(), False)
    )
    return Reading(
        run=run,
        portion=portion,
        names=names,
        record=record,
        has_more_steps=has_more_steps,
        events=await run_last_events(tx, run_id, limit=EVENTS_SHOWN) if portion.stage_id is None else (),
        logs=await run_last_logs(tx, run_id, limit=portion.logs, stage_id=portion.stage_id),
        progress=await stage_progress(tx, run_id),
        told=told(annotations),
        waits=waits_of(run, jobs, names, around),
        now=now,
        event_count=(await standing(tx, run_id)).event_sequence,
    )


async def _record(tx: TenantTransaction, run_id: UUID, jobs: Iterable[JobView]) -> tuple[waterfall.Record, bool]:
    """Return what the waterfall is drawn from, and whether there are more steps than that has."""
    page = await step_list(tx, run_id, limit=STEPS_DRAWN, with_results=False)
    retried = {step.step_id for step in page.steps if was_tried_again(step)}
    events = await run_events(tx, run_id, limit=LIFECYCLE_READ + 1, types=waterfall.TYPES)
    record = waterfall.Record(
        events=events[:LIFECYCLE_READ],
        steps=page.steps,
        tries=by_step(await step_tries(tx, run_id, retried)) if retried else {},
        leased_at=leases_of(jobs),
        is_cut=len(events) > LIFECYCLE_READ,
    )
    return record, page.has_more


def leases_of(jobs: Iterable[JobView]) -> dict[str, datetime]:
    """Return when the executions that are under way began, by stage."""
    return {job.stage_id: job.started_at for job in jobs if job.status is JobStatus.RUNNING and job.started_at}


async def _standing(tx: TenantTransaction, run: RunView, jobs: Sequence[JobView]) -> Standing:
    """Return how the tenant stands, counted only where something of the run is in line."""
    tenant = await tenant_get(tx) if _is_in_line(run, jobs) else None
    if tenant is None:
        return Standing(is_suspended=False, is_at_cap=False)
    cap = tenant.limits.running_jobs
    is_at_cap = cap is not None and (await tenant_usage(tx)).running_jobs >= cap
    return Standing(is_suspended=tenant.status != "active", is_at_cap=is_at_cap)


async def _is_at_work(tx: TenantTransaction, run: RunView, jobs: Sequence[JobView]) -> bool:
    """Whether a worker has a job of the run's workflow, asked only where something of the run is in line."""
    if not _is_in_line(run, jobs):
        return False
    return any(run.summary.workflow_id in worker.workflows for worker in await worker_list(tx))


def _is_in_line(run: RunView, jobs: Sequence[JobView]) -> bool:
    return run.summary.status is RunStatus.PENDING or any(job.status is JobStatus.PENDING for job in jobs)
