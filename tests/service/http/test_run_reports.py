"""What bodies say of a run while a worker executes it: annotations and progress over HTTP, through a failure and a redrive."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from kernel import Registry, StageContext, Terminal, stage, workflow
from kernel.queries.run_annotations import MOST_BYTES
from tests.support import hosts, waiting
from tests.support.environment import DatabaseUrls

NOBODY = "00000000-0000-7000-8000-000000000000"
# Of the test that runs: a body waits for it before it ends.
MAY_END: dict[str, asyncio.Event] = {}


@stage("load")
async def load(ctx: StageContext, wanted: dict[str, Any]) -> dict[str, Any]:
    ctx.annotate("source", {"file": "år.csv", "attempt": ctx.attempt}, payload=["first line"])
    ctx.progress(0.25, "7 of 28 files")
    await MAY_END["of the test"].wait()
    if ctx.attempt <= wanted["bad_attempts"]:
        raise Terminal("the file is cut off")
    return {"lines": 28}


@stage("quiet")
async def quiet(ctx: StageContext, wanted: dict[str, Any]) -> None:
    await MAY_END["of the test"].wait()


@pytest.fixture(scope="session")
def registry() -> Registry:
    both = workflow("both", input=dict).parallel(load, quiet).build()
    return Registry([both, workflow("alone", input=dict).pipe(load).build()])


@pytest.fixture
async def may_end(database_urls: DatabaseUrls, registry: Registry) -> AsyncIterator[asyncio.Event]:
    """Run a worker whose bodies end when the event is set."""
    may_end = MAY_END["of the test"] = asyncio.Event()
    async with hosts.running(hosts.settings(database_urls), registry):
        yield may_end
        may_end.set()


async def start(client: httpx.AsyncClient, workflow_id: str = "alone", **wanted: Any) -> str:
    answer = await client.post("/v1/runs", json={"workflow": workflow_id, "input": {"bad_attempts": 0, **wanted}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def progress_of(client: httpx.AsyncClient, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"/v1/runs/{run_id}/progress")).json()["data"]
    return found


async def annotations_of(client: httpx.AsyncClient, run_id: str, **query: Any) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/runs/{run_id}/annotations", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def ended(client: httpx.AsyncClient, run_id: str, status: str) -> None:
    assert (await client.get(f"/v1/runs/{run_id}", params={"wait": 30})).json()["status"] == status


async def test_a_running_stage_says_how_far_it_is_and_a_done_one_does_not(
    client: httpx.AsyncClient, may_end: asyncio.Event
) -> None:
    run_id = await start(client, "both")

    async def has_said_something() -> bool:
        return bool(await progress_of(client, run_id))

    await waiting.until(has_said_something, "the progress is written")
    answer = (await client.get(f"/v1/runs/{run_id}/progress")).json()
    (said,) = answer["data"]
    events = (await client.get(f"/v1/runs/{run_id}/events")).json()["data"]
    (told,) = [event for event in events if event["type"] == "stage:progress"]
    assert said == {
        "stage_id": "load", "attempt": 1, "fraction": 0.25, "message": "7 of 28 files", "reported_at": told["occurred_at"],
    }  # fmt: skip
    # Whoever follows the events from there misses nothing.
    assert answer["last_sequence"] == events[-1]["sequence"]
    may_end.set()
    await ended(client, run_id, "COMPLETED")
    assert await progress_of(client, run_id) == []


async def test_a_redrive_tells_the_attempts_apart(client: httpx.AsyncClient, may_end: asyncio.Event) -> None:
    may_end.set()
    run_id = await start(client, bad_attempts=1)
    await ended(client, run_id, "FAILED")
    (noted,) = await annotations_of(client, run_id)
    assert {**noted, "id": "", "created_at": ""} == {
        "id": "", "created_at": "", "key": "source", "value": {"file": "år.csv", "attempt": 1}, "payload": ["first line"],
        "stage_id": "load", "attempt": 1, "superseded": False,
    }  # fmt: skip
    assert (await client.post(f"/v1/runs/{run_id}/redrive")).status_code == 200
    await ended(client, run_id, "COMPLETED")
    found = await annotations_of(client, run_id)
    assert [(each["key"], each["attempt"], each["superseded"]) for each in found] == [
        ("source", 1, True), ("run.superseded_attempt", 1, True), ("source", 2, False),
    ]  # fmt: skip
    assert found[1]["value"]["error"] == "Terminal: the file is cut off"
    # How far the failed attempt was is not how far the run is.
    assert await progress_of(client, run_id) == []
    assert await annotations_of(client, run_id, stage_id="quiet") == []
    assert await annotations_of(client, run_id, stage_id="load") == found


async def test_pages_follow_each_other_by_number_and_by_size(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    run_id = await start(client)
    sizes = [1, 1, 1, MOST_BYTES, 1, MOST_BYTES - 10, 1]
    for number, size in enumerate(sizes):
        await superuser.execute(
            "insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload)"
            " values (%s, %s, 'load', 1, %s, 'null', to_json(repeat('x', %s)))",
            (tenant, run_id, str(number), size),
        )
    pages: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "3", **({"cursor": cursor} if cursor else {})}
        page = (await client.get(f"/v1/runs/{run_id}/annotations", params=query)).json()
        pages.append([each["key"] for each in page["data"]])
        cursor = page["next_cursor"]
        assert [len(each["payload"]) for each in page["data"]] == [sizes[int(key)] for key in pages[-1]]
    assert pages == [["0", "1", "2"], ["3"], ["4", "5"], ["6"]]


@pytest.mark.parametrize("path", ["annotations", "progress"])
async def test_another_tenants_run_is_none(
    client: httpx.AsyncClient, other_client: httpx.AsyncClient, path: str
) -> None:
    run_id = await start(client)
    answers = [await other_client.get(f"/v1/runs/{each}/{path}") for each in (run_id, NOBODY, "x")]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


@pytest.mark.parametrize(
    ("query", "status"), [({"cursor": "x"}, 400), ({"limit": "0"}, 422), ({"stage_id": ""}, 422), ({"key": "k"}, 422)]
)
async def test_a_bad_query_is_refused(client: httpx.AsyncClient, query: dict[str, str], status: int) -> None:
    run_id = await start(client)
    assert (await client.get(f"/v1/runs/{run_id}/annotations", params=query)).status_code == status
