"""`step.write`: what bodies do with their steps, for many executions of one tenant in one statement.

An outcome needs the step's own attempt; everything else needs the stage's lease as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

import orjson

from kernel import payloads
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.execution.journal import Annotation
from kernel.execution.ledger import StepAnswer, StepOp, StepRow
from kernel.locking import load_stages, lock_runs, locked_run
from kernel.states import RunStatus
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class StepWrite(Command[tuple[StepAnswer, ...]]):
    """Apply ops, each step at most once; answers come in their order.

    Locks the runs and waits for them only with `wait`; what somebody holds is `busy` otherwise. An outcome that comes
    too late leaves the annotation `step.outcome_conflict`, unless the caller notes it (`notes_conflicts` false) because
    this is all that its transaction can send.
    """

    name: ClassVar[str] = "step.write"
    ops: Sequence[StepOp]
    wait: bool = False
    notes_conflicts: bool = True


@handles(StepWrite)
async def step_write(command: StepWrite, tx: TenantTransaction, _scope: Scope) -> tuple[StepAnswer, ...]:
    """Run the one statement."""
    if not command.ops:
        return ()
    rows = await tx.fetch_all(SQL["write"], ops=encode_ops(command.ops), wait=command.wait)
    answers = tuple(_answer(op, row) for op, row in zip(command.ops, rows, strict=True))
    refused = refused_ops(command.ops, answers)
    if refused and command.notes_conflicts:
        await note_conflicts(refused, tx)
    return answers


async def read_steps(tx: TenantTransaction, run_id: UUID, stage_id: str) -> list[StepRow]:
    """Return every step of a stage, in the order of their first use."""
    rows = await tx.fetch_all(SQL["ledger"], run_id=run_id, stage_id=stage_id)
    return [_row(row["step_id"], row) for row in rows]


def encode_ops(ops: Sequence[StepOp]) -> str:
    """Return ops as the JSON text that `tenantry.step_ledger_v1` takes."""
    return orjson.dumps([_item(number, op) for number, op in enumerate(ops)]).decode()


def refused_ops(ops: Sequence[StepOp], answers: Sequence[StepAnswer]) -> list[StepOp]:
    """Return the outcomes that came too late for the ledger."""
    return [op for op, answer in zip(ops, answers, strict=True) if _is_refused(op, answer)]


def _is_refused(op: StepOp, answer: StepAnswer) -> bool:
    """Whether an effect has happened that the ledger will not hold; a heartbeat or a claim given back is none."""
    has_happened = op.values.get("status") == "completed" or op.values.get("error") is not None
    return answer.verdict == "conflict" and has_happened


async def note_conflicts(refused: Sequence[StepOp], tx: TenantTransaction) -> None:
    """Leave `step.outcome_conflict` with each stage, once: nobody else would hear of it, its settle being fenced out.

    Locks the runs that nobody else holds. A run that is over gets no further event.
    """
    run_ids = sorted({op.fence.run_id for op in refused})
    (rows,) = await tx.fetch_batch([lock_runs(run_ids, wait=False)])
    runs = {run.run_id: run for run in map(locked_run, rows)}
    stages = await load_stages(tx, list(runs))
    # A write whose reply was lost is repeated, and is refused as often.
    rows = await tx.fetch_all(SQL["told"], run_ids=list(runs))
    known = {(row["run_id"], row["stage_id"], row["step_id"], row["attempt"]) for row in rows}
    changes = Changes()
    drafts = {run_id: RunDraft(run, changes, None, stages[run_id]) for run_id, run in runs.items()}
    for op in refused:
        draft = drafts.get(op.fence.run_id)
        stage = draft.stages.get(op.fence.stage_id) if draft is not None else None
        is_known = (op.fence.run_id, op.fence.stage_id, op.step_id, str(op.values["attempt"])) in known
        if draft is None or stage is None or is_known:
            continue
        told = {"step_id": op.step_id, "attempt": op.values["attempt"], "status": op.values["status"]}
        annotation = Annotation("step.outcome_conflict", payloads.dump(told), None)
        draft.annotate(stage, [annotation], is_news=draft.run.status is RunStatus.RUNNING)
    await changes.write(tx)


def _item(number: int, op: StepOp) -> dict[str, Any]:
    return {
        "n": number,
        "op": op.op,
        "run_id": op.fence.run_id,
        "stage_id": op.fence.stage_id,
        "step_id": op.step_id,
        "job_attempt": op.fence.attempt,
        "job_started_at": op.fence.started_at,
        **op.values,
    }


def _answer(op: StepOp, row: Row) -> StepAnswer:
    status = RunStatus(row["run_status"]) if row["run_status"] else None
    return StepAnswer(row["verdict"], status, _row(op.step_id, row) if row["kind"] is not None else None)


def _row(step_id: str, row: Row) -> StepRow:
    return StepRow(
        step_id=step_id,
        seq=row["seq"],
        kind=row["kind"],
        status=row["status"],
        attempt=row["attempt"],
        failures=row["failures"],
        stage_attempt=row["stage_attempt"],
        is_reclaim=row["is_reclaim"],
        lease_expires_at=row["lease_expires_at"],
        due_at=row["due_at"],
        deadline_at=row["deadline_at"],
        external_key=row["external_key"],
        result=row["result"],
        error=row["error"],
        error_type=row["error_type"],
        now=row["now"],
    )
