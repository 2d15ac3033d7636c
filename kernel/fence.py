"""The fence of a lease: by it the database tells the worker that has a job from one that had it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Fence:
    """The lease that everything a worker writes about a stage is conditional on."""

    run_id: UUID
    stage_id: str
    attempt: int
    started_at: datetime

    def __hash__(self) -> int:
        """Hash what tells fences apart, cheaply: a worker looks one up a dozen times a stage."""
        return hash((self.run_id.int, self.stage_id, self.attempt))
