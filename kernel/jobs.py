"""What a worker holds while it executes a stage: the lease, its fence and everything the body is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from kernel.definition.workflow import PlacedStage, Workflow
from kernel.fence import Fence
from kernel.transition import stage_input


def waited_ms(due_at: datetime, now: datetime) -> int:
    """Return for how many milliseconds something was due, by the database's clock."""
    return max(int((now - due_at).total_seconds() * 1000), 0)


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A stage leased to a worker.

    `attempt` is the stage's (what the body sees), `fence.attempt` the job's (what the retry budget counts).
    `outputs` holds
    the JSON texts of the run's completed stages, `run_input` and `run_config` those the run was created with.
    `begun` is
    false while the stage's `when` is still to be asked. `queue_wait_ms` runs from the moment the job was due.
    A `replay` executes a suspended stage again, which announced that it is `waiting_for` something. `event_sequence` is
    the run's when it was leased: while it stands, nothing has happened to the run since.
    """

    fence: Fence
    workflow: Workflow
    placed: PlacedStage
    attempt: int
    priority: int
    begun: bool
    run_input: str
    run_config: str
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    traceparent: str | None = None
    tracestate: str | None = None
    queue_wait_ms: int = 0
    replay: bool = False
    generation: int = 0
    redrive_count: int = 0
    waiting_for: Mapping[str, Any] | None = None
    event_sequence: int = 0

    @property
    def run_id(self) -> UUID:
        """The run this job belongs to."""
        return self.fence.run_id

    @property
    def stage_id(self) -> str:
        """The stage this job executes."""
        return self.fence.stage_id

    @property
    def input(self) -> str:
        """The JSON text that the stage's body receives."""
        return stage_input(self.workflow, self.placed.group, self.outputs, self.run_input)
