"""`tenantry run logs`: lines as they are stored, followed until the run is over, and obeyed by no terminal."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

from service.cli.client import ApiClient
from service.cli.run_logs import LogTail, render
from service.cli.watching import follow
from tests.service.cli.development import Development

NOW = "2026-12-03T14:02:07.123456Z"


def begun(development: Development, length: int) -> str:
    """Return a run whose first stage has logged and waits for the signal `go`."""
    run: str = development.tenantry("run", "start", "talking", "--input", str(length), "--json").json["id"]

    async def suspended() -> None:
        async with client_of(development) as client:
            await follow_until_suspended(client, run)

    asyncio.run(suspended())
    return run


async def follow_until_suspended(client: ApiClient, run: str) -> None:
    async for event in client.events(run):
        if event.type == "stage:suspended":
            return


def client_of(development: Development) -> ApiClient:
    return ApiClient(development.settings["API_URL"], development.settings["API_KEY"])


def go_on(development: Development, run: str) -> None:
    assert development.tenantry("run", "signal", run, "first", "go", "--payload", "null").status == 0


def test_a_line_is_one_line_and_says_when_how_who_and_what() -> None:
    line = {
        "created_at": NOW,
        "level": "warning",
        "message": "away\n2026-12-03 forged \x1b[2J\n",
        "fields": {"url": "a\nb", "tries": 3, "all": [1, None]},
        "stage_id": "pay",
        "attempt": 2,
    }
    assert render(line).plain == (
        "2026-12-03 14:02:07.123Z warning pay#2  away\n    2026-12-03 forged \\x1b[2J  url=a b  tries=3  all=[1,null]"
    )
    assert render({**line, "attempt": 1, "message": "x", "fields": {}}).plain.endswith(" pay  x")
    turned = render({**line, "message": "\u202edeid \u2067of it", "fields": {"url": "\u202e"}}).plain
    assert turned.endswith("  \\u202edeid \\u2067of it  url=\\u202e")


def test_lines_are_shown_whole_of_a_stage_or_the_first_of_them(development: Development) -> None:
    tenantry, run = development.tenantry, begun(development, 450)
    go_on(development, run)
    assert tenantry("run", "watch", run).status == 0
    told = tenantry("run", "logs", run)
    # The first stage was replayed: what it logged before it waited, it logged again.
    lines = told.out.splitlines()
    assert lines[0].endswith("Z info    first  begun \\x1b[2J  length=450  note=a b")
    assert [line.rpartition("  ")[2] for line in lines if " debug " in line] == [f"line {n}" for n in range(450)]
    document = tenantry("run", "logs", run, "--json").json
    assert document[0].keys() == {"created_at", "level", "message", "fields", "stage_id", "attempt"}
    assert document[0]["message"] == "begun \x1b[2J"
    of_one = tenantry("run", "logs", run, "--stage", "second", "--json").json
    assert [line["message"] for line in of_one] == [f"line {n}" for n in range(450)]
    assert [*document] == [line for line in document if line["stage_id"] == "first"] + of_one
    limited = tenantry("run", "logs", run, "--limit", "3", "--json")
    assert limited.json == document[:3]
    assert f"There are more: tenantry run logs {run} --limit 30" in limited.err
    assert "There are more" not in told.err
    assert "\x1b[2J" not in tenantry.on_terminal("run", "logs", run, "--stage", "first").out


def test_lines_are_followed_to_the_end_of_the_run_and_ctrl_c_ends_it_before(development: Development) -> None:
    tenantry, run = development.tenantry, begun(development, 3)
    stopped = tenantry.on_terminal("run", "logs", run, "--follow", interrupt_at="two")
    assert stopped.status == 130
    assert stopped.out.endswith(f"tenantry run logs {run} --follow\n")
    with ThreadPoolExecutor(2) as threads:
        followed = threads.submit(tenantry, "run", "logs", run, "--follow")
        in_the_end = threads.submit(tenantry, "run", "logs", run, "--follow", "--json")
        go_on(development, run)
    assert followed.result().status == 0
    assert followed.result().out == tenantry("run", "logs", run).out
    assert in_the_end.result().json == tenantry("run", "logs", run, "--json").json
    assert [line["message"] for line in in_the_end.result().json[-3:]] == ["line 0", "line 1", "line 2"]


def test_what_a_run_that_failed_logged_is_followed_to_0(development: Development) -> None:
    run = development.tenantry("run", "start", "doubling", "--input", "-1", "--json").json["id"]
    followed = development.tenantry("run", "logs", run, "--follow")
    assert (followed.status, followed.out) == (0, "")


@pytest.fixture
async def lines(development: Development) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection that may write log lines, each in a transaction of its own."""
    url = development.settings["DIRECT_DATABASE_URL"]
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


async def test_each_line_is_read_once_however_late_it_appears_among_the_last_two_pages(
    development: Development, lines: psycopg.AsyncConnection
) -> None:
    started = await asyncio.to_thread(development.tenantry, "run", "start", "doubling", "--input", "1", "--json")
    run = started.json["id"]

    async def log(*numbers: int) -> None:
        async with lines.cursor() as cursor:
            await cursor.executemany(
                "insert into tenantry.workflow_logs (tenant_id, log_id, run_id, stage_id, attempt, level, message)"
                " select tenant_id, %s, run_id, 'double', 1, 'info', %s from tenantry.workflow_runs where run_id = %s",
                [(UUID(int=number), str(number), run) for number in numbers],
            )

    async with client_of(development) as client:
        await follow(client, run, lambda _: None)
        tail = LogTail(client, run, None)

        async def read() -> list[int]:
            return [int(line["message"]) for line in await tail.read()]

        assert await read() == []
        await log(*range(1000, 1500, 2))
        assert await read() == [*range(1000, 1500, 2)]
        await log(1499, 1301, 1501)
        assert await read() == [1301, 1499, 1501]
        await log(*range(1502, 2000))
        assert await read() == [*range(1502, 2000)]
        await log(1999 + 1, 1997 + 5)
        assert await read() == [2000, 2002]
        assert await read() == []
        filtered = LogTail(client, run, "another")
        assert await filtered.read() == []
