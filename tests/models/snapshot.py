"""The rows of a run at one moment, as a model test compares them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kernel import Fence
from tests.models.clockwork import Row
from tests.models.program import Name
from tests.support.blobs import UNMATCHED

UNSAFE = "kernel.step_errors.StepNotReplaySafeError"
OVER = {"COMPLETED", "FAILED", "CANCELLED"}
DONE = {"COMPLETED", "SKIPPED"}
QUERIES = (
    """
    select run.*, coalesce(run.output, blob.content::json) as output
    from tenantry.workflow_runs as run
    left join tenantry.workflow_blobs as blob
      on run.status = 'COMPLETED' and blob.run_id = run.run_id and blob.digest = run.output_digest
    where run.run_id = %(run_id)s
    """,
    "select * from tenantry.workflow_stages where run_id = %(run_id)s order by number",
    "select * from tenantry.job_queue where run_id = %(run_id)s",
    """
    select step.*, coalesce(step.result, blob.content::json) as result
    from tenantry.workflow_steps as step
    left join tenantry.workflow_blobs as blob
      on step.status = 'completed' and blob.run_id = step.run_id and blob.digest = step.result_digest
    where step.run_id = %(run_id)s
    """,
    "select * from tenantry.outbox_events where run_id = %(run_id)s and sequence > %(told)s order by sequence",
    "select * from tenantry.workflow_annotations where run_id = %(run_id)s and key like any(array['step.%%', 'run.%%'])",
    UNMATCHED,
)
SHOWN = ("status", "attempt", "result", "error", "is_reclaim", "due_at", "lease_expires_at", "deadline_at", "claim_id")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run, its stages and jobs by stage, its steps, events and annotations at one moment of the engine's clock.

    `strays` are payloads in the blob store that nothing refers to, and references to none.
    """

    now: datetime
    run: Row | None = None
    stages: Mapping[str, Row] = field(default_factory=dict)
    jobs: Mapping[str, Row] = field(default_factory=dict)
    steps: Mapping[Name, Row] = field(default_factory=dict)
    events: Sequence[Row] = ()
    notes: Sequence[Row] = ()
    strays: Sequence[Row] = ()

    @classmethod
    def of(cls, now: datetime, rows: Sequence[Sequence[Row]], told: Sequence[Row]) -> "Snapshot":
        """Make one of what the queries answer; `told` are the events before."""
        (run,), stages, jobs, steps, events, notes, strays = rows
        return cls(
            now=now,
            run=run,
            stages={row["stage_id"]: row for row in stages},
            jobs={row["stage_id"]: row for row in jobs},
            steps={(row["stage_id"], row["step_id"]): row for row in steps},
            events=[*told, *events],
            notes=notes,
            strays=strays,
        )

    @property
    def is_over(self) -> bool:
        return self.run is not None and self.run["status"] in OVER

    def standing(self, stage_id: str) -> tuple[Any, ...]:
        """Return how the run, one stage of it and that one's job stand, and whether the job is a replay."""
        job = self.jobs.get(stage_id)
        rows = (self.run, self.stages.get(stage_id), job)
        return *(status_of(row) for row in rows), job["replay"] if job else None

    def fence(self, stage_id: str) -> Fence | None:
        """Return the lease of a stage's job, None when nobody has it."""
        job = self.jobs.get(stage_id)
        if job is None or job["status"] != "RUNNING":
            return None
        return Fence(job["run_id"], job["stage_id"], job["attempt"], job["started_at"])

    def leases(self) -> set[Fence]:
        return {fence for stage_id in self.jobs if (fence := self.fence(stage_id)) is not None}


def status_of(row: Row | None) -> str | None:
    return row["status"] if row else None


def short(row: Row | None) -> str:
    """Say of a step's row what matters."""
    if row is None:
        return "nothing"
    return " ".join(f"{name}={row[name]}" for name in SHOWN if row[name] is not None)


def moves(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Name what stages and steps did between two commits, so that a test can tell whether it saw enough."""
    for name, new in after.steps.items():
        old = before.steps.get(name)
        if old is None or old["status"] != new["status"] or old["attempt"] != new["attempt"]:
            is_taken = new["is_reclaim"] and new["status"] == "running"
            note = " taken over" if is_taken else " unsafe" if new["error_type"] == UNSAFE else ""
            yield f"{new['kind']} {old['status'] if old else 'new'} > {new['status']}{note}"
            if new["kind"] == "run":
                yield f"{kind_of(new)} {new['status']}{note}"
    for stage_id, new in after.stages.items():
        old = before.stages.get(stage_id)
        if status_of(old) == new["status"]:
            continue
        note = " by a sibling" if new["status"] == "CANCELLED" and status_of(after.run) == "FAILED" else ""
        yield f"stage {status_of(old) or 'new'} > {new['status']}{note}"
        if old is None:
            yield f"group {new['group_number']} begins"
    if len(after.leases()) > 1 and after.leases() != before.leases():
        yield "two stages at once"
    if status_of(before.run) != status_of(after.run) == "COMPLETED" and after.run["output_digest"] is not None:
        yield "output in the blob store"


def kind_of(step: Row) -> str:
    """Return what the function of a step does, which its id ends in."""
    kind: str = step["step_id"].rpartition("-")[2]
    return kind
