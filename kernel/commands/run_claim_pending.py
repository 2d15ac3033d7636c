"""`run.claim_pending`: PENDING runs of served versions start, with the stages and jobs of their first group.

A run's input and config are checked here once more: runs from SQL were never checked, and one that is refused fails by
itself, without touching the others of its batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from kernel import payloads
from kernel.blobs import PAYLOAD_LOST, with_inputs
from kernel.capacity import standing_call
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands.due_promote import promotions
from kernel.definition.registry import Registry
from kernel.definition.workflow import Workflow
from kernel.draft import RunDraft
from kernel.drafting import loss_of
from kernel.errors import InvalidConfigError, InvalidInputError
from kernel.jobs import waited_ms
from kernel.lanes import EVERYWHERE, Look, Pair, Sight, lane_items, sight_of
from kernel.locking import LockedRun, locked_run
from kernel.opening import NO_LEASES, LeaseBudget, advance
from kernel.states import RunStatus
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
UNPINNED = ""


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that this command started."""

    run_id: UUID
    workflow_id: str
    definition_version: str


@dataclass(frozen=True, slots=True)
class RunsClaimed:
    """The runs that were started, oldest rank first.

    `refused` are those that failed because of their input or config, unfit or lost.
    """

    claimed: tuple[ClaimedRun, ...]
    refused: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class RunClaimPending(Command[RunsClaimed]):
    """Start up to `limit` ready runs of this tenant; their jobs are queued, not leased. Never waits for a row.

    Of a tenant that is not active nothing is started.
    """

    name: ClassVar[str] = "run.claim_pending"
    worker_id: str
    limit: int = 10


@handles(RunClaimPending)
async def run_claim_pending(command: RunClaimPending, tx: TenantTransaction, scope: Scope) -> RunsClaimed:
    """Promote what came due, lock, check, start."""
    if not scope.registry.served:
        return RunsClaimed(())
    calls: list[Call] = [*promotions(), standing_call(), claim_call(scope.registry, command.limit)]
    *_, (standing,), rows = await tx.fetch_batch(calls)
    if standing["status"] != "active":
        return RunsClaimed(())
    changes = Changes()
    pending = await with_inputs(scope.blobs, tx, rows)
    drafts = start_runs(pending, scope.registry, NO_LEASES, changes, tx.tenant_id)
    await changes.write(tx)
    return claimed_of(drafts)


def claim_call(registry: Registry, limit: int, look: Look = EVERYWHERE) -> Call:
    """Return the call that locks up to `limit` ready runs."""
    pairs = look.among(claimable_pairs(registry))
    return SQL["claim"], {"served": lane_items(pairs, look.floors), "limit": limit}


def claimable_pairs(registry: Registry) -> list[Pair]:
    """Return the pairs whose runs can be started: the served ones, and each workflow's runs that are not pinned."""
    return [*registry.served, *((workflow_id, UNPINNED) for workflow_id, _ in registry.served)]


def sight(rows: Sequence[Row], drafts: Sequence[RunDraft], promoted: Sequence[Row]) -> Sight:
    """Return what a claim saw, once its runs were started."""
    taken = {draft.run.run_id for draft in drafts}
    return sight_of(rows, lambda row: row["run_id"] in taken, promoted)


def start_runs(
    rows: Iterable[Row], registry: Registry, leases: LeaseBudget, changes: Changes, tenant_id: UUID
) -> list[RunDraft]:
    """Start the locked runs: pin, check, open the first group; the drafts come back in the order of the rows.

    A run that nobody has traced so far, from SQL for instance, has its `run.create` told here and its context stored
    with the pin.
    """
    drafts: list[RunDraft] = []
    pinned: dict[tuple[str, str], Workflow] = {}
    for row in rows:
        run = locked_run(row)
        workflow = _pin(run, registry)
        if workflow is None:
            continue
        draft = RunDraft(run, changes, workflow, run_input=row["input"], run_config=row["config"])
        draft.trace(tenant_id)
        draft.waited_ms = waited_ms(row["available_at"], run.now)
        refusal = _refusal(workflow, row)
        if refusal is None:
            draft.start()
            advance(draft, leases)
            pinned[workflow.id, workflow.definition_version] = workflow
        else:
            draft.finish(RunStatus.FAILED, error=refusal)
        drafts.append(draft)
    changes.insert_definitions += [definition_item(workflow) for workflow in pinned.values()]
    return drafts


def claimed_of(drafts: Sequence[RunDraft]) -> RunsClaimed:
    """Return what became of the drafts, as the command answers it."""
    started = [draft.run for draft in drafts if draft.run.status is RunStatus.RUNNING]
    return RunsClaimed(
        tuple(ClaimedRun(run.run_id, run.workflow_id, run.version) for run in started),
        tuple(draft.run.run_id for draft in drafts if draft.run.status is RunStatus.FAILED),
    )


def definition_item(workflow: Workflow) -> dict[str, Any]:
    """Return the snapshot of a definition as it is stored, content-addressed, for the tenant."""
    return {
        "workflow_id": workflow.id,
        "version": workflow.definition_version,
        "structure_hash": workflow.structure_hash,
        "snapshot": workflow.snapshot(),
    }


def _pin(run: LockedRun, registry: Registry) -> Workflow | None:
    workflow = registry.get(run.workflow_id) if run.version == UNPINNED else registry.find(run.workflow_id, run.version)
    if workflow is not None:
        run.version = workflow.definition_version
    return workflow


def _refusal(workflow: Workflow, payload: Row) -> dict[str, object] | None:
    lost = loss_of(payload)
    if lost is not None:
        return {"code": PAYLOAD_LOST, "message": lost, "stage_id": None}
    try:
        workflow.check_input_json(payload["input"])
        workflow.check_config_json(payload["config"])
    except InvalidInputError as refused:
        return _error("INVALID_INPUT", refused)
    except InvalidConfigError as refused:
        return _error("INVALID_CONFIG", refused)
    return None


def _error(code: str, refused: Exception) -> dict[str, object]:
    return {"code": code, "message": payloads.clean_text(f"{type(refused).__name__}: {refused}"), "stage_id": None}
