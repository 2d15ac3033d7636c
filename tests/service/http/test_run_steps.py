"""Durable steps over HTTP: what a run waits for, its steps as a list, and signals."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from kernel import Registry, StageContext, stage, workflow
from kernel.queries.step_list import NO_PLACE
from service.http.run_steps import CURSOR
from tests.support import hosts
from tests.support.environment import DatabaseUrls
from tests.support.waiting import until

STEP = {
    "stage_id", "step_id", "seq", "kind", "status", "attempt", "external_key", "result", "error", "lease_expires_at",
    "deadline_at",
}  # fmt: skip
SIGNAL: dict[str, Any] = {"stage_id": "buy", "step_id": "approve", "payload": {"by": "ada"}}


@stage("buy")
async def buy(ctx: StageContext) -> dict[str, Any]:
    quoted = await ctx.step.run("quote", lambda step: {"total": 1.5, "key": step.external_key})
    approval = await ctx.step.wait_for_signal("approve", timeout="7d")
    return {"quoted": quoted, "approval": approval}


@stage("nap")
async def nap(ctx: StageContext) -> None:
    await ctx.step.sleep("night", "8h")


@stage("hurry")
async def hurry(ctx: StageContext) -> None:
    await ctx.step.wait_for_signal("approve", timeout="1ms")


@pytest.fixture(scope="session")
def registry() -> Registry:
    stages = {"buying": buy, "napping": nap, "hurrying": hurry}
    return Registry([workflow(name, input=dict).pipe(body).build() for name, body in stages.items()])


@pytest.fixture
async def worker(database_urls: DatabaseUrls, registry: Registry) -> AsyncIterator[None]:
    async with hosts.running(hosts.settings(database_urls), registry):
        yield


async def start(client: httpx.AsyncClient, name: str = "buying") -> str:
    answer = await client.post("/v1/runs", json={"workflow": name, "input": {}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def suspended(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Wait until the run's only stage is suspended and return it."""
    stages: list[dict[str, Any]] = []

    async def is_suspended() -> bool:
        stages[:] = (await client.get(f"/v1/runs/{run_id}")).json()["stages"]
        return bool(stages) and stages[0]["status"] == "SUSPENDED"

    await until(is_suspended, f"run {run_id} suspends")
    return stages[0]


async def steps(client: httpx.AsyncClient, run_id: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/runs/{run_id}/steps")
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


@pytest.mark.usefixtures("worker")
class TestWithAWorker:
    async def test_a_run_waits_is_signalled_and_completes(self, client: httpx.AsyncClient) -> None:
        run_id = await start(client)
        stage = await suspended(client, run_id)
        assert stage["next_poll_at"].endswith("Z")
        waiting_for = stage["waiting_for"]
        assert (waiting_for["kind"], waiting_for["step_id"]) == ("signal", "approve")
        quote, approve = await steps(client, run_id)
        assert quote.keys() == approve.keys() == STEP
        assert (quote["stage_id"], quote["step_id"], quote["seq"], quote["kind"]) == ("buy", "quote", 1, "run")
        assert (quote["status"], quote["attempt"], quote["error"]) == ("completed", 1, None)
        assert quote["result"] == {"total": 1.5, "key": quote["external_key"]}
        assert (approve["status"], approve["kind"], approve["result"]) == ("pending", "signal", None)
        assert approve["deadline_at"] == waiting_for["until"]
        assert (approve["external_key"], approve["lease_expires_at"]) == (None, None)

        answer = await client.post(f"/v1/runs/{run_id}/signals", json=SIGNAL)
        assert (answer.status_code, answer.json()) == (200, {"signalled": True, "already_completed": False})
        run = (await client.get(f"/v1/runs/{run_id}", params={"wait": 30})).json()
        assert (run["status"], run["parent"]) == ("COMPLETED", None)
        assert run["output"]["approval"] == {"by": "ada"}
        assert (run["stages"][0]["waiting_for"], run["stages"][0]["next_poll_at"]) == (None, None)
        assert [step["status"] for step in await steps(client, run_id)] == ["completed", "completed"]
        events = (await client.get(f"/v1/runs/{run_id}/events")).json()["data"]
        told = [event for event in events if event["type"] in {"stage:suspended", "step:signalled"}]
        assert [event["type"] for event in told] == ["stage:suspended", "step:signalled"]
        assert told[0]["data"]["waiting_for"]["step_id"] == told[1]["data"]["step_id"] == "approve"
        # What is over takes no signals, not even a repeat.
        answer = await client.post(f"/v1/runs/{run_id}/signals", json=SIGNAL)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")

    async def test_a_signal_sent_ahead_is_kept_and_a_repeat_changes_nothing(self, client: httpx.AsyncClient) -> None:
        run_id = await start(client, "napping")
        await suspended(client, run_id)
        path, ahead = f"/v1/runs/{run_id}/signals", {"stage_id": "nap", "step_id": "later"}
        first = await client.post(path, json={**ahead, "payload": 1})
        again = await client.post(path, json={**ahead, "payload": 2})
        assert first.json() == {"signalled": True, "already_completed": False}
        assert (again.status_code, again.json()) == (200, {"signalled": True, "already_completed": True})
        kept = (await steps(client, run_id))[1]
        assert (kept["step_id"], kept["seq"], kept["status"], kept["result"]) == ("later", None, "completed", 1)

    async def test_a_signal_that_cannot_count_is_409(self, client: httpx.AsyncClient) -> None:
        napping = await start(client, "napping")
        await suspended(client, napping)
        to_a_sleep = {"stage_id": "nap", "step_id": "night", "payload": None}
        hurrying = await start(client, "hurrying")
        await client.get(f"/v1/runs/{hurrying}", params={"wait": 30})
        too_late = {"stage_id": "hurry", "step_id": "approve", "payload": None}
        for run_id, signal in ((napping, to_a_sleep), (hurrying, too_late)):
            answer = await client.post(f"/v1/runs/{run_id}/signals", json=signal)
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text

    async def test_what_sleeps_is_not_queued(self, client: httpx.AsyncClient) -> None:
        run_id = await start(client, "napping")
        stage = await suspended(client, run_id)
        assert (stage["waiting_for"]["kind"], stage["waiting_for"]["until"]) == ("sleep", stage["next_poll_at"])
        queue = (await client.get("/v1/queue")).json()
        assert (queue["depth"], queue["oldest_age_seconds"], queue["waiting"]) == (0, None, [])


class TestSignal:
    @pytest.mark.parametrize(
        ("changes", "pointer"),
        [
            ({"stage_id": "nobody"}, "/stage_id"), ({"stage_id": ""}, "/stage_id"), ({"stage_id": 1}, "/stage_id"),
            ({"stage_id": "a\0b"}, "/stage_id"), ({"step_id": ""}, "/step_id"), ({"step_id": "x" * 256}, "/step_id"),
            ({"step_id": None}, "/step_id"), ({"step_id": "a\0b"}, "/step_id"), ({"why": 1}, "/why"),
            ({"payload": {"a": ["b\0"]}}, "/payload/a/0"), ({"payload": "\ud800"}, "/payload"),
            ({"stage_id": "\ud800"}, "/stage_id"), ({"step_id": "\ud800"}, "/step_id"),
        ],
    )  # fmt: skip
    async def test_a_bad_signal_is_422(self, client: httpx.AsyncClient, changes: dict[str, Any], pointer: str) -> None:
        run_id = await start(client)
        body = json.dumps({**SIGNAL, **changes})
        headers = {"Content-Type": "application/json"}
        answer = await client.post(f"/v1/runs/{run_id}/signals", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert answer.json()["errors"][0]["pointer"] == pointer

    @pytest.mark.parametrize("field", ["stage_id", "step_id", "payload"])
    async def test_every_field_is_required(self, client: httpx.AsyncClient, field: str) -> None:
        run_id = await start(client)
        body = {name: value for name, value in SIGNAL.items() if name != field}
        answer = await client.post(f"/v1/runs/{run_id}/signals", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{field}")

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"", 400, "invalid_request"),
            (b'{"stage_id": "buy", "step_id": "approve", "payload": NaN}', 400, "invalid_request"),
            (b'{"stage_id": "buy", "step_id": "approve", "payload": "%s"}' % (b"x" * 100_000), 413, "payload_too_large"),
            (b'{"stage_id": "buy", "step_id": "approve", "payload": "%s"}' % (b"x" * 900_000), 413, "payload_too_large"),
        ],
    )  # fmt: skip
    async def test_a_body_that_is_none(self, client: httpx.AsyncClient, body: bytes, status: int, code: str) -> None:
        run_id = await start(client)
        headers = {"Content-Type": "application/json"}
        answer = await client.post(f"/v1/runs/{run_id}/signals", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    @pytest.mark.parametrize("payload", [None, False, [], 1e16, -0.0, "ü"])
    async def test_every_json_is_a_payload(self, client: httpx.AsyncClient, payload: object) -> None:
        run_id = await start(client)
        sent = {**SIGNAL, "payload": payload}
        assert (await client.post(f"/v1/runs/{run_id}/signals", json=sent)).json()["already_completed"] is False
        (kept,) = await steps(client, run_id)
        assert (kept["kind"], kept["status"], repr(kept["result"])) == ("signal", "completed", repr(payload))

    async def test_a_stage_of_a_version_that_is_not_served_is_looked_up_where_it_was_stored(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run_id = await start(client)
        await superuser.execute("update tenantry.workflow_runs set version = 'old' where run_id = %s", (run_id,))
        nul = await client.post(f"/v1/runs/{run_id}/signals", json={**SIGNAL, "stage_id": "a\0b"})
        assert nul.status_code == 422
        await superuser.execute(
            """
            insert into tenantry.workflow_definitions (tenant_id, workflow_id, version, structure_hash, snapshot)
            values (%s, 'buying', 'old', 'x', '{"stages": [{"id": "former"}]}')
            """,
            (tenant,),
        )
        assert (await client.post(f"/v1/runs/{run_id}/signals", json=SIGNAL)).status_code == 422
        former = {**SIGNAL, "stage_id": "former"}
        assert (await client.post(f"/v1/runs/{run_id}/signals", json=former)).status_code == 200


class TestList:
    async def test_steps_page_in_the_order_they_began(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run_id = await start(client)
        # At once: by stage and place; what nobody asked for yet comes last. And one that began before all others.
        await superuser.execute(
            """
            insert into tenantry.workflow_steps (tenant_id, run_id, stage_id, step_id, seq, kind, status, result, created_at)
            select %s, %s, stage_id, step_id, seq, 'run', 'completed', '[1.50]', now() - age
            from (values
              ('buy', 'b', 10, interval '0'), ('buy', 'c', 9, interval '0'), ('buy', 'a', null, interval '0'),
              ('arm', 'z', 2, interval '0'), ('zoo', 'first', 5, interval '1 hour')
            ) as made (stage_id, step_id, seq, age)
            """,
            (tenant, run_id),
        )
        expected = ["first", "z", "c", "b", "a"]
        assert [step["step_id"] for step in await steps(client, run_id)] == expected
        for limit in (1, 2, 5):
            found: list[str] = []
            params: dict[str, Any] = {"limit": limit}
            while True:
                page = (await client.get(f"/v1/runs/{run_id}/steps", params=params)).json()
                found += [step["step_id"] for step in page["data"]]
                if page["next_cursor"] is None:
                    break
                params["cursor"] = page["next_cursor"]
            assert found == expected

    @pytest.mark.parametrize("params", [{"limit": "0"}, {"limit": "201"}, {"stage": "buy"}])
    async def test_bad_parameters_are_422(self, client: httpx.AsyncClient, params: dict[str, str]) -> None:
        run_id = await start(client)
        assert (await client.get(f"/v1/runs/{run_id}/steps", params=params)).status_code == 422

    async def test_a_cursor_of_another_list_is_400_and_any_of_ours_is_answered(self, client: httpx.AsyncClient) -> None:
        run_id = await start(client)
        await start(client)
        foreign = (await client.get("/v1/runs", params={"limit": 1})).json()["next_cursor"]
        assert (await client.get(f"/v1/runs/{run_id}/steps", params={"cursor": foreign})).status_code == 400
        last = CURSOR.unpack(b"\xff" * 12 + b"stage\0step")
        assert last.place == NO_PLACE
        answer = await client.get(f"/v1/runs/{run_id}/steps", params={"cursor": CURSOR.write(last)})
        assert (answer.status_code, answer.json()) == (200, {"data": [], "next_cursor": None})

    @pytest.mark.parametrize(
        "raw", [b"", b"\0" * 12, b"\0" * 12 + b"a", b"\0" * 12 + b"a\0b\0c", b"\0" * 12 + b"\xff\0b"]
    )
    def test_a_position_that_is_none_is_refused(self, raw: bytes) -> None:
        with pytest.raises(ValueError, match=r"\S"):
            CURSOR.unpack(raw)
