"""Redriving runs over HTTP, one and many, while a worker executes them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest

from kernel import Registry, StageContext, Terminal, stage, workflow
from tests.support import hosts
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look

NOBODY = "00000000-0000-7000-8000-000000000000"
BROKEN: set[str] = set()


async def perform(ctx: StageContext[Any]) -> dict[str, Any]:
    key: str = await ctx.step.run("effect", lambda step: step.external_key)
    if f"{ctx.run_id} {ctx.stage_id}" in BROKEN or ctx.stage_id in BROKEN:
        raise Terminal("told to")
    return {"key": key, "attempt": ctx.attempt}


@stage("gather")
async def gather(ctx: StageContext) -> dict[str, Any]:
    return await perform(ctx)


@stage("ship")
async def ship(ctx: StageContext, gathered: dict[str, Any]) -> dict[str, Any]:
    return {"gathered": gathered, "shipped": await perform(ctx)}


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry([workflow("order", input=dict).pipe(gather).pipe(ship).build()])


@pytest.fixture(autouse=True)
def broken() -> set[str]:
    BROKEN.clear()
    return BROKEN


@pytest.fixture
async def worker(database_urls: DatabaseUrls, registry: Registry) -> AsyncIterator[None]:
    async with hosts.running(hosts.settings(database_urls), registry):
        yield


async def ended(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = (await client.get(f"/v1/runs/{run_id}", params={"wait": 30})).json()
    return run


async def start(client: httpx.AsyncClient, **options: Any) -> str:
    answer = await client.post("/v1/runs", json={"workflow": "order", "input": {}, **options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def redrive(client: httpx.AsyncClient, run_id: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post(f"/v1/runs/{run_id}/redrive", json=body or None, headers=headers)


@pytest.mark.usefixtures("worker")
class TestOneRun:
    async def test_a_failed_run_goes_on_where_it_failed_under_its_keys(
        self, client: httpx.AsyncClient, broken: set[str]
    ) -> None:
        broken.add("ship")
        run_id = await start(client)
        failed = await ended(client, run_id)
        assert (failed["status"], failed["redrive_count"]) == ("FAILED", 0)
        keys = [step["external_key"] for step in (await client.get(f"/v1/runs/{run_id}/steps")).json()["data"]]
        broken.clear()

        answer = await redrive(client, run_id)

        assert answer.status_code == 200, answer.text
        run = answer.json()
        assert (run["id"], run["status"], run["redrive_count"]) == (run_id, "RUNNING", 1)
        assert (run["error"], run["output"], run["completed_at"]) == (None, None, None)
        assert run["started_at"] == failed["started_at"]
        done = await ended(client, run_id)
        assert done["status"] == "COMPLETED"
        assert done["output"] == {
            "gathered": {"key": keys[0], "attempt": 1}, "shipped": {"key": keys[1], "attempt": 2},
        }  # fmt: skip

    async def test_a_completed_run_starts_again_under_new_keys_and_counts_on(self, client: httpx.AsyncClient) -> None:
        run_id = await start(client)
        first = (await ended(client, run_id))["output"]
        answer = await redrive(client, run_id, **{"from": {"kind": "start"}})
        assert answer.status_code == 200, answer.text
        again = await ended(client, run_id)
        assert (again["status"], again["redrive_count"]) == ("COMPLETED", 1)
        keys = [output[name]["key"] for output in (first, again["output"]) for name in ("gathered", "shipped")]
        assert len(set(keys)) == 4
        assert [stage["attempt"] for stage in again["stages"]] == [2, 2], "a stage of a later group counts on too"
        types = [event["type"] for event in (await client.get(f"/v1/runs/{run_id}/events")).json()["data"]]
        assert types.count("workflow:started") == types.count("workflow:completed") == 2
        assert types.count("annotation:created") == 2

    async def test_a_stage_is_named(self, client: httpx.AsyncClient) -> None:
        run_id = await start(client)
        before = (await ended(client, run_id))["output"]
        where = {"kind": "stage", "stage_id": "gather"}
        assert (await redrive(client, run_id, **{"from": where}, definition_version="latest")).status_code == 200
        after = (await ended(client, run_id))["output"]
        assert after["gathered"] == {**before["gathered"], "attempt": 2}
        assert after["shipped"]["key"] != before["shipped"]["key"]

    async def test_a_stream_goes_past_the_first_end_to_the_last(
        self, client: httpx.AsyncClient, broken: set[str]
    ) -> None:
        broken.add("ship")
        run_id = await start(client)
        await ended(client, run_id)
        broken.clear()
        await redrive(client, run_id)
        answer = await client.get(f"/v1/runs/{run_id}/events", headers={"Accept": "text/event-stream"})
        types = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert types[-1] == "workflow:completed"
        assert types.index("workflow:failed") < types.index("annotation:created") < len(types) - 1

    async def test_a_repeat_with_its_key_answers_the_run_as_it_is_now(
        self, client: httpx.AsyncClient, broken: set[str]
    ) -> None:
        broken.add("ship")
        run_id = await start(client)
        await ended(client, run_id)
        broken.clear()
        first = await redrive(client, run_id, "again")
        assert "idempotent-replayed" not in first.headers
        done = await ended(client, run_id)
        repeat = await redrive(client, run_id, "again")
        assert (repeat.status_code, repeat.headers["idempotent-replayed"]) == (200, "true")
        assert repeat.json() == done
        other = await redrive(client, run_id, "again", **{"from": {"kind": "start"}})
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


class TestRefusals:
    @pytest.mark.parametrize("key", [None, "k"])
    async def test_a_run_that_is_not_over_is_409(self, client: httpx.AsyncClient, key: str | None) -> None:
        run_id = await start(client)
        for body in ({}, {"from": {"kind": "start"}}):
            answer = await redrive(client, run_id, key, **body)
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        await client.post(f"/v1/runs/{run_id}/cancel")
        assert (await redrive(client, run_id, key)).status_code == 200

    @pytest.mark.parametrize("run_id", [NOBODY, "none"])
    async def test_no_run_is_404(self, client: httpx.AsyncClient, run_id: str) -> None:
        answer = await redrive(client, run_id)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    async def test_another_tenants_run_is_404_and_stays_as_it_is(
        self, client: httpx.AsyncClient, other_client: httpx.AsyncClient
    ) -> None:
        run_id = await start(client)
        await client.post(f"/v1/runs/{run_id}/cancel")
        assert (await redrive(other_client, run_id)).status_code == 404
        bulk = await other_client.post("/v1/runs/redrive", json={"filter": {"status": "CANCELLED"}})
        assert bulk.json() == {"matched": 0, "dry_run": False}
        assert (await client.get(f"/v1/runs/{run_id}")).json()["status"] == "CANCELLED"

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"from": {"kind": "middle"}}, "/from/kind"), ({"from": {}}, "/from/kind"), ({"from": "start"}, "/from"),
            ({"from": None}, "/from"), ({"from": []}, "/from"), ({"from": {"kind": "stage"}}, "/from/stage_id"),
            ({"from": {"kind": "stage", "stage_id": "nobody"}}, "/from/stage_id"),
            ({"from": {"kind": "stage", "stage_id": ""}}, "/from/stage_id"),
            ({"from": {"kind": "stage", "stage_id": "ship"}}, "/from/stage_id"),
            ({"from": {"kind": "start", "stage_id": "ship"}}, "/from/stage_id"),
            ({"from": {"kind": "start", "why": 1}}, "/from/why"), ({"start": {"kind": "start"}}, "/start"),
            ({"definition_version": "v9"}, "/definition_version"), ({"definition_version": ""}, "/definition_version"),
            ({"definition_version": 3}, "/definition_version"), ([], ""),
        ],
    )  # fmt: skip
    async def test_a_bad_body_is_422_at_its_place_and_changes_nothing(
        self, client: httpx.AsyncClient, body: Any, pointer: str
    ) -> None:
        run_id = await start(client)
        await client.post(f"/v1/runs/{run_id}/cancel")
        answer = await client.post(f"/v1/runs/{run_id}/redrive", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
        run = (await client.get(f"/v1/runs/{run_id}")).json()
        assert (run["status"], run["redrive_count"]) == ("CANCELLED", 0)

    async def test_a_body_that_is_no_json_is_400(self, client: httpx.AsyncClient) -> None:
        answer = await client.post(f"/v1/runs/{NOBODY}/redrive", content=b"{")
        assert answer.status_code == 400


@pytest.mark.usefixtures("worker")
class TestManyRuns:
    async def test_those_that_failed_go_on(self, client: httpx.AsyncClient, broken: set[str], look: Look) -> None:
        broken.add("ship")
        failed = [await start(client, tags=["red"]) for _ in range(3)]
        await asyncio.gather(*(ended(client, run_id) for run_id in failed))
        broken.clear()
        done = await start(client, tags=["red"])
        cancelled = await start(client, tags=["red"], run_at="2999-01-01T00:00:00Z")
        waiting = await start(client, tags=["red"], run_at="2999-01-01T00:00:00Z")
        await ended(client, done)
        await client.post(f"/v1/runs/{cancelled}/cancel")
        red = {"filter": {"tag": "red", "workflow": "order"}}

        counted = await client.post("/v1/runs/redrive", json={**red, "dry_run": True})
        assert (counted.status_code, counted.json()) == (200, {"matched": 3, "dry_run": True})
        assert (await client.post("/v1/runs/redrive", json=red)).json() == {"matched": 3, "dry_run": False}

        assert {(await ended(client, run_id))["status"] for run_id in failed} == {"COMPLETED"}
        rows = await look(
            "select run_id::text, status, redrive_count from tenantry.workflow_runs where run_id = any(%s::uuid[])",
            [*failed, done, cancelled, waiting],
        )
        assert {row["run_id"]: (row["status"], row["redrive_count"]) for row in rows} == {
            **dict.fromkeys(failed, ("COMPLETED", 1)),
            done: ("COMPLETED", 0),
            cancelled: ("CANCELLED", 0),
            waiting: ("PENDING", 0),
        }
        assert (await client.post("/v1/runs/redrive", json=red)).json()["matched"] == 0

    async def test_what_is_refused_is_told_and_the_rest_goes_on(
        self, client: httpx.AsyncClient, broken: set[str], superuser: psycopg.AsyncConnection
    ) -> None:
        broken.add("ship")
        stranded, other = [await start(client, tags=["red"]) for _ in range(2)]
        await asyncio.gather(*(ended(client, run_id) for run_id in (stranded, other)))
        broken.clear()
        # As if it had come from a build whose structure nobody kept.
        await superuser.execute("update tenantry.workflow_runs set version = 'gone' where run_id = %s", (stranded,))
        red = {"filter": {"tag": "red"}}
        answer = await client.post("/v1/runs/redrive", json=red)
        alone = (await redrive(client, stranded)).json()
        refusal = {"run_id": stranded, "code": alone["code"], "detail": alone["detail"]}
        assert answer.json() == {"matched": 2, "dry_run": False, "refused": 1, "refusals": [refusal]}
        assert "gone" in alone["detail"]
        assert [(await ended(client, run_id))["status"] for run_id in (stranded, other)] == ["FAILED", "COMPLETED"]

    @pytest.mark.parametrize(
        ("status", "matched"), [("CANCELLED", 1), ("COMPLETED", 1), ("PENDING", 0), ("RUNNING", 0)]
    )
    async def test_a_status_may_be_named(self, client: httpx.AsyncClient, status: str, matched: int) -> None:
        done = await start(client)
        cancelled = await start(client, run_at="2999-01-01T00:00:00Z")
        await start(client, run_at="2999-01-01T00:00:00Z")
        await ended(client, done)
        await client.post(f"/v1/runs/{cancelled}/cancel")
        answer = await client.post("/v1/runs/redrive", json={"filter": {"status": status}})
        assert answer.json() == {"matched": matched, "dry_run": False}
        counts = [(await ended(client, run_id))["redrive_count"] for run_id in (done, cancelled)]
        assert counts == [int(status == "COMPLETED"), int(status == "CANCELLED")]

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"filter": {}}, "/filter"), ({}, "/filter"), ({"filter": {"status": "DONE"}}, "/filter/status"),
            ({"filter": {"tag": "x"}, "from": {"kind": "start"}}, "/from"), ({"filter": {"tag": None}}, "/filter"),
        ],
    )  # fmt: skip
    async def test_a_bad_filter_is_422(self, client: httpx.AsyncClient, body: Any, pointer: str) -> None:
        answer = await client.post("/v1/runs/redrive", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
