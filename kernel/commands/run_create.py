"""`run.create`: a PENDING run, its first event and its idempotency key, in the caller's transaction.

Refused requests write nothing and leave the transaction usable: every check comes before the first insert, and what
only a lock can tell (limits) takes the key back with it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, cast
from uuid import UUID

from kernel import payloads
from kernel.blobs import PutAside
from kernel.changes import encode
from kernel.command import Command, Scope, handles
from kernel.definition.workflow import Workflow
from kernel.errors import (
    DefinitionVersionConflictError,
    FieldError,
    IdempotencyKeyReusedError,
    InvalidConfigError,
    InvalidInputError,
    InvalidRequestError,
    PayloadError,
    PayloadTooLargeError,
    RateLimitedError,
    TenantSuspendedError,
    UnknownVersionError,
    UnknownWorkflowError,
)
from kernel.idempotency import key_faults
from kernel.states import RunStatus
from kernel.telemetry import creation_of
from kernel.work import Work
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
MAX_TAGS = 20
MAX_TAG_LENGTH = 64
# No limit is larger, so an unlimited figure beside a limited one is counted to here at most.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RunCreated:
    """The run that the request stands for; `replayed` when an earlier request with the same key had created it.

    `definition_version` is None for one that came from SQL and is not pinned yet. `created_at`, `run_at` and the
    `traceparent` of its `run.create` span are set for a run that this request created.
    """

    run_id: UUID
    status: RunStatus
    definition_version: str | None
    replayed: bool
    created_at: datetime | None = None
    run_at: datetime | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class RunCreate(Command[RunCreated]):
    """Start a run of a workflow.

    `input` is a plain JSON value or a model, `config` (`{stage_id: {…}}`) plain JSON. `run_at` is aware and delays the
    run, `priority` is 0 to 9 with 9
    first. The key is scoped to the tenant; a repeat with the same request returns the first run, with another it is
    refused. `traceparent` and `tracestate` are those of the caller's own span, trusted to be its parent; without them
    the current span is.

    Raises:
        UnknownWorkflowError, UnknownVersionError: nothing of that name is registered here.
        InvalidInputError, InvalidConfigError, InvalidRequestError: with a JSON pointer to each fault.
        PayloadTooLargeError, RateLimitedError, TenantSuspendedError: the tenant's standing or limits forbid it.
        IdempotencyKeyReusedError: the key stands for another request.
        DefinitionVersionConflictError: the declared version stands for another structure in this tenant's history.
    """

    name: ClassVar[str] = "run.create"
    workflow_id: str
    input: object
    config: Mapping[str, object] = field(default_factory=dict[str, object], kw_only=True)
    priority: int = field(default=5, kw_only=True)
    run_at: datetime | None = field(default=None, kw_only=True)
    tags: Sequence[str] = field(default=(), kw_only=True)
    definition_version: str | None = field(default=None, kw_only=True)
    idempotency_key: str | None = field(default=None, kw_only=True)
    traceparent: str | None = field(default=None, kw_only=True)
    tracestate: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class _Request:
    """The checked request, with its payloads as JSON text."""

    command: RunCreate
    workflow: Workflow
    input: str
    config: str

    def fingerprint_source(self) -> str:
        """Return the JSON text whose `jsonb` form is the request's fingerprint (public-details.md, "Idempotency")."""
        run_at = self.command.run_at
        parts = {
            "workflow": json.dumps(self.command.workflow_id, ensure_ascii=False),
            "input": self.input,
            "config": self.config,
            "priority": str(self.command.priority),
            "tags": json.dumps(list(self.command.tags), ensure_ascii=False),
            "run_at": "null" if run_at is None else f'"{run_at.astimezone(UTC).isoformat(timespec="microseconds")}"',
        }
        return "{" + ",".join(f'"{key}":{text}' for key, text in parts.items()) + "}"


@handles(RunCreate)
async def run_create(command: RunCreate, tx: TenantTransaction, scope: Scope) -> RunCreated:
    """Check, reserve the key, keep within the limits, insert."""
    request = _check(command, scope)
    admission = await tx.fetch_one(SQL["admit"])
    assert admission is not None
    _admit(request, admission, scope)
    if request.workflow.declared:
        await _compare_declared(request, tx)
    run_id: UUID = admission["run_id"]
    if command.idempotency_key is not None:
        earlier = await _reserve_key(request, run_id, tx, scope)
        if earlier is not None:
            return earlier
    if admission["limited"]:
        await _keep_within_limits(request, run_id, admission, tx)
    now: datetime = admission["now"]
    version = request.workflow.definition_version
    work = Work(tx.tenant_id, run_id, command.workflow_id, op="run.create")
    creation = creation_of(work, command.traceparent, command.tracestate)
    run_at = command.run_at or now
    created = RunCreated(run_id, RunStatus.PENDING, version, False, now, run_at, creation.traceparent)
    aside = PutAside(scope.blobs)
    call = _creation(request, created, creation.tracestate, aside)
    if aside.contents:
        await scope.blobs.put(tx, aside.contents)
    await tx.send([call])
    tx.after_commit(creation.tell)
    return created


def admission_call() -> Call:
    """Return the read that every creation begins with, for whoever opens the transaction and can ask for it early."""
    return SQL["admit"], {}


def _check(command: RunCreate, scope: Scope) -> _Request:
    faults = [*_check_options(command), *_check_tags(command.tags)]
    if faults:
        raise InvalidRequestError(faults)
    workflow = scope.registry.get(command.workflow_id)
    if workflow is None:
        raise UnknownWorkflowError(command.workflow_id)
    version = command.definition_version
    if version is not None and scope.registry.find(command.workflow_id, version) is None:
        raise UnknownVersionError(command.workflow_id, version)
    command = _with_plain_input(command)
    input_text = _dump(command.input, "/input", InvalidInputError)
    config_text = _dump(dict(command.config), "/config", InvalidConfigError)
    _check_size(len(input_text.encode()) + len(config_text.encode()), scope.limits.max_payload_bytes)
    workflow.validate_input(command.input)
    workflow.validate_config(command.config)
    return _Request(command, workflow, input_text, config_text)


def _with_plain_input(command: RunCreate) -> RunCreate:
    try:
        value = payloads.plain(command.input)
    except PayloadError as refused:
        raise InvalidInputError([refused.below("/input")]) from None
    return command if value is command.input else replace(command, input=value)


def _check_options(command: RunCreate) -> list[FieldError]:
    faults: list[FieldError] = []
    priority = cast("object", command.priority)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:  # noqa: PLR2004 - the scale
        faults.append(FieldError("/priority", "out_of_range", "must be a whole number from 0 to 9"))
    if command.run_at is not None and command.run_at.utcoffset() is None:
        faults.append(FieldError("/run_at", "naive_datetime", "must carry an offset from UTC"))
    return [*faults, *key_faults(command.idempotency_key)]


def _check_tags(tags: Sequence[str]) -> list[FieldError]:
    if len(tags) > MAX_TAGS:
        return [FieldError("/tags", "too_long", f"must have at most {MAX_TAGS} entries")]
    return [
        FieldError(f"/tags/{index}", "invalid_tag", f"must have 1 to {MAX_TAG_LENGTH} storable characters")
        for index, tag in enumerate(tags)
        if not 1 <= len(tag) <= MAX_TAG_LENGTH or payloads.clean_text(tag, 4096) != tag
    ]


def _dump(value: object, pointer: str, error: type[InvalidInputError] | type[InvalidConfigError]) -> str:
    try:
        return payloads.dump(value)
    except PayloadError as refused:
        raise error([refused.below(pointer)]) from None


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLargeError(size, limit)


def _admit(request: _Request, admission: Row, scope: Scope) -> None:
    if admission["tenant_status"] not in (None, "active"):
        raise TenantSuspendedError
    if admission["payload_bytes"] is not None:
        size = len(request.input.encode()) + len(request.config.encode())
        _check_size(size, min(admission["payload_bytes"], scope.limits.max_payload_bytes))


async def _compare_declared(request: _Request, tx: TenantTransaction) -> None:
    workflow = request.workflow
    kept = await tx.fetch_one(SQL["declared_structure"], workflow_id=workflow.id, version=workflow.definition_version)
    if kept is not None and kept["structure_hash"] != workflow.structure_hash:
        message = f"version {workflow.definition_version!r} of workflow {workflow.id!r} stands for another structure"
        raise DefinitionVersionConflictError(message)


async def _reserve_key(request: _Request, run_id: UUID, tx: TenantTransaction, scope: Scope) -> RunCreated | None:
    """Take the key for `run_id` and return None, or return the run that it stands for."""
    key = request.command.idempotency_key
    named: dict[str, Any] = {"key": key, "request": request.fingerprint_source()}
    taking: dict[str, Any] = {**named, "run_id": run_id, "ttl": scope.limits.idempotency_ttl}
    while True:
        if await tx.fetch_one(SQL["reserve_key"], **taking) is not None:
            return None
        found = await tx.fetch_one(SQL["find_key"], **named)
        if found is None:
            # The holder's row went between the two statements (it was purged, or refused and released): the key is
            # free.
            continue
        if found["expired"]:
            if await tx.fetch_one(SQL["take_over_key"], **taking, seen_expiry=found["expires_at"]) is not None:
                return None
            continue
        if not found["same_request"]:
            raise IdempotencyKeyReusedError(str(key))
        return RunCreated(found["run_id"], RunStatus(found["status"]), found["version"] or None, replayed=True)


async def _keep_within_limits(request: _Request, run_id: UUID, admission: Row, tx: TenantTransaction) -> None:
    # Lock first, count in a later statement: two creations at once would both count one too few.
    pending, per_minute = admission["pending_runs"], admission["runs_per_minute"]
    if pending is None and per_minute is None:
        return
    await tx.fetch_one(SQL["lock_creation"])
    usage = await tx.fetch_one(
        SQL["usage"],
        pending_runs=UNLIMITED if pending is None else pending,
        runs_per_minute=0 if per_minute is None else per_minute,
    )
    assert usage is not None
    refusal: RateLimitedError | None = None
    if pending is not None and usage["pending_runs"] >= pending:
        refusal = RateLimitedError(1.0, "pending_runs")
    elif per_minute is not None and usage["recent_runs"] >= per_minute:
        refusal = RateLimitedError(max(usage["free_in_s"] or 60.0, 0.1), "runs_per_minute")
    if refusal is not None:
        if request.command.idempotency_key is not None:
            await tx.execute(SQL["release_key"], key=request.command.idempotency_key, run_id=run_id)
        raise refusal


def _creation(request: _Request, created: RunCreated, tracestate: str | None, aside: PutAside) -> Call:
    command = request.command
    run: dict[str, Any] = {
        "run_id": created.run_id,
        "workflow_id": command.workflow_id,
        "version": created.definition_version,
        "priority": command.priority,
        "run_at": command.run_at,
        "input": request.input,
        "config": request.config,
        "traceparent": created.traceparent,
        "tracestate": tracestate,
    }
    for column in ("input", "config"):
        digest = aside.take(run, column)
        if digest is not None:
            run[f"{column}_digest"] = digest.hex()
    tags = [{"tag": tag, "run_id": created.run_id} for tag in sorted(set(command.tags))]
    arguments = {"at": created.created_at, "runs": encode([run]), "tags": encode(tags) if tags else None}
    return SQL["create"], arguments
