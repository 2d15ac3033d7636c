"""Several statements as one message: answers in order, one failure for all, a connection that goes on."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import psycopg
import pytest

from tenancy.message import MessageConnection
from tenancy.sql import parse
from tests.support.environment import DatabaseUrls

SQL = parse(
    """
-- name: number
select :n::int as n
-- name: kinds
select :text::text as text, :id::uuid as id, :at::timestamptz as at, :ids::uuid[] as ids, :nothing::int as nothing
-- name: zone
set time zone 'Asia/Tokyo'
-- name: make
create temporary table said (n int primary key)
-- name: say
insert into said select made.n from generate_series(1, :n::int) as made (n)
-- name: said
select count(*)::int as n from said
-- name: divide
select 1 / :n::int as n
-- name: sleep
select pg_sleep(:n::int)
-- name: wide
select repeat('x', :n::int) as text, length(:text::text) as length
-- name: prepared
select count(*)::int as n from pg_catalog.pg_prepared_statements
-- name: missing
select there.n from tenantry_missing as there where there.n = :n::int
-- name: pid
select pg_backend_pid() as pid
""",
    "message.sql",
)
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
async def line(database_urls: DatabaseUrls) -> AsyncIterator[MessageConnection]:
    """A connection straight to the server, whose session stays the same."""
    connection = await MessageConnection.connect(database_urls.direct, autocommit=True, prepare_threshold=None)
    try:
        yield connection
    finally:
        await connection.close()


async def number(line: MessageConnection, n: int) -> object:
    (answer,) = await line.message([(SQL["number"], [n])])
    return answer.rows[0]["n"]


async def test_answers_come_in_order_with_rows_and_counts(line: MessageConnection) -> None:
    calls = [(SQL["make"], []), (SQL["say"], [3]), (SQL["said"], []), (SQL["number"], [7])]
    answers = await line.message(calls)
    assert [(answer.rows, answer.count) for answer in answers] == [([], 0), ([], 3), ([{"n": 3}], 1), ([{"n": 7}], 1)]


async def test_values_come_back_as_they_went_in_times_in_utc(line: MessageConnection) -> None:
    given = {"text": "ä'%s$1", "id": UUID(int=1), "at": AT, "ids": [UUID(int=2), UUID(int=3)], "nothing": None}
    (_, answer) = await line.message([(SQL["zone"], []), (SQL["kinds"], [*given.values()])])
    assert answer.rows == [given]
    assert answer.rows[0]["at"].tzinfo is UTC


async def test_the_first_failure_ends_the_message_and_nothing_of_it_is_kept(line: MessageConnection) -> None:
    await line.message([(SQL["make"], [])])
    with pytest.raises(psycopg.errors.DivisionByZero):
        await line.message([(SQL["say"], [2]), (SQL["divide"], [0]), (SQL["missing"], [1])])
    (answer,) = await line.message([(SQL["said"], [])])
    assert answer.rows == [{"n": 0}]


@pytest.mark.parametrize("value", [object(), "a\0b"])
async def test_a_value_that_cannot_be_sent_leaves_the_connection_as_it_was(
    line: MessageConnection, value: object
) -> None:
    with pytest.raises((psycopg.ProgrammingError, psycopg.DataError)):
        await line.message([(SQL["number"], [1]), (SQL["kinds"], [value, None, None, None, None])])
    assert line.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert await number(line, 5) == 5


async def test_a_cancelled_message_is_cancelled_at_the_server(line: MessageConnection) -> None:
    async with asyncio.timeout(20):
        task = asyncio.create_task(line.message([(SQL["number"], [1]), (SQL["sleep"], [60])]))
        while line.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await number(line, 5) == 5


async def test_a_message_that_is_cancelled_while_it_is_written_is_cancelled_at_the_server(
    line: MessageConnection,
) -> None:
    """What the server has not taken yet it takes then, and passes over."""
    async with asyncio.timeout(20):
        calls = [(SQL["sleep"], [60]), *[(SQL["wide"], [1, "y" * 8_000_000])] * 4]
        task = asyncio.create_task(line.message(calls))
        while not line.pgconn.flush():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await number(line, 5) == 5


async def test_what_is_long_in_both_directions_does_not_jam(line: MessageConnection) -> None:
    size = 8_000_000
    async with asyncio.timeout(60):
        answers = await line.message([(SQL["wide"], [size, "y" * size])] * 3)
    assert [(len(answer.rows[0]["text"]), answer.rows[0]["length"]) for answer in answers] == [(size, size)] * 3


async def test_the_servers_last_word_is_told(line: MessageConnection, superuser: psycopg.AsyncConnection) -> None:
    (answer,) = await line.message([(SQL["pid"], [])])
    sleeping = asyncio.create_task(line.message([(SQL["sleep"], [60])]))
    while line.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
        await asyncio.sleep(0)
    await superuser.execute("select pg_terminate_backend(%s, 5000)", (answer.rows[0]["pid"],))
    with pytest.raises(psycopg.OperationalError) as lost:
        await sleeping
    assert lost.value.sqlstate == "57P01"
    assert line.closed
    with pytest.raises(psycopg.OperationalError):
        await number(line, 1)


class TestPreparing:
    async def test_nothing_is_prepared_without_a_threshold(self, line: MessageConnection) -> None:
        for _ in range(8):
            await number(line, 1)
        (answer,) = await line.message([(SQL["prepared"], [])])
        assert answer.rows == [{"n": 0}]

    async def test_what_is_sent_often_is_prepared_once(self, line: MessageConnection) -> None:
        line.prepare_threshold = 2
        for n in range(6):
            assert [answer.rows[0]["n"] for answer in await line.message([(SQL["number"], [n])] * 2)] == [n, n]
        (answer,) = await line.message([(SQL["prepared"], [])])
        assert answer.rows == [{"n": 1}]

    async def test_what_could_not_be_prepared_is_tried_again(self, line: MessageConnection) -> None:
        line.prepare_threshold = 0
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedTable):
                await line.message([(SQL["number"], [1]), (SQL["missing"], [1]), (SQL["zone"], [])])
        await line.execute("create temporary table tenantry_missing as select 4 as n")
        answers = await line.message([(SQL["missing"], [4]), (SQL["zone"], []), (SQL["number"], [1])])
        assert [answer.rows for answer in answers] == [[{"n": 4}], [], [{"n": 1}]]

    async def test_a_failed_run_keeps_what_was_prepared(self, line: MessageConnection) -> None:
        line.prepare_threshold = 0
        with pytest.raises(psycopg.errors.DivisionByZero):
            await line.message([(SQL["divide"], [0])])
        (answer,) = await line.message([(SQL["divide"], [1])])
        assert answer.rows == [{"n": 1}]
        (answer,) = await line.message([(SQL["prepared"], [])])
        assert answer.rows == [{"n": 2}], "the division, and this question"
