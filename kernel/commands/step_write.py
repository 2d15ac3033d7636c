"""`step.write`: what bodies do with their steps, for many executions of one tenant in one statement.

An outcome needs the step's own attempt; everything else needs the stage's lease as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

import orjson

from kernel import payloads
from kernel.blobs import POSTGRES_BLOBS, BlobStore, PutAside, is_large, reference_to, step_results, with_contents
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.draft import RunDraft
from kernel.execution.journal import Annotation
from kernel.execution.ledger import StepAnswer, StepOp, StepRow
from kernel.locking import load_stages, lock_runs, locked_run
from kernel.states import RunStatus
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
_RUN_STATUSES: Final[Mapping[str | None, RunStatus | None]] = {None: None, **{each.value: each for each in RunStatus}}
# A run, a stage of it and a step of that.
Place: TypeAlias = tuple[UUID, str, str]


@dataclass(frozen=True, slots=True)
class StepWrite(Command[tuple[StepAnswer, ...]]):
    """Apply ops, each step at most once; answers come in their order.

    Locks the runs and waits for them only with `wait`; what somebody holds is `busy` otherwise. An outcome that comes
    too late leaves the annotation `step.outcome_conflict`, a result that is not in its row is read, unless the caller
    sees to the `follow_up` (`follows_up` false) because this is all that its transaction can send.
    """

    name: ClassVar[str] = "step.write"
    ops: Sequence[StepOp]
    wait: bool = False
    follows_up: bool = True


@handles(StepWrite)
async def step_write(command: StepWrite, tx: TenantTransaction, scope: Scope) -> tuple[StepAnswer, ...]:
    """Run the one statement; results that are too large for their rows follow those that were taken."""
    if not command.ops:
        return ()
    items = [_item(number, op) for number, op in enumerate(command.ops)]
    aside = PutAside(scope.blobs)
    given = ((number, aside.take(item, "result")) for number, item in enumerate(items))
    digests = {number: digest for number, digest in given if digest is not None}
    told = await tx.fetch_all(SQL["write"], ops=orjson.dumps(items).decode(), wait=command.wait)
    rows = {row["n"]: row for row in told}
    answers = tuple(
        _answer(op, rows[number]) if number in rows else _expected(op) for number, op in enumerate(command.ops)
    )
    if digests:
        taken = {n: digest for n, digest in digests.items() if _is_taken(command.ops[n], rows.get(n))}
        await _refer(command.ops, taken, aside, tx)
    if (digests or command.follows_up) and needs_follow_up(command.ops, answers):
        answers = await follow_up(command.ops, answers, tx, aside)
    return answers


async def read_steps(
    tx: TenantTransaction, run_id: UUID, stage_id: str, blobs: BlobStore = POSTGRES_BLOBS
) -> list[StepRow]:
    """Return every step of a stage, in the order of their first use; one whose result is lost says so.

    Raises:
        RunNotFoundError: the run was purged between two statements.
    """
    rows = await tx.fetch_all(SQL["ledger"], run_id=run_id, stage_id=stage_id)
    rows = await with_contents(blobs, tx, rows, "result")
    return [_row(row["step_id"], row) for row in rows]


def encode_ops(ops: Sequence[StepOp]) -> str:
    """Return ops as the JSON text that `tenantry.step_ledger_v2` takes."""
    return orjson.dumps([_item(number, op) for number, op in enumerate(ops)]).decode()


def has_large_result(ops: Iterable[StepOp], inline_bytes: int) -> bool:
    """Whether an op brings a result that is too large for its row, which takes statements of its own."""
    return any(is_large(op.values.get("result"), inline_bytes) for op in ops)


def needs_follow_up(ops: Sequence[StepOp], answers: Sequence[StepAnswer]) -> bool:
    """Whether the statement has left something to do: an outcome came too late, or a result is not in its row."""
    return any(_is_refused(op, answer) or _lacks_result(answer) for op, answer in zip(ops, answers, strict=True))


async def follow_up(
    ops: Sequence[StepOp], answers: Sequence[StepAnswer], tx: TenantTransaction, aside: PutAside
) -> tuple[StepAnswer, ...]:
    """Do what is left to do, and return the answers with the results that are not in their rows.

    Those are read from what was put aside, or from its store. A step whose result is lost says so in its row; one that
    is gone meanwhile is answered as its run.
    """
    refused = [op for op, answer in zip(ops, answers, strict=True) if _is_refused(op, answer)]
    if refused:
        await _note_conflicts(refused, tx)
    lacking = [_place(op) for op, answer in zip(ops, answers, strict=True) if _lacks_result(answer)]
    results = await step_results(aside, tx, lacking)
    return tuple(
        _with_result(answer, _place(op), results) if _lacks_result(answer) else answer
        for op, answer in zip(ops, answers, strict=True)
    )


async def _refer(ops: Sequence[StepOp], taken: Mapping[int, bytes], aside: PutAside, tx: TenantTransaction) -> None:
    """Keep the large results, by the numbers of their ops, whose steps are completed and have none."""
    kept = {(ops[n].fence.run_id, digest): aside.contents[ops[n].fence.run_id, digest] for n, digest in taken.items()}
    if kept:
        items = [{**_name_of(ops[n]), "digest": digest.hex()} for n, digest in taken.items()]
        await aside.store.put(tx, kept)
        await tx.send([reference_to("refer_steps", items)])


def _is_taken(op: StepOp, row: Row | None) -> bool:
    """Whether what an op brought is wanted: of those that were refused nothing is kept."""
    if row is None:
        return op.values.get("status") == "completed"
    return row["verdict"] in ("done", "kept") and row["status"] == "completed" and row["result"] is None


def _lacks_result(answer: StepAnswer) -> bool:
    """Whether a step has ended with a result that is not in its row.

    What an outcome recorded is known to who asked; a sleep ends without a result.
    """
    row = answer.row
    return row is not None and row.status == "completed" and row.result is None and row.kind != "sleep"


def _with_result(answer: StepAnswer, place: Place, results: Mapping[Place, str | None]) -> StepAnswer:
    if answer.row is None or place not in results:
        # Its run was purged, or redriven from its start, since the step was looked at: nobody waits for the answer.
        return StepAnswer("gone", answer.run_status, None)
    result = results[place]
    return replace(answer, row=replace(answer.row, result=result, is_lost=result is None))


def _place(op: StepOp) -> Place:
    return op.fence.run_id, op.fence.stage_id, op.step_id


def _name_of(op: StepOp) -> dict[str, Any]:
    return {"run_id": op.fence.run_id, "stage_id": op.fence.stage_id, "step_id": op.step_id}


def _is_refused(op: StepOp, answer: StepAnswer) -> bool:
    """Whether an effect has happened that the ledger will not hold; a heartbeat or a claim given back is none."""
    has_happened = op.values.get("status") == "completed" or op.values.get("error") is not None
    return answer.verdict == "conflict" and has_happened


async def _note_conflicts(refused: Sequence[StepOp], tx: TenantTransaction) -> None:
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
        **_name_of(op),
        "job_attempt": op.fence.attempt,
        "job_started_at": op.fence.started_at,
        **op.values,
    }


def _expected(op: StepOp) -> StepAnswer:
    """Answer an op that ended as it was to: an outcome recorded, or the claim of a step that nobody had before."""
    if op.op == "outcome":
        return StepAnswer("done", RunStatus.RUNNING, None)
    values = op.values
    row = StepRow(
        step_id=op.step_id,
        seq=values["seq"],
        kind=values["kind"],
        status="running",
        attempt=1,
        failures=0,
        stage_attempt=values["stage_attempt"],
        is_reclaim=False,
        lease_expires_at=None,
        due_at=None,
        deadline_at=None,
        external_key=values["external_key"],
        result=None,
        error=None,
        error_type=None,
        now=None,
    )
    return StepAnswer("mine", RunStatus.RUNNING, row)


def _answer(op: StepOp, row: Row) -> StepAnswer:
    is_asked_for = op.op != "outcome" and row["kind"] is not None
    return StepAnswer(row["verdict"], _RUN_STATUSES[row["run_status"]], _row(op.step_id, row) if is_asked_for else None)


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
        is_lost="lost" in row,
        lapses=row.get("lapses", 0),
    )
