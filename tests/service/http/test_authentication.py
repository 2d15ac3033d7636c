"""Who is let in, and that nobody learns from a refusal what exists."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from litestar import Litestar

from service import keys
from tests.support import factories
from tests.support.http import MakeKey, connect

NOBODY = "00000000-0000-7000-8000-000000000000"
ROUTES = [
    ("GET", "/v1/runs", "runs:read"),
    ("POST", "/v1/runs", "runs:write"),
    ("GET", f"/v1/runs/{NOBODY}", "runs:read"),
    ("GET", f"/v1/runs/{NOBODY}/events", "runs:read"),
    ("GET", f"/v1/runs/{NOBODY}/logs", "runs:read"),
    ("GET", f"/v1/runs/{NOBODY}/annotations", "runs:read"),
    ("GET", f"/v1/runs/{NOBODY}/progress", "runs:read"),
    ("GET", f"/v1/runs/{NOBODY}/trace", "runs:read"),
    ("GET", f"/v1/runs/{NOBODY}/steps", "runs:read"),
    ("POST", f"/v1/runs/{NOBODY}/signals", "signals:write"),
    ("POST", f"/v1/runs/{NOBODY}/cancel", "runs:write"),
    ("POST", "/v1/runs/cancel", "runs:write"),
    ("POST", f"/v1/runs/{NOBODY}/redrive", "runs:write"),
    ("POST", "/v1/runs/redrive", "runs:write"),
    ("GET", "/v1/workflows", "runs:read"),
    ("GET", "/v1/workflows/orders", "runs:read"),
    ("GET", "/v1/workflows/orders/versions", "runs:read"),
    ("GET", "/v1/queue", "runs:read"),
    ("GET", "/v1/activity", "runs:read"),
    ("GET", "/v1/workers", "runs:read"),
    ("GET", "/v1/api-keys", "keys:admin"),
    ("POST", "/v1/api-keys", "keys:admin"),
    ("DELETE", f"/v1/api-keys/{NOBODY}", "keys:admin"),
]
BODIES = {
    "/v1/runs": {"workflow": "anything", "input": {}},
    "/v1/runs/cancel": {"filter": {"tag": "x"}},
    "/v1/runs/redrive": {"filter": {"tag": "x"}},
    f"/v1/runs/{NOBODY}/signals": {"stage_id": "say", "step_id": "x", "payload": None},
    "/v1/api-keys": {"name": "k", "scopes": ["runs:read"]},
}


async def ask(client: httpx.AsyncClient, method: str, path: str) -> httpx.Response:
    return await client.request(method, path, json=BODIES.get(path) if method == "POST" else None)


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in ROUTES] + [("GET", "/v1/tenant")])
async def test_nobody_comes_in_without_a_key(anonymous: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await ask(anonymous, method, path)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("route", ROUTES)
async def test_each_route_asks_for_its_scope(
    app: Litestar, tenant: UUID, make_key: MakeKey, route: tuple[str, str, str]
) -> None:
    method, path, scope = route
    others = [other for other in ("runs:read", "runs:write", "signals:write", "keys:admin") if other != scope]
    async with connect(app, (await make_key(tenant, scopes=others))["key"]) as client:
        answer = await ask(client, method, path)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    async with connect(app, (await make_key(tenant, scopes=[scope]))["key"]) as client:
        answer = await ask(client, method, path)
    assert answer.status_code in {200, 201, 404}


async def test_every_kind_of_wrong_key_is_answered_alike(
    app: Litestar, tenant: UUID, other_tenant: UUID, make_key: MakeKey
) -> None:
    good = await make_key(tenant)
    wrong = [
        keys.mint(uuid4(), uuid4()).text,  # no such tenant
        keys.mint(tenant, uuid4()).text,  # no such key
        keys.mint(tenant, good["id"]).text,  # another secret
        keys.mint(other_tenant, good["id"]).text,  # another tenant's key
        good["key"][:-1] + ("a" if good["key"][-1] != "a" else "b"),  # a typo
        "tny_",
        "nonsense",
        "a.b.c",
    ]
    answers = []
    for key in wrong:
        async with connect(app, key) as client:
            answers.append(await client.get("/v1/tenant", headers={"X-Request-ID": "same"}))
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic dGVzdDp0ZXN0", "tny_x", "Bearer tny_\x01"])
async def test_a_header_that_is_no_bearer_key_is_401(anonymous: httpx.AsyncClient, authorization: str) -> None:
    assert (await anonymous.get("/v1/tenant", headers={"Authorization": authorization})).status_code == 401


async def test_a_revoked_key_is_refused_at_once(
    app: Litestar, client: httpx.AsyncClient, tenant: UUID, make_key: MakeKey
) -> None:
    made = await make_key(tenant)
    async with connect(app, made["key"]) as revoked:
        assert (await revoked.get("/v1/tenant")).status_code == 200
        assert (await client.delete(f"/v1/api-keys/{made['id']}")).status_code == 204
        assert (await revoked.get("/v1/tenant")).status_code == 401


async def test_an_expired_key_is_refused(
    app: Litestar, superuser: psycopg.AsyncConnection, tenant: UUID, make_key: MakeKey
) -> None:
    made = await make_key(tenant, expires_at=datetime.now(UTC) + timedelta(hours=1))
    async with connect(app, made["key"]) as client:
        assert (await client.get("/v1/tenant")).status_code == 200
        await superuser.execute(
            "update tenantry.api_keys set expires_at = now() - interval '1 second' where key_id = %s", (made["id"],)
        )
        assert (await client.get("/v1/tenant")).status_code == 401


async def test_a_suspended_tenant_is_told_so_on_every_route(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    await factories.set_tenant_status(superuser, tenant, "suspended")
    for method, path, _ in ROUTES:
        answer = await ask(client, method, path)
        assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
    await factories.set_tenant_status(superuser, tenant, "deleting")
    assert (await client.get("/v1/tenant")).status_code == 401
    await factories.set_tenant_status(superuser, tenant, "active")
    assert (await client.get("/v1/tenant")).status_code == 200


async def test_the_use_of_a_key_is_recorded_at_most_once_a_minute(
    app: Litestar, superuser: psycopg.AsyncConnection, tenant: UUID, make_key: MakeKey
) -> None:
    made = await make_key(tenant)

    async def last_use() -> tuple[object, object]:
        cursor = await superuser.execute(
            "select last_used_at, xmin::text from tenantry.api_keys where key_id = %s", (made["id"],)
        )
        row = await cursor.fetchone()
        assert row is not None
        return row

    assert (await last_use())[0] is None
    async with connect(app, made["key"]) as client:
        await client.get("/v1/tenant")
        first = await last_use()
        assert first[0] is not None
        await client.get("/v1/tenant")
        assert await last_use() == first
        await superuser.execute(
            "update tenantry.api_keys set last_used_at = now() - interval '2 minutes' where key_id = %s", (made["id"],)
        )
        # Held by somebody else: the request neither waits nor fails.
        async with superuser.transaction():
            await superuser.execute("select from tenantry.api_keys where key_id = %s for update", (made["id"],))
            assert (await client.get("/v1/tenant")).status_code == 200
        await client.get("/v1/tenant")
        assert (await last_use())[0] > first[0]  # type: ignore[operator]


async def test_another_tenants_ids_are_404_and_never_listed(
    client: httpx.AsyncClient, other_client: httpx.AsyncClient, tenant: UUID, make_key: MakeKey
) -> None:
    run = (await client.post("/v1/runs", json={"workflow": "anything", "input": {}, "tags": ["mine"]})).json()
    key = await make_key(tenant)
    for method, path in [
        ("GET", f"/v1/runs/{run['id']}"),
        ("GET", f"/v1/runs/{run['id']}?wait=1"),
        ("GET", f"/v1/runs/{run['id']}/events"),
        ("GET", f"/v1/runs/{run['id']}/logs"),
        ("GET", f"/v1/runs/{run['id']}/annotations"),
        ("GET", f"/v1/runs/{run['id']}/progress"),
        ("GET", f"/v1/runs/{run['id']}/trace"),
        ("GET", f"/v1/runs/{run['id']}/steps"),
        ("POST", f"/v1/runs/{run['id']}/signals"),
        ("POST", f"/v1/runs/{run['id']}/cancel"),
        ("DELETE", f"/v1/api-keys/{key['id']}"),
    ]:
        body = {"stage_id": "say", "step_id": "x", "payload": None} if path.endswith("/signals") else None
        answer = await other_client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    for path in ("/v1/runs", "/v1/runs?tag=mine", "/v1/runs?status=PENDING"):
        assert (await other_client.get(path)).json()["data"] == []
    bulk = await other_client.post("/v1/runs/cancel", json={"filter": {"tag": "mine"}})
    assert bulk.json() == {"matched": 0, "dry_run": False}
    assert (await other_client.get("/v1/queue")).json()["depth"] == 0
    assert (await client.get(f"/v1/runs/{run['id']}")).json()["status"] == "PENDING"
    assert (await client.get(f"/v1/runs/{run['id']}/steps")).json()["data"] == []
