"""`step.signal`: something outside tells a waiting step how it ends; also before the step, or its stage, exists."""

from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from kernel import payloads
from kernel.blobs import PutAside
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.errors import (
    FieldError,
    InvalidRequestError,
    PayloadError,
    PayloadTooLargeError,
    RunNotFoundError,
    SignalRefusedError,
    UnknownStageError,
)
from kernel.events import EventType
from kernel.execution.step_options import check_step_id
from kernel.locking import LockedRun, load_stages, lock_run
from kernel.states import TERMINAL_RUN_STATUSES, JobStatus, StageStatus
from kernel.suspension import wake
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class StepSignalled:
    """The step is completed; `already_completed` says that an earlier signal did it, whose payload stays."""

    signalled: bool
    already_completed: bool


@dataclass(frozen=True, slots=True)
class StepSignal(Command[StepSignalled]):
    """Complete a `wait_for_signal` step with a payload, JSON data or a model, and make its suspended stage due now.

    Takes the run's lock and waits for it. A leased stage is left alone: its settle looks again.

    Raises:
        InvalidRequestError, PayloadTooLargeError: the step id or the payload cannot be stored.
        RunNotFoundError: the tenant has no such run.
        UnknownStageError: the run's definition has no such stage.
        SignalRefusedError: the run is over, the step is of another kind or has timed out.
    """

    name: ClassVar[str] = "step.signal"
    run_id: UUID
    stage_id: str
    step_id: str
    payload: object = None


@handles(StepSignal)
async def step_signal(command: StepSignal, tx: TenantTransaction, scope: Scope) -> StepSignalled:
    """Check, lock, look, complete, wake."""
    payload = _checked(command, scope)
    run = await lock_run(tx, command.run_id)
    if run is None:
        raise RunNotFoundError(command.run_id)
    if run.status in TERMINAL_RUN_STATUSES:
        message = f"the run is {run.status}"
        raise SignalRefusedError(message)
    await _check_stage(run, command.stage_id, tx, scope)
    step = await tx.fetch_one(SQL["step"], run_id=run.run_id, stage_id=command.stage_id, step_id=command.step_id)
    if step is not None:
        if step["kind"] != "signal":
            message = f"step {command.step_id!r} does not wait for a signal"
            raise SignalRefusedError(message)
        if step["status"] == "completed":
            return StepSignalled(signalled=True, already_completed=True)
        if step["status"] == "failed" or step["is_late"]:
            message = f"step {command.step_id!r} has timed out"
            raise SignalRefusedError(message)
    aside = PutAside(scope.blobs)
    completed: dict[str, Any] = {"run_id": run.run_id, "payload": payload}
    digest = aside.take(completed, "payload")
    if digest is not None:
        await scope.blobs.put(tx, aside.contents)
    await tx.execute(SQL["complete"], **completed, stage_id=command.stage_id, step_id=command.step_id, digest=digest)
    stages = (await load_stages(tx, [run.run_id]))[run.run_id]
    draft = RunDraft(run, Changes(), workflow=None, stages=stages)
    draft.emit(EventType.STEP_SIGNALLED, stage_id=command.stage_id, step_id=command.step_id)
    stage = stages.get(command.stage_id)
    if stage is not None and stage.status is StageStatus.SUSPENDED and stage.job_status is JobStatus.PENDING:
        wake(draft, stage, stage.job_attempt)
    await draft.changes.write(tx)
    return StepSignalled(signalled=True, already_completed=False)


def _checked(command: StepSignal, scope: Scope) -> str:
    """Return the payload as JSON text; everything is refused before anything is locked."""
    try:
        check_step_id(command.step_id)
    except ValueError as error:
        raise InvalidRequestError([FieldError("/step_id", "invalid", str(error))]) from None
    if not command.stage_id or payloads.clean_text(command.stage_id) != command.stage_id:
        raise InvalidRequestError([FieldError("/stage_id", "invalid", "is no stage's id")])
    try:
        text = payloads.dump(payloads.plain(command.payload))
    except PayloadError as error:
        raise InvalidRequestError([error.below("/payload")]) from None
    size_bytes = len(text.encode())
    if size_bytes > scope.limits.max_payload_bytes:
        raise PayloadTooLargeError(size_bytes, scope.limits.max_payload_bytes)
    return text


async def _check_stage(run: LockedRun, stage_id: str, tx: TenantTransaction, scope: Scope) -> None:
    """Look the stage up in the registry, else in the stored snapshot; with neither, the signal is kept."""
    workflow = scope.registry.find(run.workflow_id, run.version) or (
        scope.registry.get(run.workflow_id) if not run.version else None
    )
    if workflow is not None:
        known = [placed.stage.id for placed in workflow.stages]
    else:
        row = await tx.fetch_one(SQL["snapshot_stages"], workflow_id=run.workflow_id, version=run.version)
        if row is None:
            return
        known = row["stage_ids"]
    if stage_id not in known:
        raise UnknownStageError(run.workflow_id, stage_id)
