"""`job.report` and the log lines of `job.settle`: a run keeps so many, and says where it keeps no more."""

from datetime import UTC, datetime
from uuid import UUID

import psycopg
import pytest

from kernel import JobReport, LeasedJob, LogRow, StageContext, Terminal, log_rows, stage, workflow
from kernel.commands.job_report import KEPT_LOGS, TOLD_THAT_IT_IS_FULL
from kernel.execution.journal import LogRecord
from kernel.queries.run_logs import run_last_logs, run_logs
from kernel.testing import Harness
from tenancy import Database
from tests.support.looking import Look
from tests.support.workflows import HandWorker

FULL = ("warning", TOLD_THAT_IT_IS_FULL, "{}")


async def fill(superuser: psycopg.AsyncConnection, tenant_id: UUID, run_id: UUID, lines: int) -> None:
    """Have a run logged so many lines before."""
    await superuser.execute(
        "insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message)"
        " select %s, %s, 'before', 1, 'info', 'before ' || n from generate_series(1, %s) as n",
        (tenant_id, run_id, lines),
    )


async def kept(look: Look, run_id: UUID) -> int:
    (found,) = await look("select count(*) as lines from tenantry.workflow_logs where run_id = %s", run_id)
    return int(found["lines"])


def said(job: LeasedJob, *messages: str) -> list[LogRow]:
    now = datetime.now(UTC)
    return log_rows(job, [LogRecord("info", message, '{"of": "a body"}', now) for message in messages])


async def last(hand: HandWorker, run_id: UUID, limit: int) -> list[tuple[str, str, str]]:
    async with hand.transaction() as tx:
        lines = await run_last_logs(tx, run_id, limit=limit)
    return [(line.level, line.message, line.fields) for line in lines]


async def test_lines_are_kept_in_the_order_in_which_they_were_said(hand: HandWorker) -> None:
    first, second = await hand.create(), await hand.create()
    jobs = {job.run_id: job for job in await hand.tick()}
    messages = [str(number) for number in range(1_000)]
    # A report may have a run's lines in several places: those of its stages.
    rows = said(jobs[first], *messages[:500]) + said(jobs[second], *messages) + said(jobs[first], *messages[500:])
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(JobReport(rows), tx)
    for run_id in (first, second):
        async with hand.transaction() as tx:
            lines = await run_logs(tx, run_id, limit=2_000)
        assert [line.message for line in lines] == messages
        assert {(line.level, line.fields, line.stage_id, line.attempt) for line in lines} == {
            ("info", '{"of": "a body"}', jobs[run_id].stage_id, 1)
        }


async def test_of_a_full_run_the_next_line_says_so_and_no_other_is_kept(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    full, other = await hand.create(), await hand.create()
    jobs = {job.run_id: job for job in await hand.tick()}
    await fill(superuser, hand.tenant_id, full, KEPT_LOGS - 2)
    rows = said(jobs[full], "a", "b", "c", "d") + said(jobs[other], "a", "b", "c", "d")
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(JobReport(rows), tx)
    fields = '{"of": "a body"}'
    assert await last(hand, full, 3) == [("info", "a", fields), ("info", "b", fields), FULL]
    assert [message for _, message, _ in await last(hand, other, 9)] == ["a", "b", "c", "d"]

    async with hand.transaction() as tx:
        await hand.kernel.dispatch(JobReport(said(jobs[full], "e", "f") + said(jobs[other], "e")), tx)
    assert (await kept(look, full), (await last(hand, full, 1))) == (KEPT_LOGS + 1, [FULL])
    assert await kept(look, other) == 5


async def test_a_run_that_is_just_full_says_nothing_before_there_is_a_line_more(
    hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run = await hand.create()
    (job,) = await hand.tick()
    await fill(superuser, hand.tenant_id, run, KEPT_LOGS - 1)
    for message, expected in (("last", "last"), ("more", TOLD_THAT_IT_IS_FULL)):
        async with hand.transaction() as tx:
            await hand.kernel.dispatch(JobReport(said(job, message)), tx)
        assert [text for _, text, _ in await last(hand, run, 1)] == [expected]


async def test_lines_of_another_tenant_take_no_room(
    hand: HandWorker, other_tenant: UUID, superuser: psycopg.AsyncConnection
) -> None:
    run = await hand.create()
    (job,) = await hand.tick()
    # The same id, which only a superuser can bring about.
    await fill(superuser, other_tenant, run, KEPT_LOGS + 1)
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(JobReport(said(job, "mine")), tx)
    assert [message for _, message, _ in await last(hand, run, 9)] == ["mine"]


@pytest.fixture
def harness(database: Database) -> Harness:
    @stage("talk")
    async def talk(ctx: StageContext, words: list[str]) -> None:
        for word in words:
            ctx.log("info", f"{word} of attempt {ctx.attempt}")
        raise Terminal("there is no more to say")

    return Harness(workflow("talker", input=list[str]).pipe(talk).build(), database.transaction)


async def test_what_an_outcome_brings_counts_too_and_a_redrive_makes_room_again(
    harness: Harness, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    run = await harness.start("talker", ["one", "two", "three"])
    await fill(superuser, harness.tenant_id, run.run_id, KEPT_LOGS - 1)
    await run.go()
    at_first = ["one of attempt 1", TOLD_THAT_IT_IS_FULL]
    assert [line.message for line in await run.logs()][KEPT_LOGS - 1 :] == at_first
    assert await kept(look, run.run_id) == KEPT_LOGS + 1

    await run.redrive()
    await run.go()
    again = [f"{word} of attempt 2" for word in ("one", "two", "three")]
    assert [line.message for line in await run.logs()][KEPT_LOGS - 1 :] == at_first + again
    await fill(superuser, harness.tenant_id, run.run_id, KEPT_LOGS)
    await run.redrive()
    await run.go()
    assert await kept(look, run.run_id) == 2 * KEPT_LOGS + 7
