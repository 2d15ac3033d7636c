"""`POST /v1/runs`: what it answers, and that what it refuses writes nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from tests.support import factories

PROBLEM = "application/problem+json"


Written = Callable[[], Awaitable[tuple[int, int, int]]]


@pytest.fixture
def written(superuser: psycopg.AsyncConnection, tenant: UUID) -> Written:
    """How many runs, events and idempotency keys the tenant has."""

    async def count() -> tuple[int, int, int]:
        cursor = await superuser.execute(
            """
            select
              (select count(*) from tenantry.workflow_runs where tenant_id = %(t)s),
              (select count(*) from tenantry.outbox_events where tenant_id = %(t)s),
              (select count(*) from tenantry.idempotency_keys where tenant_id = %(t)s)
            """,
            {"t": tenant},
        )
        row = await cursor.fetchone()
        assert row is not None
        return row

    return count


async def test_a_run_is_created_and_answered_whole(client: httpx.AsyncClient, order: dict[str, Any]) -> None:
    answer = await client.post("/v1/runs", json={"workflow": "orders", "input": order, "tags": ["b", "a"]})
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    assert answer.headers["cache-control"] == "no-store"
    assert "idempotent-replayed" not in answer.headers
    assert UUID(run["id"]).version == 7
    assert run["definition_version"].startswith("sha256-")
    assert run["run_at"] == run["created_at"]
    assert run["created_at"].endswith("Z")
    assert {name: run[name] for name in ("workflow", "status", "priority", "input", "config", "output", "error")} == {
        "workflow": "orders", "status": "PENDING", "priority": 5, "input": order, "config": {}, "output": None, "error": None,
    }  # fmt: skip
    assert (run["tags"], run["stages"], run["redrive_count"], run["started_at"]) == (["a", "b"], [], 0, None)
    assert (await client.get(f"/v1/runs/{run['id']}")).json() == run


async def test_payloads_come_back_as_they_went_in(client: httpx.AsyncClient) -> None:
    body = '{"workflow": "anything", "input": {"big": 123456789012345678901234567890, "f": 1.0, "u": "\\u00e9\\ud83d\\ude00", "n": null}}'
    answer = await client.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201
    assert answer.json()["input"] == {"big": 123456789012345678901234567890, "f": 1.0, "u": "é😀", "n": None}
    assert isinstance(answer.json()["input"]["f"], float)


async def test_run_at_delays_and_is_kept_as_utc(client: httpx.AsyncClient, order: dict[str, Any]) -> None:
    wanted = {"workflow": "orders", "input": order, "run_at": "2030-01-01T02:30:00.5+02:00", "priority": 9}
    run = (await client.post("/v1/runs", json=wanted)).json()
    assert run["run_at"] == "2030-01-01T00:30:00.500000Z"
    assert run["priority"] == 9


class TestIdempotency:
    async def test_a_repeat_answers_the_run_as_it_is_now(
        self, client: httpx.AsyncClient, order: dict[str, Any], written: Written
    ) -> None:
        headers = {"Idempotency-Key": "k-1"}
        first = await client.post("/v1/runs", json={"workflow": "orders", "input": order}, headers=headers)
        await client.post(f"/v1/runs/{first.json()['id']}/cancel")
        reordered = json.dumps(
            {"input": dict(reversed(order.items())), "workflow": "orders", "priority": 5, "tags": []}
        )
        second = await client.post(
            "/v1/runs", content=reordered, headers={**headers, "Content-Type": "application/json"}
        )
        assert (first.status_code, second.status_code) == (201, 200)
        assert second.headers["idempotent-replayed"] == "true"
        assert second.headers["location"] == first.headers["location"]
        assert second.json()["status"] == "CANCELLED"
        assert (await written())[0] == 1

    async def test_the_key_with_another_request_is_refused(
        self, client: httpx.AsyncClient, order: dict[str, Any]
    ) -> None:
        headers = {"Idempotency-Key": "k-1"}
        await client.post("/v1/runs", json={"workflow": "orders", "input": order}, headers=headers)
        for change in ({"priority": 6}, {"tags": ["x"]}, {"input": {**order, "order_id": "o-2"}}):
            answer = await client.post(
                "/v1/runs", json={"workflow": "orders", "input": order, **change}, headers=headers
            )
            assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")

    async def test_a_key_belongs_to_one_tenant(
        self, client: httpx.AsyncClient, other_client: httpx.AsyncClient, order: dict[str, Any]
    ) -> None:
        wanted, headers = {"workflow": "orders", "input": order}, {"Idempotency-Key": "k-1"}
        mine = await client.post("/v1/runs", json=wanted, headers=headers)
        theirs = await other_client.post("/v1/runs", json=wanted, headers=headers)
        assert (mine.status_code, theirs.status_code) == (201, 201)
        assert mine.json()["id"] != theirs.json()["id"]

    async def test_many_at_once_create_one_run(
        self, client: httpx.AsyncClient, order: dict[str, Any], written: Written
    ) -> None:
        wanted, headers = {"workflow": "orders", "input": order}, {"Idempotency-Key": "k-1"}
        answers = await asyncio.gather(*(client.post("/v1/runs", json=wanted, headers=headers) for _ in range(20)))
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert await written() == (1, 1, 1)

    async def test_a_refused_request_does_not_use_up_its_key(
        self, client: httpx.AsyncClient, order: dict[str, Any]
    ) -> None:
        headers = {"Idempotency-Key": "k-1"}
        refused = await client.post("/v1/runs", json={"workflow": "orders", "input": {}}, headers=headers)
        accepted = await client.post("/v1/runs", json={"workflow": "orders", "input": order}, headers=headers)
        assert (refused.status_code, accepted.status_code) == (422, 201)

    @pytest.mark.parametrize("key", ["", "k" * 256, b"\xff\xfe"])
    async def test_a_bad_key_is_refused(
        self, client: httpx.AsyncClient, order: dict[str, Any], key: str | bytes
    ) -> None:
        answer = await client.post(
            "/v1/runs", json={"workflow": "orders", "input": order}, headers={"Idempotency-Key": key}
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert answer.json()["errors"][0]["pointer"] == "/idempotency_key"

    async def test_the_longest_key_is_taken(self, client: httpx.AsyncClient, order: dict[str, Any]) -> None:
        answer = await client.post(
            "/v1/runs", json={"workflow": "orders", "input": order}, headers={"Idempotency-Key": ("é" * 255).encode()}
        )
        assert answer.status_code == 201


GOOD: dict[str, Any] = {"workflow": "anything", "input": {}}
DEEP = '{"workflow": "anything", "input": {"a": ' + "[" * 250 + "]" * 250 + "}}"
DEEPER = '{"workflow": "anything", "input": {"a": ' + "[" * 20_000 + "]" * 20_000 + "}}"


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "code", "pointer"),
        [
            ({**GOOD, "workflow": "nothing"}, "unknown_workflow", "/workflow"),
            ({"workflow": "anything"}, "invalid_request", "/input"),
            ({"input": {}}, "invalid_request", "/workflow"),
            ({**GOOD, "workflow": 7}, "invalid_request", "/workflow"),
            ({**GOOD, "workflow": ""}, "invalid_request", "/workflow"),
            ({**GOOD, "workflow": "w" * 300}, "invalid_request", "/workflow"),
            ({**GOOD, "prio": 5}, "invalid_request", "/prio"),
            ({**GOOD, "a/b~c": 5}, "invalid_request", "/a~1b~0c"),
            ({**GOOD, "priority": 10}, "invalid_request", "/priority"),
            ({**GOOD, "priority": -1}, "invalid_request", "/priority"),
            ({**GOOD, "priority": "5"}, "invalid_request", "/priority"),
            ({**GOOD, "priority": True}, "invalid_request", "/priority"),
            ({**GOOD, "priority": 5.5}, "invalid_request", "/priority"),
            ({**GOOD, "priority": None}, "invalid_request", "/priority"),
            ({**GOOD, "run_at": "2030-01-01T00:00:00"}, "invalid_request", "/run_at"),
            ({**GOOD, "run_at": "2030-01-01"}, "invalid_request", "/run_at"),
            ({**GOOD, "run_at": "2030-02-30T00:00:00Z"}, "invalid_request", "/run_at"),
            ({**GOOD, "run_at": "0001-01-01T00:00:00+14:00"}, "invalid_request", "/run_at"),
            ({**GOOD, "run_at": "9999-12-31T23:59:59-14:00"}, "invalid_request", "/run_at"),
            ({**GOOD, "run_at": 1700000000}, "invalid_request", "/run_at"),
            ({**GOOD, "tags": "a"}, "invalid_request", "/tags"),
            ({**GOOD, "tags": [""]}, "invalid_request", "/tags/0"),
            ({**GOOD, "tags": ["a", "b" * 65]}, "invalid_request", "/tags/1"),
            ({**GOOD, "tags": ["a", 1]}, "invalid_request", "/tags/1"),
            ({**GOOD, "tags": ["a\0"]}, "invalid_request", "/tags/0"),
            ({**GOOD, "tags": [str(n) for n in range(21)]}, "invalid_request", "/tags"),
            ({**GOOD, "config": []}, "invalid_request", "/config"),
            ({**GOOD, "config": {"nope": {}}}, "invalid_config", "/config/nope"),
            ({**GOOD, "definition_version": "sha256-0"}, "invalid_request", "/definition_version"),
            ({**GOOD, "input": {"a": "x\0y"}}, "invalid_input", "/input/a"),
            ({"workflow": "orders", "input": {"order_id": "o", "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": "x"}]}}, "invalid_input", "/input/lines/1/count"),
            ({"workflow": "orders", "input": {"lines": []}}, "invalid_input", "/input/order_id"),
            ({"workflow": "orders", "input": None}, "invalid_input", "/input"),
            ([], "invalid_request", ""),
            ("text", "invalid_request", ""),
        ],
    )  # fmt: skip
    async def test_json_that_is_not_acceptable_is_422_with_its_pointer(
        self,
        client: httpx.AsyncClient,
        written: Written,
        body: Any,
        code: str,
        pointer: str,
    ) -> None:
        answer = await client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, code)
        assert answer.headers["content-type"] == PROBLEM
        assert [error["pointer"] for error in problem["errors"]] == [pointer]
        assert await written() == (0, 0, 0)

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            (b'{"workflow": "anything", "input": {"a": "\\ud800"}}', "/input/a"),
            (b'{"workflow": "anything", "input": {"a": 1e999}}', "/input/a"),
            (b'{"workflow": "anything", "input": {"a": {"\\u0000": 1}}}', "/input/a"),
            (b'{"workflow": "any\\ud800thing", "input": {}}', "/workflow"),
            (b'{"workflow": "anything", "input": {}, "\\ud800": 1}', None),
            (DEEPER.encode(), ""),
            (b'{"workflow": "anything", "input": {"a": ' + b"9" * 5000 + b"}}", ""),
        ],
    )
    async def test_json_that_nobody_could_keep_is_422(
        self,
        client: httpx.AsyncClient,
        written: Written,
        body: bytes,
        pointer: str | None,
    ) -> None:
        answer = await client.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        if pointer is not None:
            assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
        assert await written() == (0, 0, 0)

    async def test_nesting_beyond_200_levels_is_422_at_the_input(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/runs", content=DEEP, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
        assert answer.json()["errors"][0]["pointer"].startswith("/input")

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"  ", b"{", b"{'a': 1}", b"\xff\xfe{}", b'{"workflow": "anything", "input": {"a": NaN}}',
            b'{"workflow": "anything", "input": -Infinity}', b'{"a": 1} x', b"\xef\xbb\xbf{}",
        ],
    )  # fmt: skip
    async def test_what_is_not_json_is_400(self, client: httpx.AsyncClient, body: bytes) -> None:
        answer = await client.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert answer.headers["content-type"] == PROBLEM

    @pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
    async def test_another_media_type_is_415(self, client: httpx.AsyncClient, media_type: str) -> None:
        answer = await client.post("/v1/runs", content=b"{}", headers={"Content-Type": media_type})
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")

    async def test_an_oversize_body_is_413_before_it_is_read(self, client: httpx.AsyncClient) -> None:
        read = 0

        async def chunks() -> Any:
            nonlocal read
            for _ in range(100):
                read += 1
                yield b" " * 10_000

        answer = await client.post("/v1/runs", content=chunks(), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        declared = await client.post("/v1/runs", json={**GOOD, "input": {"a": "x" * 1_000_000}})
        assert declared.status_code == 413

    async def test_an_oversize_payload_is_413(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/runs", json={**GOOD, "input": {"a": "x" * 110_000}})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


class TestLimits:
    async def test_runs_per_minute(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        await factories.limit_tenant(superuser, tenant, runs_per_minute=2)
        answers = [await client.post("/v1/runs", json=GOOD) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [201, 201, 429]
        assert answers[2].json()["code"] == "rate_limited"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 60
        assert answers[2].headers["ratelimit-policy"] == '"runs_per_minute";q=2;w=60'
        assert answers[2].headers["ratelimit"].startswith('"runs_per_minute";r=0;t=')

    async def test_pending_runs(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        await factories.limit_tenant(superuser, tenant, pending_runs=1)
        first = await client.post("/v1/runs", json=GOOD)
        second = await client.post("/v1/runs", json=GOOD)
        assert (first.status_code, second.status_code) == (201, 429)
        await client.post(f"/v1/runs/{first.json()['id']}/cancel")
        assert (await client.post("/v1/runs", json=GOOD)).status_code == 201

    async def test_payload_bytes(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        await factories.limit_tenant(superuser, tenant, payload_bytes=50)
        answer = await client.post("/v1/runs", json={**GOOD, "input": {"a": "x" * 60}})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_more_requests_than_connections_are_served_in_turn(client: httpx.AsyncClient) -> None:
    async def one_after_the_other() -> set[int]:
        return {(await client.post("/v1/runs", json=GOOD)).status_code for _ in range(8)}

    assert set().union(*await asyncio.gather(*(one_after_the_other() for _ in range(25)))) == {201}
