"""Five megabytes through HTTP and a worker: in, through steps, signals and stages, and out again, byte for byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from kernel import Registry, StageContext, stage, workflow
from service.settings import Settings
from tests.support import hosts
from tests.support.blobs import lose
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.waiting import until, until_someone_blocked

MIB = 1024 * 1024
# Not only ASCII, numbers that only their text tells apart, and keys that are in no order.
GIVEN = {"z": "é" * (5 * MIB // 2), "a": [1.0, 1e16, -0.0, None, 12345678901234567890]}
TOLD = {"told": "t" * (5 * MIB)}
MADE = ["m" * (5 * MIB)]


@stage("make")
async def make(ctx: StageContext, given: Any) -> Any:
    assert given == GIVEN
    made = await ctx.step.run("made", lambda: MADE)
    return {"made": made, "told": await ctx.step.wait_for_signal("told", timeout="7d")}


@stage("pass")
async def pass_on(ctx: StageContext, made: Any) -> Any:
    assert ctx.require(make) == made == {"made": MADE, "told": TOLD}
    return made


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry([workflow("bulky", input=Any).pipe(make).pipe(pass_on).build()])


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, max_payload_bytes=16 * MIB)


@pytest.fixture
async def worker(database_urls: DatabaseUrls, registry: Registry) -> AsyncIterator[None]:
    async with hosts.running(hosts.settings(database_urls), registry):
        yield


@pytest.mark.usefixtures("worker")
async def test_five_megabytes_pass_every_door(client: httpx.AsyncClient, look: Look, tenant: UUID) -> None:
    body = json.dumps({"workflow": "bulky", "input": GIVEN}, ensure_ascii=False).encode()
    answer = await client.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201
    assert answer.json()["input"] == GIVEN
    run = f"/v1/runs/{answer.json()['id']}"

    async def is_waiting() -> bool:
        stages = (await client.get(run)).json()["stages"]
        return bool(stages) and stages[0]["status"] == "SUSPENDED"

    await until(is_waiting, "the run waits for its signal")
    signal = {"stage_id": "make", "step_id": "told", "payload": TOLD}
    assert (await client.post(f"{run}/signals", json=signal)).json() == {"signalled": True, "already_completed": False}
    repeat = await client.post(f"{run}/signals", json={**signal, "payload": "another"})
    assert repeat.json() == {"signalled": True, "already_completed": True}
    ended = await client.get(f"{run}?wait=30")
    assert (ended.json()["status"], ended.json()["error"]) == ("COMPLETED", None)
    assert ended.json()["output"] == {"made": MADE, "told": TOLD}
    # The very text that was sent: keys in their order, 1.0 not 1, 1e16 not 10000000000000000.
    assert json.dumps(GIVEN["a"], separators=(",", ":")).encode() in ended.content
    assert ended.content.index(b'"z":') < ended.content.index(b'"a":')
    steps = {step["step_id"]: step["result"] for step in (await client.get(f"{run}/steps")).json()["data"]}
    assert steps == {"made": MADE, "told": TOLD}
    (row,) = await look(
        "select count(*), sum(octet_length(content)) / 1048576 as mib from tenantry.workflow_blobs where tenant_id = %s",
        tenant,
    )
    # Input, result, signal, and what both stages and the run answer with: 5 + 5 + 5 + 10.
    assert (row["count"], row["mib"]) == (4, 25)


async def test_a_small_limit_of_the_tenants_counts_the_whole_payload(
    client: httpx.AsyncClient, operator: httpx.AsyncClient, tenant: UUID
) -> None:
    limits = {"limits": {"payload_bytes": 300_000}}
    assert (await operator.patch(f"/operator/v1/tenants/{tenant}", json=limits)).status_code == 200
    refused = await client.post("/v1/runs", json={"workflow": "bulky", "input": "x" * 300_000})
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    kept = await client.post("/v1/runs", json={"workflow": "bulky", "input": "x" * 290_000})
    assert kept.status_code == 201
    assert (await client.get(kept.headers["Location"])).json()["input"] == "x" * 290_000


@pytest.mark.parametrize("below", ["", "/steps"])
async def test_a_run_that_is_purged_while_it_is_read_is_not_found(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, below: str
) -> None:
    run_id = (await client.post("/v1/runs", json={"workflow": "bulky", "input": "x" * 300_000})).json()["id"]
    signal = {"stage_id": "make", "step_id": "told", "payload": "x" * 300_000}
    assert (await client.post(f"/v1/runs/{run_id}/signals", json=signal)).status_code == 200
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        await superuser.execute("lock table tenantry.workflow_blobs")
        reading = tasks.create_task(client.get(f"/v1/runs/{run_id}{below}"))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        for table in ("workflow_blobs", "workflow_steps", "workflow_runs"):
            await superuser.execute(f"delete from tenantry.{table} where run_id = %s".encode(), (run_id,))
    assert (reading.result().status_code, reading.result().json()["code"]) == (404, "not_found")


async def test_a_page_of_steps_ends_when_it_has_grown_large(client: httpx.AsyncClient) -> None:
    run = f"/v1/runs/{(await client.post('/v1/runs', json={'workflow': 'bulky', 'input': 1})).json()['id']}"
    for name in ("a", "b", "c", "d", "e"):
        signal = {"stage_id": "make", "step_id": name, "payload": name * (3 * MIB)}
        assert (await client.post(f"{run}/signals", json=signal)).status_code == 200
    first = (await client.get(f"{run}/steps")).json()
    # Behind 6 MiB the next one is still shown; behind 9, which exceed the 8, none.
    assert [step["result"] for step in first["data"]] == [name * (3 * MIB) for name in ("a", "b", "c")]
    second = (await client.get(f"{run}/steps", params={"cursor": first["next_cursor"], "limit": 1})).json()
    assert [step["step_id"] for step in second["data"]] == ["d"]
    third = (await client.get(f"{run}/steps", params={"cursor": second["next_cursor"]})).json()
    assert ([step["step_id"] for step in third["data"]], third["next_cursor"]) == (["e"], None)


async def test_a_run_of_which_the_store_has_lost_payloads_is_shown_without_them_and_can_be_cancelled(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
) -> None:
    large = "x" * 300_000
    run = f"/v1/runs/{(await client.post('/v1/runs', json={'workflow': 'bulky', 'input': large})).json()['id']}"
    for step_id, payload in (("told", large), ("small", None)):
        signal = {"stage_id": "make", "step_id": step_id, "payload": payload}
        assert (await client.post(f"{run}/signals", json=signal)).status_code == 200
    whole = (await client.get(run)).json()
    await lose(superuser, UUID(whole["id"]))
    shown = await client.get(run)
    assert (shown.status_code, shown.json()) == (200, {**whole, "input": None, "lost_payloads": ["input"]})
    steps = {step["step_id"]: step for step in (await client.get(f"{run}/steps")).json()["data"]}
    assert (steps["told"]["result"], steps["told"]["lost_payloads"]) == (None, ["result"])
    # Null is a payload: what is not lost does not look as if it were.
    assert (steps["small"]["result"], "lost_payloads" in steps["small"]) == (None, False)
    cancelled = await client.post(f"{run}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "CANCELLED")
