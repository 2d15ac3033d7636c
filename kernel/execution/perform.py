"""Runs a leased job's body outside the database, its `when` first, for callers that are no worker host."""

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

from kernel.execution.abort import AbortSignal
from kernel.execution.journal import Annotation, Report, StageJournal
from kernel.execution.ledger import Ledger, StepOp, StepOwner
from kernel.execution.outcome import StageFailed, StageOutcome, StageSkipped
from kernel.execution.stage_runner import StageInvocation, run_stage, run_when
from kernel.execution.step_execution import StepExecution
from kernel.jobs import LeasedJob

# Threads are made as they are needed: a body in one, or its plain step functions in several.
STEP_THREADS = 32


@dataclass(frozen=True, slots=True)
class Performance:
    """What a body came to, with its annotations, its last words and the moves of its steps that its settle writes."""

    outcome: StageOutcome
    annotations: tuple[Annotation, ...] = ()
    steps: tuple[StepOp, ...] = ()
    report: Report = field(default_factory=Report)


def give_steps(invocation: StageInvocation, job: LeasedJob, ledger: Ledger, *, linger_s: float | None) -> StepExecution:
    """Give a begun job's invocation its durable steps, kept in `ledger`."""
    # Without an execution before this one there is no row to read; a signal sent ahead is met by the step that opens.
    is_first = not (job.replay or job.attempt > 1 or job.fence.attempt > 1 or job.redrive_count)
    owner = StepOwner(invocation.tenant_id, job.fence, invocation.attempt, job.generation, is_first)
    steps = StepExecution(ledger, owner, invocation.abort, linger_s=linger_s)
    steps.max_result_bytes = invocation.max_output_bytes
    invocation.steps = steps
    return steps


def invocation_of(
    job: LeasedJob, tenant_id: UUID, max_output_bytes: int, *, abort: AbortSignal, journal: StageJournal
) -> StageInvocation:
    """Return what the stage runner needs to execute a leased job; the body sees its attempt counted, and no steps."""
    return StageInvocation(
        tenant_id=tenant_id,
        run_id=job.run_id,
        workflow=job.workflow,
        placed=job.placed,
        attempt=job.attempt if job.begun else job.attempt + 1,
        input=job.input,
        config=job.run_config,
        outputs=job.outputs,
        abort=abort,
        journal=journal,
        max_output_bytes=max_output_bytes,
    )


async def ask_when(job: LeasedJob, tenant_id: UUID, max_output_bytes: int, journal: StageJournal) -> Performance | None:
    """Return how the job ends without its body, or None when the body is to run."""
    if job.begun:
        return None
    threads = ThreadPoolExecutor(1, thread_name_prefix="tenantry-when")
    try:
        invocation = invocation_of(job, tenant_id, max_output_bytes, abort=AbortSignal(), journal=journal)
        answer = await run_when(invocation, threads)
    finally:
        threads.shutdown(wait=False)
    if answer is True:
        return None
    return Performance(answer if isinstance(answer, StageFailed) else StageSkipped(), report=journal.take_report())


async def perform(
    job: LeasedJob, tenant_id: UUID, max_output_bytes: int, ledger: Ledger, journal: StageJournal
) -> Performance:
    """Execute the body of a begun job; a `def` body runs in a thread of its own. Outcomes of steps do not linger."""
    invocation = invocation_of(job, tenant_id, max_output_bytes, abort=AbortSignal(), journal=journal)
    threads: Executor = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="tenantry-stage")
    steps = give_steps(invocation, job, ledger, linger_s=None)
    try:
        outcome = await run_stage(invocation, threads)
    finally:
        threads.shutdown(wait=False)
    return Performance(outcome, tuple(journal.annotations()), steps.remaining, journal.take_report())
