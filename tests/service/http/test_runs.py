"""Listing, showing, waiting for and cancelling runs."""

import asyncio
import json
import time
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from litestar import Litestar

NOBODY = "00000000-0000-7000-8000-000000000000"
ANYTHING: dict[str, Any] = {"workflow": "anything", "input": {}}


async def start(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post("/v1/runs", json={**ANYTHING, **changes})
    assert answer.status_code == 201, answer.text
    run: dict[str, Any] = answer.json()
    return run


async def finish(superuser: psycopg.AsyncConnection, run_id: str, status: str) -> None:
    """Stand in for a worker: the run is over, its last event written."""
    event = {"COMPLETED": "workflow:completed", "FAILED": "workflow:failed"}[status]
    async with superuser.transaction():
        await superuser.execute(
            """
            update tenantry.workflow_runs
            set status = %s, completed_at = now(), output = '{"a": 1.50}', event_sequence = event_sequence + 1, ready = false
            where run_id = %s
            """,
            (status, run_id),
        )
        await superuser.execute(
            """
            insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, payload)
            select tenant_id, run_id, event_sequence, %s, '{}' from tenantry.workflow_runs where run_id = %s
            """,
            (event, run_id),
        )


class TestList:
    async def test_pages_are_newest_first_and_stable_under_inserts(self, client: httpx.AsyncClient) -> None:
        ids = [(await start(client))["id"] for _ in range(5)]
        first = (await client.get("/v1/runs", params={"limit": 2})).json()
        await start(client)
        second = (await client.get("/v1/runs", params={"limit": 2, "cursor": first["next_cursor"]})).json()
        third = (await client.get("/v1/runs", params={"limit": 2, "cursor": second["next_cursor"]})).json()
        assert [run["id"] for page in (first, second, third) for run in page["data"]] == ids[::-1]
        assert third["next_cursor"] is None
        assert not {"input", "config", "output", "stages"} & first["data"][0].keys()

    async def test_a_full_last_page_has_no_cursor(self, client: httpx.AsyncClient) -> None:
        await start(client)
        await start(client)
        assert (await client.get("/v1/runs", params={"limit": 2})).json()["next_cursor"] is None

    async def test_filters(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, order: dict[str, Any]
    ) -> None:
        plain = await start(client)
        tagged = await start(client, tags=["red", "big"])
        red = await start(client, tags=["red"])
        priced = await start(client, workflow="orders", input=order)
        await finish(superuser, plain["id"], "COMPLETED")
        await finish(superuser, red["id"], "FAILED")

        async def ids(**params: Any) -> list[str]:
            answer = await client.get("/v1/runs", params=params)
            assert answer.status_code == 200, answer.text
            return [run["id"] for run in answer.json()["data"]]

        assert await ids(status="COMPLETED") == [plain["id"]]
        assert await ids(status="FAILED") == [red["id"]]
        assert await ids(status=["FAILED", "COMPLETED"]) == [red["id"], plain["id"]]
        assert await ids(status=["FAILED", "PENDING"]) == [priced["id"], red["id"], tagged["id"]]
        assert await ids(status="PENDING", limit=1) == [priced["id"]]
        assert await ids(tag="red") == [red["id"], tagged["id"]]
        assert await ids(tag=["red", "big"]) == [tagged["id"]]
        assert await ids(tag="red", status="PENDING") == [tagged["id"]]
        assert await ids(tag="re") == []
        assert await ids(workflow="orders") == [priced["id"]]
        assert await ids(workflow="orders", status="PENDING") == [priced["id"]]
        assert await ids(created_after=red["created_at"]) == [priced["id"]]
        assert await ids(created_before=red["created_at"]) == [tagged["id"], plain["id"]]
        assert await ids(created_after=plain["created_at"], created_before=priced["created_at"], tag="big") == [
            tagged["id"]
        ]
        assert await ids(created_before="1970-01-01T00:00:00Z") == []

    @pytest.mark.parametrize(
        ("params", "status", "pointer"),
        [
            ({"limit": "0"}, 422, "/limit"), ({"limit": "201"}, 422, "/limit"), ({"limit": "x"}, 422, "/limit"),
            ({"limit": ""}, 422, "/limit"), ({"limit": "-1"}, 422, "/limit"), ({"limit": ["1", "2"]}, 422, "/limit"),
            ({"status": "pending"}, 422, "/status"), ({"status": ""}, 422, "/status"), ({"tag": ""}, 422, "/tag"),
            ({"tag": "x" * 65}, 422, "/tag"), ({"tag": "a\0"}, 422, "/tag"), ({"workflow": ""}, 422, "/workflow"),
            ({"created_after": "yesterday"}, 422, "/created_after"), ({"created_before": "2026-01-01T00:00:00"}, 422, "/created_before"),
            ({"statsu": "FAILED"}, 422, "/statsu"),
            ({"cursor": "x"}, 400, "/cursor"), ({"cursor": ""}, 400, "/cursor"), ({"cursor": "ÿ"}, 400, "/cursor"),
            ({"cursor": "cgAAAAAAAAAAAAAAAAAAAAAAAAAA"}, 400, "/cursor"),
        ],
    )  # fmt: skip
    async def test_bad_parameters(self, client: httpx.AsyncClient, params: Any, status: int, pointer: str) -> None:
        answer = await client.get("/v1/runs", params=params)
        assert (answer.status_code, answer.json()["code"]) == (status, "invalid_request")
        assert answer.json()["errors"][0]["pointer"] == pointer

    async def test_a_cursor_of_another_list_or_tenant_leads_nowhere(
        self, client: httpx.AsyncClient, other_client: httpx.AsyncClient
    ) -> None:
        run = await start(client)
        await start(client)
        cursor = (await client.get("/v1/runs", params={"limit": 1})).json()["next_cursor"]
        assert (await client.get(f"/v1/runs/{run['id']}/logs", params={"cursor": cursor})).status_code == 400
        assert (await other_client.get("/v1/runs", params={"cursor": cursor})).json()["data"] == []

    async def test_an_offsets_plus_may_have_become_a_blank(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/runs?created_after=2020-01-01T00:00:00+01:00")).status_code == 200


class TestShow:
    @pytest.mark.parametrize("run_id", ["x", "123", "0" * 32, "{" + NOBODY + "}", NOBODY, "%00"])
    async def test_an_id_that_is_none_is_404(self, client: httpx.AsyncClient, run_id: str) -> None:
        for path in ("", "/events", "/logs", "/steps", "/trace"):
            answer = await client.get(f"/v1/runs/{run_id}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path

    async def test_stages_have_their_names(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID, order: dict[str, Any]
    ) -> None:
        run = await start(client, workflow="orders", input=order)
        await superuser.execute("update tenantry.workflow_runs set status = 'RUNNING' where run_id = %s", (run["id"],))
        await superuser.execute(
            """
            insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, max_attempts)
            values (%(t)s, %(r)s, 'ship', 2, 2, 'PENDING', 3), (%(t)s, %(r)s, 'price', 1, 1, 'RUNNING', 3)
            """,
            {"t": tenant, "r": run["id"]},
        )
        stages = (await client.get(f"/v1/runs/{run['id']}")).json()["stages"]
        assert [(stage["id"], stage["name"], stage["group"], stage["number"]) for stage in stages] == [
            ("price", "Price the order", 1, 1),
            ("ship", "ship", 2, 2),
        ]
        assert stages[0]["waiting_for"] is None
        # A version this build does not serve: the names are those that were stored when the run was claimed.
        await superuser.execute("update tenantry.workflow_runs set version = 'old' where run_id = %s", (run["id"],))
        await superuser.execute(
            """
            insert into tenantry.workflow_definitions (tenant_id, workflow_id, version, structure_hash, snapshot)
            values (%s, 'orders', 'old', 'x', '{"stages": [{"id": "price", "name": "Former name"}]}')
            """,
            (tenant,),
        )
        stages = (await client.get(f"/v1/runs/{run['id']}")).json()["stages"]
        assert [stage["name"] for stage in stages] == ["Former name", "ship"]

    @pytest.mark.parametrize("wait", ["-1", "61", "x", "", "nan", "1e1", "60.5"])
    async def test_a_bad_wait_is_422(self, client: httpx.AsyncClient, wait: str) -> None:
        run = await start(client)
        answer = await client.get(f"/v1/runs/{run['id']}", params={"wait": wait})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/wait")


class TestWait:
    async def test_it_ends_with_the_run(self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection) -> None:
        run = await start(client)
        waiting = asyncio.create_task(client.get(f"/v1/runs/{run['id']}", params={"wait": 30}))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await finish(superuser, run["id"], "COMPLETED")
        shown = (await asyncio.wait_for(waiting, 5)).json()
        assert (shown["status"], shown["output"]) == ("COMPLETED", {"a": 1.5})

    async def test_it_ends_with_its_time(self, client: httpx.AsyncClient) -> None:
        run = await start(client)
        started_at = time.monotonic()
        shown = (await client.get(f"/v1/runs/{run['id']}", params={"wait": "0.3"})).json()
        assert shown["status"] == "PENDING"
        assert 0.3 <= time.monotonic() - started_at < 3

    async def test_waiting_holds_no_connection(self, client: httpx.AsyncClient) -> None:
        # Five connections in the pool, thirty who wait, and somebody who is served at once.
        run = await start(client)
        waiting = [asyncio.create_task(client.get(f"/v1/runs/{run['id']}", params={"wait": 2})) for _ in range(30)]
        await asyncio.sleep(0.3)
        answer = await asyncio.wait_for(client.get("/v1/tenant"), 1.5)
        assert answer.status_code == 200
        assert not any(task.done() for task in waiting)
        assert {task.status_code for task in await asyncio.gather(*waiting)} == {200}

    async def test_it_ends_when_the_process_is_told_to_stop(self, app: Litestar, client: httpx.AsyncClient) -> None:
        run = await start(client)
        waiting = asyncio.create_task(client.get(f"/v1/runs/{run['id']}", params={"wait": 30}))
        await asyncio.sleep(0.05)
        app.state.api.stopping.set()
        assert (await asyncio.wait_for(waiting, 5)).status_code == 200


class TestCancel:
    async def test_a_run_is_cancelled_with_its_reason(self, client: httpx.AsyncClient) -> None:
        run = await start(client)
        answer = await client.post(f"/v1/runs/{run['id']}/cancel", json={"reason": "changed my mind"})
        assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLED")
        events = (await client.get(f"/v1/runs/{run['id']}/events")).json()["data"]
        assert [event["type"] for event in events] == ["workflow:created", "workflow:cancelled"]
        assert events[-1]["data"]["reason"] == "changed my mind"

    async def test_a_finished_run_stays_as_it_is(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
    ) -> None:
        run = await start(client)
        await finish(superuser, run["id"], "COMPLETED")
        before = (await client.get(f"/v1/runs/{run['id']}")).json()
        answer = await client.post(f"/v1/runs/{run['id']}/cancel")
        assert (answer.status_code, answer.json()) == (200, before)

    @pytest.mark.parametrize(("body", "pointer"), [({"why": "x"}, "/why"), ({"reason": 1}, "/reason"), ([], "")])
    async def test_a_bad_body_is_422(self, client: httpx.AsyncClient, body: Any, pointer: str) -> None:
        run = await start(client)
        answer = await client.post(f"/v1/runs/{run['id']}/cancel", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)

    async def test_bulk(self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection) -> None:
        red = [await start(client, tags=["red"]) for _ in range(3)]
        other = await start(client)
        await finish(superuser, red[0]["id"], "COMPLETED")
        wanted = {"filter": {"tag": "red", "workflow": "anything"}}
        counted = await client.post("/v1/runs/cancel", json={**wanted, "dry_run": True})
        assert (counted.status_code, counted.json()) == (200, {"matched": 2, "dry_run": True})
        assert (await client.post("/v1/runs/cancel", json=wanted)).json() == {"matched": 2, "dry_run": False}
        assert (await client.post("/v1/runs/cancel", json=wanted)).json()["matched"] == 0
        states = {run["id"]: run["status"] for run in (await client.get("/v1/runs")).json()["data"]}
        assert [states[run["id"]] for run in [*red, other]] == ["COMPLETED", "CANCELLED", "CANCELLED", "PENDING"]

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"filter": {}}, "/filter"), ({}, "/filter"), ({"filter": {"status": "DONE"}}, "/filter/status"),
            ({"filter": {"colour": "red"}}, "/filter/colour"), ({"filter": {"tag": "x"}, "dry_run": "yes"}, "/dry_run"),
            ({"filter": {"created_after": "x"}}, "/filter/created_after"), ({"filter": {"tag": None}}, "/filter"),
        ],
    )  # fmt: skip
    async def test_a_bad_filter_is_422(self, client: httpx.AsyncClient, body: Any, pointer: str) -> None:
        answer = await client.post("/v1/runs/cancel", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


class TestHistory:
    async def test_events_page_oldest_first(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
    ) -> None:
        run = await start(client)
        await finish(superuser, run["id"], "FAILED")
        path = f"/v1/runs/{run['id']}/events"
        first = (await client.get(path, params={"limit": 1})).json()
        second = (await client.get(path, params={"limit": 1, "cursor": first["next_cursor"]})).json()
        assert [event["sequence"] for event in first["data"] + second["data"]] == [1, 2]
        assert second["next_cursor"] is None
        event = first["data"][0]
        assert (event["type"], event["stage_id"], event["run_id"]) == ("workflow:created", None, run["id"])
        assert event["occurred_at"].endswith("Z")
        assert isinstance(event["data"], dict)

    async def test_a_stream_follows_the_run_to_its_end(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
    ) -> None:
        run = await start(client)
        streaming = asyncio.create_task(
            client.get(f"/v1/runs/{run['id']}/events", headers={"Accept": "text/event-stream"})
        )
        await asyncio.sleep(0.1)
        assert not streaming.done()
        await finish(superuser, run["id"], "COMPLETED")
        answer = await asyncio.wait_for(streaming, 5)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-request-id"]
        messages = [message for message in answer.text.split("\n\n") if message.startswith("id:")]
        assert [message.splitlines()[:2] for message in messages] == [
            ["id: 1", "event: workflow:created"],
            ["id: 2", "event: workflow:completed"],
        ]

    async def test_a_stream_resumes_behind_the_last_event_id(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
    ) -> None:
        run = await start(client)
        await finish(superuser, run["id"], "COMPLETED")
        accept = {"Accept": "text/event-stream"}
        path = f"/v1/runs/{run['id']}/events"
        resumed = await client.get(path, headers={**accept, "Last-Event-ID": "1"})
        assert "id: 2\n" in resumed.text
        assert "id: 1\n" not in resumed.text
        finished = await client.get(path, headers={**accept, "Last-Event-ID": "2"})
        assert "id:" not in finished.text
        for bad in ("x", "-1", "9" * 30):
            assert (await client.get(path, headers={**accept, "Last-Event-ID": bad})).status_code == 422

    async def test_a_stream_of_no_run_is_404(self, client: httpx.AsyncClient) -> None:
        answer = await client.get(f"/v1/runs/{NOBODY}/events", headers={"Accept": "text/event-stream"})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")

    async def test_a_stream_ends_when_the_process_is_told_to_stop(
        self, app: Litestar, client: httpx.AsyncClient
    ) -> None:
        run = await start(client)
        streaming = asyncio.create_task(
            client.get(f"/v1/runs/{run['id']}/events", headers={"Accept": "text/event-stream"})
        )
        await asyncio.sleep(0.05)
        app.state.api.stopping.set()
        assert "id: 1\n" in (await asyncio.wait_for(streaming, 5)).text

    async def test_trace(self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID) -> None:
        run = await start(client)
        link = json.dumps([{"trace_id": "c" * 32, "span_id": "d" * 16, "attributes": {}}])
        for number in (2, 1):
            await superuser.execute(
                """
                insert into tenantry.spans (
                  tenant_id, run_id, trace_id, span_id, parent_span_id, name, kind, start_time, end_time, status,
                  attributes, links
                )
                values (%s, %s, %s, %s, %s, 'n', 'CONSUMER', %s, %s, 'ERROR', '{"error.type": "E"}', %s)
                """,
                (tenant, run["id"], "a" * 32, f"{number:016}", "b" * 16, f"2026-01-0{number}Z", "2026-01-03Z", link),
            )
        answered = await client.get(f"/v1/runs/{run['id']}/trace")
        assert [span["span_id"] for span in answered.json()["data"] if span["name"] == "n"] == [
            "0" * 15 + "1", "0" * 15 + "2",
        ]  # fmt: skip
        assert answered.json()["data"][0] == {
            "trace_id": "a" * 32, "span_id": "0" * 15 + "1", "parent_span_id": "b" * 16, "name": "n",
            "kind": "CONSUMER", "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-03T00:00:00Z",
            "status": "ERROR", "attributes": {"error.type": "E"},
            "links": [{"trace_id": "c" * 32, "span_id": "d" * 16, "attributes": {}}],
        }  # fmt: skip

    async def test_logs(self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID) -> None:
        run = await start(client)
        for number in range(3):
            await superuser.execute(
                """
                insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message, fields)
                values (%s, %s, 'say', 1, 'info', %s, '{"n": 1}')
                """,
                (tenant, run["id"], f"line {number}"),
            )
        path = f"/v1/runs/{run['id']}/logs"
        first = (await client.get(path, params={"limit": 2})).json()
        second = (await client.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert [line["message"] for line in first["data"] + second["data"]] == ["line 0", "line 1", "line 2"]
        assert {name: first["data"][0][name] for name in ("level", "fields", "stage_id", "attempt")} == {
            "level": "info", "fields": {"n": 1}, "stage_id": "say", "attempt": 1,
        }  # fmt: skip
