"""What a flush reads grows with what is in it: plans that were made for empty tables are no worse than others (0015)."""

from datetime import timedelta
from uuid import uuid4

import pytest

from kernel import JobSettle, JobSettleExpected, LeasedJob, Settlement, StageCompleted, StepAnswer, StepOp, StepWrite
from tenancy import TenantTransaction, load_sql
from tests.support.workflows import HandWorker

SQL = load_sql(__file__)
LEASE_S = 60.0
TABLES = ("job_queue", "workflow_runs", "workflow_stages")


def claim(job: LeasedJob, step_id: str, claim_id: str) -> StepOp:
    values = {
        "kind": "run",
        "seq": 1,
        "stage_attempt": 1,
        "claim_id": claim_id,
        "lease_s": LEASE_S,
        "external_key": f"{job.run_id}:{step_id}",
        "on_reclaim": "rerun",
    }
    return StepOp("claim", job.fence, step_id, values)


def outcome(job: LeasedJob, step_id: str, claim_id: str, *, attempt: int = 1, **values: object) -> StepOp:
    given = {"status": "completed", "result": "1", **values}
    return StepOp("outcome", job.fence, step_id, {"attempt": attempt, "claim_id": claim_id, **given})


async def write(hand: HandWorker, *ops: StepOp, offset: timedelta | None = None) -> list[StepAnswer]:
    async with hand.transaction(offset) as tx:
        return list(await hand.kernel.dispatch(StepWrite(list(ops), wait=True), tx))


async def rows_read(tx: TenantTransaction, table: str) -> int:
    (row,) = await tx.fetch_all(SQL["rows_read"], table=table)
    return int(str(row["rows"]))


async def test_a_step_reads_no_step_before_it(hand: HandWorker) -> None:
    await hand.create("single")
    (job,) = await hand.tick()
    key = str(uuid4())
    # Plans are kept from here, where the stage has one step.
    await write(hand, claim(job, "first", key))
    await write(hand, outcome(job, "first", key))
    await write(hand, *(claim(job, f"earlier-{number}", key) for number in range(200)))
    await write(hand, *(outcome(job, f"earlier-{number}", key) for number in range(199)))

    ops = [outcome(job, "earlier-199", key), claim(job, "last", key)]
    async with hand.transaction() as tx:
        before = await rows_read(tx, "workflow_steps")
        answers = await hand.kernel.dispatch(StepWrite(ops, wait=True), tx)
        read = await rows_read(tx, "workflow_steps") - before
    assert [answer.verdict for answer in answers] == ["done", "mine"]
    assert read <= 4 * len(ops)


@pytest.mark.parametrize("is_expected", [True, False])
async def test_a_settle_reads_no_job_beside_its_own(hand: HandWorker, is_expected: bool) -> None:
    async def settle(*jobs: LeasedJob) -> tuple[bool, dict[str, int]]:
        settlements = [Settlement(job, StageCompleted('{"n": 1}')) for job in jobs]
        async with hand.transaction() as tx:
            before = {table: await rows_read(tx, table) for table in TABLES}
            if is_expected:
                at = jobs[0].fence.started_at
                answer = await hand.kernel.dispatch(
                    JobSettleExpected(hand.worker_id, settlements, at, lease_ahead=0), tx
                )
                settled = answer.settled or ()
            else:
                settled = await hand.kernel.dispatch(JobSettle(hand.worker_id, settlements, lease_ahead=0), tx)
            read = {table: await rows_read(tx, table) - before[table] for table in TABLES}
        return len(settled) == len(jobs), read

    # Plans are kept from here, where there is one run.
    await hand.create("single")
    assert (await settle(*await hand.tick()))[0]
    for _ in range(60):
        await hand.create("single")
    jobs = await hand.tick()
    is_written, read = await settle(*jobs[:40])
    assert (len(jobs), is_written) == (60, True)
    assert {table: rows for table, rows in read.items() if rows > 5 * 40} == {}


async def test_a_step_taken_over_says_so_until_its_function_has_begun(hand: HandWorker) -> None:
    """A claim that is given back before the function begins hides no effect of the one that died before it."""
    await hand.create("single")
    (job,) = await hand.tick()
    dead, back, last = (str(uuid4()) for _ in range(3))
    await write(hand, claim(job, "act", dead))
    lapsed = timedelta(seconds=LEASE_S + 1)
    (taken,) = await write(hand, claim(job, "act", back), offset=lapsed)
    assert taken.row is not None
    assert (taken.verdict, taken.row.attempt, taken.row.is_reclaim) == ("mine", 2, True)
    given_back = outcome(job, "act", back, attempt=2, status="pending", result=None, delay_s=0.0)
    await write(hand, given_back, offset=lapsed)
    (again,) = await write(hand, claim(job, "act", last), offset=lapsed + timedelta(seconds=1))
    assert again.row is not None
    assert (again.verdict, again.row.attempt, again.row.is_reclaim) == ("mine", 3, True)

    failed = outcome(job, "act", last, attempt=3, status="pending", result=None, error="E", failures=1, delay_s=0.0)
    await write(hand, failed, offset=lapsed + timedelta(seconds=2))
    (after,) = await write(hand, claim(job, "act", dead), offset=lapsed + timedelta(seconds=3))
    assert after.row is not None
    assert (after.verdict, after.row.is_reclaim) == ("mine", False)
