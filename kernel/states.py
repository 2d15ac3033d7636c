"""The states of runs, stages and jobs, and which of them are final.

The words are those of the database's CHECK constraints. Which command moves what is written in `CONTRIBUTING.md`.
"""

from enum import StrEnum


class RunStatus(StrEnum):
    """A run is never suspended: while a stage waits, its run stays RUNNING."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StageStatus(StrEnum):
    """The state of one stage of one run."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


class JobStatus(StrEnum):
    """A settled job is removed, so there is no state for it; FAILED marks a dead one."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"


TERMINAL_RUN_STATUSES = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
DONE_STAGE_STATUSES = frozenset({StageStatus.COMPLETED, StageStatus.SKIPPED})
TERMINAL_STAGE_STATUSES = DONE_STAGE_STATUSES | {StageStatus.FAILED, StageStatus.CANCELLED}
