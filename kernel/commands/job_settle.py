"""`job.settle`: what bodies came to, for many jobs of one tenant in one transaction, fenced by their leases.

For each job: its output validated and written, its job removed or rescheduled, its events appended and, with them, the
run's transition. The next group's jobs are created leased to the same worker while its budget lasts, so that a pipeline
does not wait for a poll between its stages.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Literal
from uuid import UUID

from kernel.backoff import retry_delay_s
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands.job_claim import DEFERRAL
from kernel.commands.job_report import LogRow, log_rows, logs_call
from kernel.commands.step_write import StepWrite, step_write
from kernel.draft import RunDraft
from kernel.events import EventType
from kernel.execution.journal import Annotation, Report
from kernel.execution.ledger import StepOp
from kernel.execution.outcome import (
    StageCompleted,
    StageFailed,
    StageOutcome,
    StageReleased,
    StageSkipped,
    StageSuspended,
)
from kernel.fencing import Fenced, Hold, lock_fenced
from kernel.jobs import LeasedJob
from kernel.locking import StageRow, first_loss, load_outputs, load_stages, recall_attempts
from kernel.opening import LeaseBudget, advance
from kernel.states import TERMINAL_RUN_STATUSES, TERMINAL_STAGE_STATUSES, JobStatus, RunStatus, StageStatus
from kernel.suspension import suspend
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
SettleStatus = Literal["settled", "ghost", "superseded", "busy"]
NOTHING_SAID = Report()
RACE_DELAY = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Settlement:
    """A leased job, what its body came to and what it noted; `steps` are written first, in the same transaction.

    `report` is what the body said last: whoever sees the outcome sees its log lines too.
    """

    job: LeasedJob
    outcome: StageOutcome
    annotations: tuple[Annotation, ...] = ()
    steps: tuple[StepOp, ...] = ()
    report: Report = NOTHING_SAID


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one settlement.

    `ghost` and `superseded` wrote nothing about the stage; `busy` wrote nothing at all and wants to be tried again.
    `next_jobs` are leased to the worker. `stage_status` and `run_status` are those after the settle.
    """

    run_id: UUID
    stage_id: str
    status: SettleStatus
    ghost_reason: str | None = None
    stage_status: StageStatus | None = None
    run_status: RunStatus | None = None
    error: str | None = None
    retry_delay_s: float | None = None
    next_poll_at: datetime | None = None
    next_jobs: tuple[LeasedJob, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSettle(Command[tuple[Settled, ...]]):
    """Settle jobs leased to `worker_id`; `lease_ahead` bounds how many jobs of next groups are leased to it at once.

    Answers come in the order of the settlements. Locks the runs; waits for them only with `wait`.
    """

    name: ClassVar[str] = "job.settle"
    worker_id: str
    settlements: Sequence[Settlement]
    lease_ahead: int = 0
    wait: bool = False


@dataclass(slots=True)
class SettleBatch:
    """The drafts of one flush, made when a run is first met."""

    fenced: Fenced
    stages: dict[UUID, dict[str, StageRow]]
    leases: LeaseBudget
    waited: dict[tuple[UUID, str], list[Row]]
    changes: Changes
    drafts: dict[UUID, RunDraft] = field(default_factory=dict[UUID, RunDraft])

    def draft(self, job: LeasedJob) -> RunDraft:
        """Return the draft of a job's run: from its rows where they were read, else from what the worker holds.

        A stage that is alone in its group needs no look at others: its row is what the lease says it is.
        """
        draft = self.drafts.get(job.run_id)
        if draft is None:
            rows = self.stages.get(job.run_id)
            stages = rows if rows is not None else {job.stage_id: _stage_of(job)}
            outputs = dict(job.outputs)
            outputs.update({row.stage_id: row.output for row in stages.values() if row.output is not None})
            draft = self.drafts[job.run_id] = RunDraft(
                self.fenced.runs[job.run_id],
                self.changes,
                job.workflow,
                stages,
                outputs,
                run_input=job.run_input,
                run_config=job.run_config,
                lost=first_loss(stages.values()),
            )
        return draft


@handles(JobSettle)
async def job_settle(command: JobSettle, tx: TenantTransaction, scope: Scope) -> tuple[Settled, ...]:
    """Lock the runs, look at siblings where there are any, decide, write."""
    # Outcomes lock the runs too. One that was not had leaves its job's settle busy, and both are repeated together.
    steps = [op for item in command.settlements for op in item.steps]
    recorded = await step_write(StepWrite(steps, wait=command.wait), tx, scope)
    unrecorded = {op.fence for op, answer in zip(steps, recorded, strict=True) if answer.verdict == "busy"}
    fenced = await lock_fenced(tx, [item.job.fence for item in command.settlements], wait=command.wait)
    fenced.holds.update((fence, Hold.BUSY) for fence in unrecorded)
    await recall_attempts(tx, fenced.runs.values())
    leases = LeaseBudget(command.worker_id, command.lease_ahead)
    waited = await _waited_steps(command, tx)
    stages = await _read_stages(command, fenced, tx, scope)
    batch = SettleBatch(fenced, stages, leases, waited, Changes(scope.blobs))
    answers = tuple(settle_one(item, batch) for item in command.settlements)
    await batch.changes.write(tx)
    if lines := _news(command, answers, fenced):
        await tx.send([logs_call(lines)])
    return answers


def _news(command: JobSettle, answers: Sequence[Settled], fenced: Fenced) -> list[LogRow]:
    """Return the log lines that are not written yet.

    A busy settle is repeated with them; one that finds that it was kept after all had written them.
    """
    return [
        row
        for item, answer in zip(command.settlements, answers, strict=True)
        if answer.status != "busy" and (answer.status != "settled" or fenced.holds[item.job.fence] is Hold.MINE)
        for row in log_rows(item.job, item.report.logs)
    ]


async def _waited_steps(command: JobSettle, tx: TenantTransaction) -> dict[tuple[UUID, str], list[Row]]:
    """Return the steps that suspending stages wait for, read after the runs were locked.

    A signal takes the run's lock too: either it is seen here, or it finds the job parked and makes it due.
    """
    items = [
        {"run_id": str(item.job.run_id), "stage_id": item.job.stage_id, "step_id": wait.step_id}
        for item in command.settlements
        if isinstance(item.outcome, StageSuspended)
        for wait in item.outcome.waits
    ]
    waited: dict[tuple[UUID, str], list[Row]] = {}
    if items:
        for row in await tx.fetch_all(SQL["waited"], items=json.dumps(items)):
            waited.setdefault((row["run_id"], row["stage_id"]), []).append(row)
    return waited


async def _read_stages(
    command: JobSettle, fenced: Fenced, tx: TenantTransaction, scope: Scope
) -> dict[UUID, dict[str, StageRow]]:
    """Return the stages of the runs that must be looked at, with the large outputs of groups that may end now.

    While a sibling goes on elsewhere its state is all that counts. What earlier groups made came with the lease.
    """
    stages = await load_stages(tx, _runs_to_read(command, fenced))
    mine = [item.job for item in command.settlements if fenced.holds[item.job.fence] is Hold.MINE]
    ending = {(job.run_id, job.stage_id) for job in mine}
    groups = {job.run_id: job.placed.group for job in mine}
    members = [
        (run_id, stage)
        for run_id, group in groups.items()
        for stage in stages.get(run_id, {}).values()
        if stage.group == group
    ]
    going_on = {
        run_id
        for run_id, stage in members
        if stage.status not in TERMINAL_STAGE_STATUSES and (run_id, stage.stage_id) not in ending
    }
    await load_outputs(tx, [each for each in members if each[0] not in going_on], scope.blobs)
    return stages


def _runs_to_read(command: JobSettle, fenced: Fenced) -> list[UUID]:
    """Return the locked runs whose stages must be looked at: parallel groups, and leases that do not stand."""
    reads: set[UUID] = set()
    for item in command.settlements:
        job, hold = item.job, fenced.holds[item.job.fence]
        members = job.workflow.groups[job.placed.group - 1]
        if hold is Hold.LOST or (hold is Hold.MINE and len(members) > 1):
            reads.add(job.run_id)
    return sorted(reads)


def _stage_of(job: LeasedJob) -> StageRow:
    return StageRow(
        stage_id=job.stage_id,
        group=job.placed.group,
        number=job.placed.number,
        status=StageStatus.SUSPENDED if job.replay else StageStatus.RUNNING if job.begun else StageStatus.PENDING,
        attempt=job.attempt,
        announced_attempt=job.attempt,
        max_attempts=job.placed.stage.max_attempts,
        generation=job.generation,
        waiting_for=dict(job.waiting_for) if job.waiting_for is not None else None,
        job_status=JobStatus.RUNNING,
    )


def settle_one(item: Settlement, batch: SettleBatch) -> Settled:
    """Decide what becomes of one settlement and put its writes into the batch's changes."""
    job = item.job
    hold = batch.fenced.holds[job.fence]
    if hold is Hold.BUSY:
        return Settled(job.run_id, job.stage_id, "busy")
    if hold is Hold.GONE:
        return Settled(job.run_id, job.stage_id, "ghost", ghost_reason="orphan")
    draft = batch.draft(job)
    if hold is Hold.LOST:
        return _superseded(draft, job)
    ghost_reason = _ghost_reason(draft, job)
    if ghost_reason is not None:
        _discard(draft, job, ghost_reason)
        return Settled(job.run_id, job.stage_id, "ghost", ghost_reason=ghost_reason, run_status=draft.run.status)
    stage = draft.stages[job.stage_id]
    if job.replay and isinstance(item.outcome, StageCompleted | StageFailed):
        # Told now that it is known: most replays only find that there is still nothing to go on with.
        draft.changes.mark("run.resumed", draft.run, stage, at=job.fence.started_at)
    if (progress := item.report.progress) is not None:
        said = {"fraction": progress.fraction, "message": progress.message}
        draft.emit(EventType.STAGE_PROGRESS, stage_id=job.stage_id, **said)
    leased_before = len(draft.leased)
    delay = _apply(draft, stage, item, batch)
    return Settled(
        job.run_id,
        job.stage_id,
        "settled",
        stage_status=stage.status,
        run_status=draft.run.status,
        error=item.outcome.error if isinstance(item.outcome, StageFailed) else None,
        retry_delay_s=delay,
        next_poll_at=stage.next_poll_at if stage.status is StageStatus.SUSPENDED else None,
        next_jobs=tuple(draft.leased[leased_before:]),
    )


def _superseded(draft: RunDraft, job: LeasedJob) -> Settled:
    """Tell a lease that was taken from one that this worker settled itself without seeing the reply to its COMMIT."""
    stage = draft.stages.get(job.stage_id)
    mine = stage is not None and (
        (stage.settled_attempt, stage.settled_started_at) == (job.fence.attempt, job.fence.started_at)
    )
    if mine and stage is not None:
        if draft.run.status in TERMINAL_RUN_STATUSES and draft.run.updated_at == stage.updated_at:
            # It ended the run, in the same transaction; what was to be told of that waited for a reply that never came.
            draft.changes.finished(draft.run)
        return Settled(job.run_id, job.stage_id, "settled", stage_status=stage.status, run_status=draft.run.status)
    return Settled(job.run_id, job.stage_id, "superseded", run_status=draft.run.status)


def _ghost_reason(draft: RunDraft, job: LeasedJob) -> str | None:
    if draft.run.status is RunStatus.PENDING:
        return "race"
    if draft.run.status is not RunStatus.RUNNING or job.stage_id not in draft.stages:
        return "orphan"
    if draft.run.version != job.workflow.definition_version:
        return "version"
    return None


def _discard(draft: RunDraft, job: LeasedJob, ghost_reason: str) -> None:
    if ghost_reason == "orphan":
        draft.drop_job(job.stage_id)
        return
    stage = draft.stages.get(job.stage_id) or _stage_of(job)
    draft.defer(stage, job.fence.attempt, DEFERRAL if ghost_reason == "version" else RACE_DELAY)


def _apply(draft: RunDraft, stage: StageRow, item: Settlement, batch: SettleBatch) -> float | None:
    """Move the stage as its outcome says and the run with it; returns the delay of a retry in seconds."""
    job, outcome = item.job, item.outcome
    match outcome:
        case StageReleased():
            draft.defer(stage, job.fence.attempt, timedelta(0))
            return None
        case StageCompleted(output=output):
            draft.complete(stage, job.fence, output)
        case StageSkipped():
            draft.skip(stage, job.fence)
        case StageSuspended():
            waited = batch.waited.get((job.run_id, job.stage_id), [])
            stage.next_poll_at = suspend(draft, stage, job.fence, waited)
            return None
        case StageFailed():
            return _apply_failure(draft, stage, item, batch)
    draft.annotate(stage, item.annotations)
    advance(draft, batch.leases)
    return None


def _apply_failure(draft: RunDraft, stage: StageRow, item: Settlement, batch: SettleBatch) -> float | None:
    outcome, fence = item.outcome, item.job.fence
    assert isinstance(outcome, StageFailed)
    if stage.status is StageStatus.PENDING:
        # Its `when` raised before the stage began: that was an attempt all the same.
        stage.attempt += 1
    draft.annotate(stage, item.annotations)
    job = batch.fenced.jobs[fence.run_id, fence.stage_id]
    if outcome.retryable and fence.attempt < job.max_attempts:
        delay = retry_delay_s(fence.attempt)
        draft.retry(stage, fence.attempt, outcome.error, timedelta(seconds=delay))
        return delay
    draft.fail(stage, fence.attempt, outcome.error, outcome.code)
    return None
