"""`run.redrive`: a run that is over goes on, under the same id, from where it ended, from a stage or from its start.

The stage that it goes on from is opened again in place: completed steps stay and keep their external keys, unfinished
ones are tried again under theirs, waits begin anew. Later stages are replaced. A restart from the start drops the
ledger: its steps have new external keys. What is superseded is archived first, as annotations `run.superseded_attempt`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar
from uuid import UUID

from kernel import payloads
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands.run_claim_pending import UNPINNED, definition_item
from kernel.definition.workflow import Place, Workflow
from kernel.draft import RunDraft
from kernel.errors import (
    BlobMissingError,
    FieldError,
    InvalidOutputError,
    InvalidRequestError,
    KernelError,
    RunNotFoundError,
    RunNotTerminalError,
    UnknownVersionError,
)
from kernel.events import EventType
from kernel.idempotency import KeyedRequest, key_faults
from kernel.locking import LockedRun, StageRow, first_loss, load_payloads, load_stages, lock_run, recall_attempts
from kernel.opening import create_stage, enqueue
from kernel.redriving import RedriveFrom, RedriveKind, Resumption, resume
from kernel.states import TERMINAL_RUN_STATUSES
from tenancy import Call, TenantTransaction, load_sql

SQL = load_sql(__file__)
LATEST = "latest"
SUPERSEDED = "run.superseded_attempt"


@dataclass(frozen=True, slots=True)
class RunRedriven:
    """How the run goes on; `superseded` counts the attempts of stages that were archived.

    `replayed` when an earlier request with the same key had done it: the rest is what that one was answered.
    """

    from_stage_id: str
    superseded: int
    redrive_count: int
    definition_version: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class RunRedrive(Command[RunRedriven]):
    """Let a run that is COMPLETED, FAILED or CANCELLED go on; `redrive_count` + 1.

    `last_failure` goes on where the run ended: at the stages that failed or were cancelled; of a run that COMPLETED,
    its last group is done again. `stage` goes on from `stage_id`, whose siblings stay as they are where they are done.
    `start` begins anew. `definition_version` pins the run to another registered version, or to the `latest`.
    Takes the run's lock and waits for it.

    Raises:
        InvalidRequestError: an unknown kind, a `stage_id` where none belongs or that was not reached, or a version that
            the run's input, config or outputs do not fit, or that cannot be checked because one of them is lost.
        UnknownStageError: the version that the run goes on with has no such stage.
        UnknownVersionError: it is not registered here.
        IdempotencyKeyReusedError: the key stands for another request.
        RunNotFoundError, RunNotTerminalError: there is no such run, or it is not over.
    """

    name: ClassVar[str] = "run.redrive"
    run_id: UUID
    kind: RedriveKind = "last_failure"
    stage_id: str | None = None
    definition_version: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """The definition that the run goes on with; `workflow` is None when this build does not serve it."""

    version: str
    places: Sequence[Place]
    workflow: Workflow | None


@dataclass(frozen=True, slots=True)
class _StoredPlace:
    """A stage of a definition that is only stored."""

    stage_id: str
    group: int
    number: int
    max_attempts: int


@handles(RunRedrive)
async def run_redrive(command: RunRedrive, tx: TenantTransaction, scope: Scope) -> RunRedriven:
    """Check, reserve the key, redrive, keep the answer."""
    start = RedriveFrom(command.kind, command.stage_id)
    faults = [*start.faults(), *_version_faults(command.definition_version), *key_faults(command.idempotency_key)]
    if faults:
        raise InvalidRequestError(faults)
    if command.idempotency_key is None:
        return await _redrive(command, start, tx, scope)
    keyed = KeyedRequest(command.name, command.idempotency_key, _fingerprint_source(command), command.run_id)
    earlier = await keyed.reserve(tx, scope.limits.idempotency_ttl)
    if earlier is not None:
        return replace(RunRedriven(**json.loads(earlier)), replayed=True)
    try:
        redriven = await _redrive(command, start, tx, scope)
    except KernelError:
        await keyed.release(tx)
        raise
    await keyed.keep(tx, json.dumps(asdict(redriven)))
    return redriven


def _version_faults(version: str | None) -> list[FieldError]:
    if version is None or (version and payloads.clean_text(version) == version):
        return []
    return [FieldError("/definition_version", "invalid", "is no version")]


def _fingerprint_source(command: RunRedrive) -> str:
    request = {
        "run_id": str(command.run_id),
        "kind": command.kind,
        "stage_id": command.stage_id,
        "definition_version": command.definition_version,
    }
    return json.dumps(request, ensure_ascii=False)


async def _redrive(command: RunRedrive, start: RedriveFrom, tx: TenantTransaction, scope: Scope) -> RunRedriven:
    """Lock, look, decide, archive, go on. Whatever is refused is refused before anything is written."""
    run = await lock_run(tx, command.run_id)
    if run is None:
        raise RunNotFoundError(command.run_id)
    if run.status not in TERMINAL_RUN_STATUSES:
        raise RunNotTerminalError(run.run_id, run.status)
    stages = (await load_stages(tx, [run.run_id]))[run.run_id]
    target = await _target(run, command.definition_version, tx, scope)
    plan = resume(run.workflow_id, target.places, stages, start)
    if target.workflow is not None and (target.version != run.version or not stages):
        await _check_fit(run, target.workflow, plan.kept, tx, scope)
    await recall_attempts(tx, [run])
    run.former_attempts.update((stage.stage_id, times) for stage in plan.dropped if (times := _times_begun(stage)))
    kept = {place.stage_id for place in plan.kept}
    superseded = [stage for stage in stages.values() if stage.stage_id not in kept and _times_begun(stage)]
    draft = RunDraft(run, Changes(), target.workflow, stages)
    await tx.send(_calls(run, plan, superseded, is_restart=start.kind == "start"))
    if target.version != run.version:
        await tx.send([(SQL["place_stages"], {"run_id": run.run_id, "items": _items(plan.kept)})])
    _go_on(draft, target, plan, superseded)
    await draft.changes.write(tx)
    return RunRedriven(plan.from_stage_id, len(superseded), run.redrive_count, run.version)


async def _target(run: LockedRun, asked: str | None, tx: TenantTransaction, scope: Scope) -> _Target:
    """Return the definition to go on with: the one that was asked for, else the one that the run is pinned to."""
    registry = scope.registry
    if asked == LATEST or (asked is None and run.version == UNPINNED):
        workflow = registry.get(run.workflow_id)
        version = LATEST
    else:
        version = asked or run.version
        workflow = registry.find(run.workflow_id, version)
    if workflow is not None:
        return _Target(workflow.definition_version, workflow.stages, workflow)
    # A run may stay with a version that is served elsewhere: its structure was stored when it was claimed.
    stored = None
    if version == run.version:
        stored = await tx.fetch_one(SQL["snapshot"], workflow_id=run.workflow_id, version=version)
    if stored is None:
        raise UnknownVersionError(run.workflow_id, version)
    stages = json.loads(stored["snapshot"])["stages"]
    places = [_StoredPlace(stage["id"], stage["group"], stage["number"], stage["max_attempts"]) for stage in stages]
    return _Target(version, places, None)


async def _check_fit(
    run: LockedRun, workflow: Workflow, kept: Sequence[Place], tx: TenantTransaction, scope: Scope
) -> None:
    """Refuse a version for which the run's payloads were never meant, before it fails on them stage by stage."""
    stages = (await load_stages(tx, [run.run_id], scope.blobs))[run.run_id]
    lost = first_loss(stages[place.stage_id] for place in kept)
    if lost is not None:
        raise _misfit(workflow, lost)
    try:
        given, config = (await load_payloads(tx, [run.run_id], scope.blobs))[run.run_id]
        workflow.check_input_json(given)
        workflow.check_config_json(config)
        for place in kept:
            placed, output = workflow.placed(place.stage_id), stages[place.stage_id].output
            if placed is not None and output is not None:
                placed.stage.decode_output(output)
    except (InvalidRequestError, InvalidOutputError, BlobMissingError) as refused:
        raise _misfit(workflow, str(refused)) from None


def _misfit(workflow: Workflow, why: str) -> InvalidRequestError:
    message = f"the run does not fit version {workflow.definition_version!r}: {why}"
    return InvalidRequestError([FieldError("/definition_version", "does_not_fit", message)])


def _times_begun(stage: StageRow) -> int:
    """Return how far a stage has counted; an attempt that was given back on a stop was announced all the same."""
    return max(stage.attempt, stage.announced_attempt)


def _calls(run: LockedRun, plan: Resumption, superseded: Sequence[StageRow], *, is_restart: bool) -> list[Call]:
    """Return the statements that archive what was, and clear the way."""
    of_run = {"run_id": run.run_id}
    dropped = {**of_run, "stage_ids": [stage.stage_id for stage in plan.dropped]}
    reopened = {**of_run, "stage_ids": [place.stage_id for place in plan.reopened]}
    archived = {
        **of_run,
        "stage_ids": [stage.stage_id for stage in superseded],
        "abandoned": dropped["stage_ids"],
        "redrive_count": run.redrive_count,
        "version": run.version,
    }
    return [
        (SQL["archive"], archived),
        (SQL["count_redrive"], {**of_run, "former_attempts": json.dumps(run.former_attempts)}),
        (SQL["drop_jobs"], of_run),
        (SQL["drop_ledger"], of_run) if is_restart else (SQL["drop_steps"], dropped),
        (SQL["drop_stages"], dropped),
        (SQL["reopen_steps"], reopened),
        (SQL["drop_timers"], reopened),
        (SQL["reopen_stages"], {**of_run, "items": _items(plan.reopened)}),
    ]


def _items(places: Sequence[Place]) -> str:
    return json.dumps(
        [
            {
                "stage_id": place.stage_id,
                "group_number": place.group,
                "number": place.number,
                "max_attempts": place.max_attempts,
            }
            for place in places
        ]
    )


def _go_on(draft: RunDraft, target: _Target, plan: Resumption, superseded: Sequence[StageRow]) -> None:
    """Draft the rest: the events, the run, the stages that there are none of, and the jobs."""
    for stage in superseded:
        draft.emit(EventType.ANNOTATION_CREATED, stage_id=stage.stage_id, key=SUPERSEDED)
    draft.run.version = target.version
    draft.run.redrive_count += 1
    draft.start()
    if target.workflow is not None:
        draft.changes.insert_definitions.append(definition_item(target.workflow))
    for place in plan.created:
        create_stage(draft, place)
    for place in (*plan.reopened, *plan.created):
        enqueue(draft, place)
