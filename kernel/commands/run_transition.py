"""`run.transition`: what follows from the states of a run's stages; a settle does the same in its own transaction."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.errors import RunNotFoundError
from kernel.locking import first_loss, load_stages, lock_run, recall_attempts
from kernel.opening import NO_LEASES, advance
from kernel.states import RunStatus
from kernel.transition import Action
from tenancy import TenantTransaction


@dataclass(frozen=True, slots=True)
class RunTransitioned:
    """What was done; `next_group` is the 1-based group that was opened when the run advanced."""

    action: Action
    next_group: int | None = None


@dataclass(frozen=True, slots=True)
class RunTransition(Command[RunTransitioned]):
    """Open a RUNNING run's next group, or finish the run, if its stages allow it; `noop` otherwise.

    A run of a version that this build does not serve is left alone. Locks the run, waiting for its holder.

    Raises:
        RunNotFoundError: the tenant has no such run.
    """

    name: ClassVar[str] = "run.transition"
    run_id: UUID


@handles(RunTransition)
async def run_transition(command: RunTransition, tx: TenantTransaction, scope: Scope) -> RunTransitioned:
    """Lock, look, move."""
    run = await lock_run(tx, command.run_id)
    if run is None:
        raise RunNotFoundError(command.run_id)
    workflow = scope.registry.find(run.workflow_id, run.version)
    if run.status is not RunStatus.RUNNING or workflow is None:
        return RunTransitioned("noop")
    stages = (await load_stages(tx, [run.run_id], scope.blobs))[run.run_id]
    await recall_attempts(tx, [run])
    outputs = {stage.stage_id: stage.output for stage in stages.values() if stage.output is not None}
    draft = RunDraft(run, Changes(scope.blobs), workflow, stages, outputs, lost=first_loss(stages.values()))
    decision = advance(draft, NO_LEASES)
    await draft.changes.write(tx)
    return RunTransitioned(decision.action, decision.next_group)
