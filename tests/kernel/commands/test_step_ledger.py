"""The ledger's function: it does what that of the release before does (0018), and tells of what went otherwise only."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from kernel import LeasedJob, RunCancel, StepOp, StepWrite
from kernel.commands.step_write import encode_ops
from tenancy import load_sql
from tests.support.workflows import HandWorker

SQL = load_sql(__file__)
MINE, THEIRS, OLD = (str(uuid4()) for _ in range(3))
LEASE_S = 60.0


class UndoneError(Exception):
    """Rolls a transaction back."""


def claim(job: LeasedJob, step_id: str, claim_id: str = MINE, **values: object) -> StepOp:
    given = {"lease_s": LEASE_S, "external_key": step_id, "on_reclaim": "rerun", "stage_attempt": 1, **values}
    return StepOp("claim", job.fence, step_id, {"kind": "run", "seq": 1, "claim_id": claim_id, **given})


def outcome(job: LeasedJob, step_id: str, claim_id: str = MINE, *, attempt: int = 1, **values: object) -> StepOp:
    given = {"status": "completed", "result": "[1]", **values}
    return StepOp("outcome", job.fence, step_id, {"attempt": attempt, "claim_id": claim_id, **given})


def wait(op: Any, job: LeasedJob, step_id: str, **values: object) -> StepOp:
    return StepOp(op, job.fence, step_id, {"kind": "wait", "seq": 2, "stage_attempt": 1, **values})


async def write(hand: HandWorker, *ops: StepOp, offset: timedelta | None = None) -> None:
    async with hand.transaction(offset) as tx:
        await hand.kernel.dispatch(StepWrite(list(ops), wait=True), tx)


async def told(hand: HandWorker, version: str, ops: list[StepOp]) -> tuple[dict[int, Any], list[Any]]:
    """Return what one version answers, by the ops' numbers, and every step as it leaves it; nothing of it stays."""
    answers: dict[int, Any] = {}
    steps: list[Any] = []
    with suppress(UndoneError):
        async with hand.transaction(timedelta(seconds=LEASE_S / 2)) as tx:
            rows = await tx.fetch_all(SQL[f"told_{version}"], ops=encode_ops(ops), wait=False)
            answers = {row["answer"]["n"]: row["answer"] for row in rows}
            steps = await tx.fetch_all(SQL["steps"])
            raise UndoneError
    return answers, steps


async def test_what_went_as_it_was_to_is_not_told_of_and_everything_is_done_as_before(hand: HandWorker) -> None:
    for _ in range(3):
        await hand.create("single")
    job, other, over = await hand.tick()
    await write(
        hand,
        *(claim(job, step) for step in ("done", "failed", "again", "beaten", "held", "ended", "repeated", "retried")),
        *(claim(over, step) for step in ("late", "late-failure", "late-beat")),
        *(claim(other, step, OLD, lease_s=1.0) for step in ("lapsed", "unsafe", "taken")),
        *(wait("open", other, step, timeout_s=90.0, delay_s=0.0) for step in ("polled", "resolved")),
    )
    await write(hand, outcome(job, "ended"), outcome(job, "retried", status="pending", result=None, delay_s=0.0))
    await write(hand, claim(other, "taken", THEIRS), offset=timedelta(seconds=10))
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(over.run_id, reason="enough"), tx)
    stranger = replace(job, fence=replace(job.fence, run_id=uuid4()))
    zombie = replace(job, fence=replace(job.fence, attempt=7))
    news = [
        outcome(job, "ended"),
        outcome(job, "held", OLD),
        outcome(other, "taken", OLD),
        outcome(other, "taken", THEIRS, attempt=1),
        outcome(over, "late"),
        outcome(over, "late-failure", status="failed", result=None, error="E: e", error_type="E", failures=1),
        outcome(over, "late-beat", status="running", result=None, lease_s=5.0),
        outcome(stranger, "s"),
        claim(stranger, "s"),
        claim(zombie, "z"),
        claim(over, "new"),
        wait("open", job, "sleep", delay_s=5.0),
        wait("poll", other, "polled", delay_s=5.0, error="E: e", error_type="E", failures=2),
        wait("resolve", other, "resolved", status="completed", result="[2]"),
    ]
    silent = [
        outcome(job, "done"),
        outcome(job, "failed", status="failed", result=None, error="E: e", error_type="E", failures=1),
        outcome(job, "again", status="pending", result=None, error="E: e", error_type="E", failures=1, delay_s=5.0),
        outcome(job, "beaten", status="running", result=None, lease_s=5.0),
    ]
    fresh = [claim(job, "one"), claim(other, "two")]
    met = [
        claim(job, "held", THEIRS),
        claim(job, "repeated"),
        claim(job, "retried", THEIRS),
        claim(other, "lapsed", THEIRS),
        claim(other, "unsafe", THEIRS, on_reclaim="fail"),
        wait("open", other, "polled", delay_s=5.0),
    ]
    for name, ops, untold in (
        ("only new claims", [*news, *silent, *fresh], {*range(len(news), len(news) + len(silent) + len(fresh))}),
        ("some that are not", [*silent, *fresh, *met, *news], {*range(len(silent))}),
        ("outcomes only", silent, {*range(len(silent))}),
        ("claims only", [*fresh, *met], set[int]()),
    ):
        answers, steps = await told(hand, "v2", ops)
        before, steps_before = await told(hand, "v1", ops)
        assert steps == steps_before, name
        assert {*range(len(ops))} - {*answers} == untold, name
        assert answers == {n: answer for n, answer in before.items() if n not in untold}, name
        assert {before[n]["verdict"] for n in untold} <= {"done", "mine"}, name
        for n in untold:
            if ops[n].op == "claim":
                assert before[n]["verdict"] == "mine"
                assert [before[n][key] for key in ("attempt", "failures", "is_reclaim", "run_status")] == [
                    1, 0, False, "RUNNING",
                ], name  # fmt: skip
