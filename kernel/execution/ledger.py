"""What an execution asks of the ledger of its steps, and what it is told: the words between bodies and the database.

A worker answers with group commits, a caller's transaction at once; a body cannot tell them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from kernel.fence import Fence
from kernel.states import RunStatus

StepKind: TypeAlias = Literal["run", "wait", "signal", "sleep"]
StepStatus: TypeAlias = Literal["running", "pending", "completed", "failed"]
# done: the outcome is recorded · conflict: somebody else has the step · mine: the claim is had · kept: the row says how
# it is · lost: the stage's lease is somebody else's, or its run is over · gone: there is no such run · busy: try again
Verdict: TypeAlias = Literal["done", "conflict", "mine", "kept", "lost", "gone", "busy"]
OpName: TypeAlias = Literal["outcome", "claim", "open", "poll", "resolve"]


@dataclass(frozen=True, slots=True)
class StepOp:
    """One move of one step, under the lease of its stage.

    `values` are those that `tenantry.step_ledger_v2` reads for the op; durations are seconds, from the database's now.
    """

    op: OpName
    fence: Fence
    step_id: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as the ledger holds it; `result` is JSON text. `now` is the database's clock when it was read.

    A step that was claimed just now and that nobody had before has neither that nor its lease's end. `is_lost`: it is
    completed, and its result is in the blob store no more. `lapses`: how often in a row its lease had run out before
    its function could begin, in a row that `Ledger.read` returned.
    """

    step_id: str
    seq: int | None
    kind: StepKind
    status: StepStatus
    attempt: int
    failures: int
    stage_attempt: int
    is_reclaim: bool
    lease_expires_at: datetime | None
    due_at: datetime | None
    deadline_at: datetime | None
    external_key: str | None
    result: str | None
    error: str | None
    error_type: str | None
    now: datetime | None
    is_lost: bool = False
    lapses: int = 0


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """What became of an op; `row` is the step afterwards, None where there is none, and for an outcome."""

    verdict: Verdict
    run_status: RunStatus | None
    row: StepRow | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that a suspended stage waits for."""

    step_id: str
    kind: StepKind


@dataclass(frozen=True, slots=True)
class StepOwner:
    """Whose steps these are. `is_first`: no execution came before, so there is nothing to read."""

    tenant_id: UUID
    fence: Fence
    stage_attempt: int
    generation: int
    is_first: bool


class Ledger(Protocol):
    """Where the steps of one execution are kept."""

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        """Apply ops in one transaction and answer in their order, once it has committed (or is the caller's)."""
        ...

    async def read(self) -> Sequence[StepRow]:
        """Return every step of the stage."""
        ...
