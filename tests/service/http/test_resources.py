"""The tenant, its keys, its queue and the workflows."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from litestar import Litestar

from tests.support import factories
from tests.support.http import connect

ANYTHING: dict[str, Any] = {"workflow": "anything", "input": {}}


class TestTenant:
    async def test_it_shows_limits_and_usage(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        await factories.limit_tenant(superuser, tenant, running_jobs=4, runs_per_minute=100)
        await client.post("/v1/runs", json=ANYTHING)
        shown = (await client.get("/v1/tenant")).json()
        assert (shown["id"], shown["slug"], shown["status"]) == (str(tenant), f"t-{tenant}", "active")
        assert shown["limits"] == {
            "running_jobs": 4, "pending_runs": None, "runs_per_minute": 100, "payload_bytes": None,
        }  # fmt: skip
        assert shown["usage"] == {"pending_runs": 1, "running_jobs": 0, "stored_runs": 1}

    async def test_counts_stop_at_ten_thousand(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        await superuser.execute(
            """
            insert into tenantry.workflow_runs (tenant_id, workflow_id, status, rank, ready, available_at, input)
            select %s, 'anything', 'PENDING', now(), true, now(), '{}' from generate_series(1, 10001)
            """,
            (tenant,),
        )
        assert (await client.get("/v1/tenant")).json()["usage"]["pending_runs"] == "10000+"
        queue = (await client.get("/v1/queue")).json()
        assert (queue["depth"], queue["by_workflow"][0]["depth"]) == ("10000+", "10000+")
        assert len(queue["waiting"]) <= 200


class TestKeys:
    async def test_a_key_is_shown_once(self, app: Litestar, client: httpx.AsyncClient) -> None:
        expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        made = await client.post(
            "/v1/api-keys", json={"name": "ci", "scopes": ["runs:read", "runs:write"], "expires_at": expires_at}
        )
        assert made.status_code == 201
        key = made.json()
        assert key["key"].startswith("tny_")
        assert (key["name"], key["scopes"]) == ("ci", ["runs:read", "runs:write"])
        async with connect(app, key["key"]) as new:
            assert (await new.post("/v1/runs", json=ANYTHING)).status_code == 201
            assert (await new.get("/v1/api-keys")).status_code == 403
        listed = (await client.get("/v1/api-keys")).json()["data"]
        shown = next(each for each in listed if each["id"] == key["id"])
        assert shown.keys() == {"id", "name", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at"}
        assert shown["last_used_at"] is not None

    async def test_keys_are_listed_in_pages(self, client: httpx.AsyncClient) -> None:
        for number in range(3):
            await client.post("/v1/api-keys", json={"name": f"k{number}", "scopes": ["runs:read"]})
        first = (await client.get("/v1/api-keys", params={"limit": 3})).json()
        second = (await client.get("/v1/api-keys", params={"limit": 3, "cursor": first["next_cursor"]})).json()
        assert [key["name"] for key in first["data"] + second["data"]][1:] == ["k0", "k1", "k2"]
        assert second["next_cursor"] is None

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"scopes": ["runs:read"]}, "/name"), ({"name": "k"}, "/scopes"), ({"name": "k", "scopes": []}, "/scopes"),
            ({"name": "", "scopes": ["runs:read"]}, "/name"), ({"name": "k", "scopes": ["runs:fly"]}, "/scopes/0"),
            ({"name": "k" * 201, "scopes": ["runs:read"]}, "/name"), ({"name": "a\0", "scopes": ["runs:read"]}, "/name"),
            ({"name": "k", "scopes": ["runs:read"], "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
            ({"name": "k", "scopes": ["runs:read"], "expires_at": "2999-01-01T00:00:00"}, "/expires_at"),
            ({"name": "k", "scopes": ["runs:read"], "tenant": "x"}, "/tenant"),
        ],
    )  # fmt: skip
    async def test_a_bad_key_is_422(self, client: httpx.AsyncClient, body: Any, pointer: str) -> None:
        answer = await client.post("/v1/api-keys", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)

    async def test_revoking_twice_is_fine_and_unknown_is_404(self, client: httpx.AsyncClient) -> None:
        made = (await client.post("/v1/api-keys", json={"name": "k", "scopes": ["runs:read"]})).json()
        for _ in range(2):
            answer = await client.delete(f"/v1/api-keys/{made['id']}")
            assert (answer.status_code, answer.content) == (204, b"")
        assert (await client.delete("/v1/api-keys/x")).status_code == 404


class TestQueue:
    async def test_it_says_why_runs_wait(
        self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        async def start(**changes: Any) -> str:
            run_id: str = (await client.post("/v1/runs", json={**ANYTHING, **changes})).json()["id"]
            return run_id

        plain, later, unserved, retrying, held = await start(), await start(run_at="2999-01-01T00:00:00Z"), await start(), await start(), await start()  # fmt: skip
        await superuser.execute("update tenantry.workflow_runs set version = 'gone' where run_id = %s", (unserved,))
        for run_id, status, due in ((retrying, "PENDING", "1 hour"), (held, "RUNNING", "0")):
            await superuser.execute("update tenantry.workflow_runs set status = 'RUNNING' where run_id = %s", (run_id,))
            await superuser.execute(
                """
                insert into tenantry.job_queue
                  (tenant_id, run_id, stage_id, workflow_id, version, status, ready, rank, available_at, max_attempts)
                select tenant_id, run_id, 'say', workflow_id, version, %s, false, now(), now() + %s::interval, 3
                from tenantry.workflow_runs where run_id = %s
                """,
                (status, due, run_id),
            )
        queue = (await client.get("/v1/queue")).json()
        reasons = {entry["run_id"]: entry["reason"] for entry in queue["waiting"]}
        assert reasons == {plain: "priority", later: "run_at", unserved: "version_not_served", retrying: "backoff"}
        assert (queue["depth"], queue["running"]) == (4, 1)
        assert 0 <= queue["oldest_age_seconds"] < 60
        (share,) = queue["by_workflow"]
        assert (share["workflow"], share["depth"], share["running"]) == ("anything", 4, 1)
        await factories.limit_tenant(superuser, tenant, running_jobs=1)
        queue = (await client.get("/v1/queue")).json()
        assert {entry["run_id"]: entry["reason"] for entry in queue["waiting"]}[plain] == "tenant_cap"

    async def test_an_empty_queue(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/queue")).json() == {
            "depth": 0, "running": 0, "oldest_age_seconds": None, "by_workflow": [], "waiting": [],
        }  # fmt: skip


class TestWorkflows:
    async def test_they_are_listed_and_shown_with_schemas(self, client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/workflows")).json()
        assert [workflow["id"] for workflow in listed["data"]] == ["orders", "anything"]
        shown = (await client.get("/v1/workflows/orders")).json()
        assert shown in listed["data"]
        assert shown["input_schema"]["properties"].keys() == {"order_id", "lines"}
        price, ship = shown["stages"]
        assert (price["id"], price["name"], price["group"], price["number"], price["max_attempts"]) == (
            "price", "Price the order", 1, 1, 3,
        )  # fmt: skip
        assert price["config_schema"]["properties"].keys() == {"vat"}
        assert price["output_schema"]["properties"].keys() == {"total"}
        assert (ship["group"], ship["number"]) == (2, 2)

    async def test_an_unknown_one_is_404(self, client: httpx.AsyncClient) -> None:
        for path in ("/v1/workflows/nothing", "/v1/workflows/nothing/versions"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    async def test_versions(self, client: httpx.AsyncClient, superuser: psycopg.AsyncConnection) -> None:
        run = (await client.post("/v1/runs", json=ANYTHING)).json()
        old = (await client.post("/v1/runs", json=ANYTHING)).json()
        await superuser.execute("update tenantry.workflow_runs set version = 'old' where run_id = %s", (old["id"],))
        versions = (await client.get("/v1/workflows/anything/versions")).json()["data"]
        by_name = {version["definition_version"]: version for version in versions}
        assert by_name.keys() == {run["definition_version"], "old"}
        assert (by_name["old"]["served"], by_name["old"]["active"], by_name["old"]["drained"]) == (False, 1, False)
        assert by_name[run["definition_version"]]["served"] is True
