"""Says why a run waits: for whom or what, since when, until when, and what would end the wait."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kernel.queries.job_list import JobView
from kernel.queries.queue_get import Standing, WaitReason, reason_of
from kernel.queries.run_get import RunView, StageView
from kernel.states import JobStatus, RunStatus, StageStatus
from service.console.words import LEFT, REASONS

# A lease that has not been heard of for this share of its threshold is worth a word.
SILENT_SHARE: Final = 3
# Workers look for what is due many times a second; what has been due for so long is left by all of them.
LEFT_AFTER: Final = timedelta(seconds=10)
STEP_WORDS: Final[Mapping[str, str]] = {
    "signal": "waits for a signal",
    "sleep": "sleeps",
    "wait": "polls until its condition holds",
    "run": "waits for the next try of a step, or for the worker that holds it",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """One reason; `until` is when it ends by itself at the latest."""

    subject: str
    text: str
    stage_id: str | None = None
    step_id: str | None = None
    until: datetime | None = None
    looks_again_at: datetime | None = None
    takes_signal: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run's waits depend on beside itself: the tenant, what is served here, and the clock.

    `is_at_work`: somebody has a job of the tenant's in this workflow under a lease.
    """

    standing: Standing
    served: Container[tuple[str, str]]
    now: datetime
    stale_after: timedelta
    is_at_work: bool


def waits_of(run: RunView, jobs: Sequence[JobView], names: Mapping[str, str], around: Surroundings) -> tuple[Wait, ...]:
    """Return why the run is not over yet, a reason for each stage that is not at work; none for a run that is over."""
    summary = run.summary
    if summary.status is RunStatus.PENDING:
        entry = {
            "workflow_id": summary.workflow_id,
            "version": summary.version or "",
            "is_early": summary.run_at > around.now,
            "is_job": False,
        }
        reason = reason_of(entry, around.standing, around.served)
        until = summary.run_at if reason is WaitReason.RUN_AT else None
        return (Wait("The run", _words(reason, summary.run_at, around), until=until),)
    if summary.status is not RunStatus.RUNNING:
        return ()
    by_stage = {job.stage_id: job for job in jobs}
    found = (_wait_of(stage, by_stage.get(stage.stage_id), names, around) for stage in run.stages)
    return tuple(wait for wait in found if wait is not None)


def _wait_of(stage: StageView, job: JobView | None, names: Mapping[str, str], around: Surroundings) -> Wait | None:
    name = names.get(stage.stage_id, stage.stage_id)
    if stage.status is StageStatus.SUSPENDED:
        return _suspension(stage, job, name)
    if job is None:
        return None
    if job.status is JobStatus.RUNNING:
        return _silence(job, name, around)
    if stage.status is not StageStatus.PENDING or job.status is not JobStatus.PENDING:
        return None
    entry = {"workflow_id": job.workflow_id, "version": job.version, "is_early": job.is_early, "is_job": True}
    reason = reason_of(entry, around.standing, around.served)
    text = _words(reason, job.available_at, around)
    if reason is WaitReason.BACKOFF:
        text = f"Attempt {job.attempt} of {stage.max_attempts} failed; the next one follows after a pause."
    return Wait(name, text, stage.stage_id, until=job.available_at if job.is_early else None)


def _words(reason: WaitReason, due_at: datetime, around: Surroundings) -> str:
    """Return the reason in words; of what is in line, whether there is anybody who would take it."""
    is_left = not around.is_at_work and around.now - due_at >= LEFT_AFTER
    return LEFT if reason is WaitReason.PRIORITY and is_left else REASONS[reason]


def _suspension(stage: StageView, job: JobView | None, name: str) -> Wait | None:
    if job is not None and job.status is JobStatus.RUNNING:
        # A worker is replaying it right now.
        return None
    waiting = stage.waiting_for
    if waiting is None:
        return Wait(
            name, "It is suspended and looked at again soon.", stage.stage_id, looks_again_at=stage.next_poll_at
        )
    return Wait(
        subject=name,
        text=f"It {STEP_WORDS.get(waiting.kind, 'waits')}: no worker is busy with it meanwhile.",
        stage_id=stage.stage_id,
        step_id=waiting.step_id,
        until=waiting.until,
        looks_again_at=stage.next_poll_at if stage.next_poll_at != waiting.until else None,
        takes_signal=waiting.kind == "signal",
    )


def _silence(job: JobView, name: str, around: Surroundings) -> Wait | None:
    """Return a word on a lease whose worker has not been heard of for long; None while all is well."""
    if job.locked_at is None or around.now - job.locked_at < around.stale_after / SILENT_SHARE:
        return None
    text = "Its worker has not been heard of; if it stays silent, its lease is taken back."
    return Wait(name, text, job.stage_id, until=job.locked_at + around.stale_after)
