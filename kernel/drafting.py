"""Turns locked rows of jobs and runs into drafts, and clears away the jobs whose run is gone."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from kernel.blobs import loss, with_inputs
from kernel.changes import Changes
from kernel.command import Scope
from kernel.draft import RunDraft
from kernel.locking import StageRow, existing_runs, first_loss, load_stages, locked_run
from tenancy import Row, TenantTransaction


async def draft_held_runs(
    rows: Sequence[Row], changes: Changes, tx: TenantTransaction, scope: Scope
) -> tuple[dict[UUID, RunDraft], list[Row]]:
    """Return a draft for each run that was locked together with a job, and the jobs whose run no longer exists.

    Rows say `run_had` and, when it is true, carry the run's columns. Jobs without a run are removed; those whose run
    somebody else holds appear in neither answer and stay as they are. Outputs are read, whatever their size, where the
    rows have the runs' inputs: for bodies that are to run.
    """
    held = await with_inputs(scope.blobs, tx, [row for row in rows if row["run_had"]])
    unheld = [row for row in rows if not row["run_had"]]
    alive = await existing_runs(tx, [row["run_id"] for row in unheld])
    gone = [row for row in unheld if row["run_id"] not in alive]
    for row in gone:
        changes.drop_job(row["run_id"], row["stage_id"])
    are_for_bodies = any("input" in row for row in held)
    stages = await load_stages(tx, [row["run_id"] for row in held], scope.blobs if are_for_bodies else None)
    drafts: dict[UUID, RunDraft] = {}
    for row in held:
        if row["run_id"] not in drafts:
            drafts[row["run_id"]] = draft_of(row, changes, stages[row["run_id"]], scope)
    return drafts, gone


def draft_of(row: Row, changes: Changes, stages: dict[str, StageRow], scope: Scope) -> RunDraft:
    """Return the draft of a run from its locked row and its stages.

    Input and config are taken where the row has them; one that is lost, or an output that is, is the draft's `lost`.
    """
    run = locked_run(row)
    return RunDraft(
        run,
        changes,
        scope.registry.find(run.workflow_id, run.version),
        stages,
        outputs={stage.stage_id: stage.output for stage in stages.values() if stage.output is not None},
        run_input=row.get("input") or "null",
        run_config=row.get("config") or "{}",
        lost=loss_of(row) or first_loss(stages.values()),
    )


def loss_of(row: Row) -> str | None:
    """Return the error of a run whose input or config `with_inputs` did not find; None when it has both."""
    lost: Mapping[str, bytes] = row.get("lost", {})
    return next((loss(f"the run's {column}", digest) for column, digest in lost.items()), None)
