"""`/operator/v1`: for the operator's token only, and not there without it."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from litestar import Litestar

from kernel import Registry
from service.app import create_app, opened
from service.settings import Settings
from tests.support.http import MakeKey, connect

NOBODY = "00000000-0000-7000-8000-000000000000"
TENANTS = "/operator/v1/tenants"
ROUTES = [
    ("GET", TENANTS), ("POST", TENANTS), ("GET", f"{TENANTS}/{NOBODY}"), ("PATCH", f"{TENANTS}/{NOBODY}"),
    ("POST", f"{TENANTS}/{NOBODY}/suspend"), ("POST", f"{TENANTS}/{NOBODY}/resume"), ("DELETE", f"{TENANTS}/{NOBODY}"),
]  # fmt: skip


async def create(operator: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await operator.post(TENANTS, json={"slug": f"t-{uuid4().hex[:12]}", "name": "A tenant", **changes})
    assert answer.status_code == 201, answer.text
    tenant: dict[str, Any] = answer.json()
    return tenant


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_missing_or_wrong_token_is_401(
    app: Litestar, client: httpx.AsyncClient, method: str, path: str
) -> None:
    async with connect(app) as anonymous, connect(app, "wrong") as wrong:
        for asking in (anonymous, wrong, client):
            answer = await asking.request(method, path, json={} if method in {"POST", "PATCH"} else None)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("missing", ["operator_token", "operator_database_url"])
async def test_without_token_or_database_there_is_nothing(settings: Settings, registry: Registry, missing: str) -> None:
    app = create_app(replace(settings, **{missing: None}), registry)
    async with opened(app), connect(app, settings.operator_token) as client:
        for method, path in ROUTES:
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert not any(path.startswith("/operator") for path in (await client.get("/openapi.json")).json()["paths"])


async def test_a_tenant_lives_from_its_creation_to_its_deletion(
    app: Litestar, operator: httpx.AsyncClient, make_key: MakeKey
) -> None:
    tenant = await create(operator, limits={"running_jobs": 3, "pending_runs": None})
    one = f"{TENANTS}/{tenant['id']}"
    assert tenant["limits"] == {"running_jobs": 3, "pending_runs": None, "runs_per_minute": None, "payload_bytes": None}
    assert (tenant["status"], tenant["weight"], tenant["retention"]) == ("active", 1, None)
    assert (await operator.get(one)).json() == tenant
    changed = await operator.patch(
        one, json={"limits": {"running_jobs": None, "payload_bytes": 9}, "weight": 5, "retention": "30d"}
    )
    assert changed.status_code == 200
    assert changed.json()["limits"] == {
        "running_jobs": None,
        "pending_runs": None,
        "runs_per_minute": None,
        "payload_bytes": 9,
    }
    assert (changed.json()["weight"], changed.json()["retention"]) == (5, 30 * 86_400)
    assert (await operator.patch(one, json={"retention": None})).json()["retention"] is None
    async with connect(app, (await make_key(UUID(tenant["id"])))["key"]) as client:
        assert (await client.post("/v1/runs", json={"workflow": "anything", "input": {}})).status_code == 201
        assert (await operator.post(f"{one}/suspend")).json()["status"] == "suspended"
        assert (await client.get("/v1/tenant")).json()["code"] == "tenant_suspended"
        assert (await operator.post(f"{one}/resume")).json()["status"] == "active"
        assert (await client.get("/v1/tenant")).status_code == 200
        assert (await operator.delete(one)).status_code == 204
        assert (await client.get("/v1/tenant")).status_code == 401
    for method, path in (("GET", one), ("DELETE", one), ("PATCH", one), ("POST", f"{one}/suspend")):
        answer = await operator.request(method, path, json={} if method == "PATCH" else None)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_slug_that_is_taken_is_409(operator: httpx.AsyncClient) -> None:
    tenant = await create(operator)
    answer = await operator.post(TENANTS, json={"slug": tenant["slug"], "name": "Again"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "x"}, "/slug"), ({"slug": "No Such"}, "/slug"), ({"slug": "-x"}, "/slug"), ({"slug": "a", "name": ""}, "/name"),
        ({"slug": "a", "name": "x", "limits": {"colour": 1}}, "/limits/colour"),
        ({"slug": "a", "name": "x", "limits": {"running_jobs": -1}}, "/limits/running_jobs"),
        ({"slug": "a", "name": "x", "limits": {"running_jobs": 2**31}}, "/limits/running_jobs"),
        ({"slug": "a", "name": "x", "extra": 1}, "/extra"),
    ],
)  # fmt: skip
async def test_a_bad_tenant_is_422(operator: httpx.AsyncClient, body: Any, pointer: str) -> None:
    answer = await operator.post(TENANTS, json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"weight": 0}, "/weight"), ({"weight": "1"}, "/weight"), ({"retention": "soon"}, "/retention"),
        ({"retention": 0}, "/retention"), ({"retention": True}, "/retention"), ({"slug": "x"}, "/slug"),
        ({"limits": {"running_jobs": "x"}}, "/limits/running_jobs"), ({"limits": None}, "/limits"),
    ],
)  # fmt: skip
async def test_a_bad_change_is_422(operator: httpx.AsyncClient, body: Any, pointer: str) -> None:
    tenant = await create(operator)
    answer = await operator.patch(f"{TENANTS}/{tenant['id']}", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_tenants_are_listed_in_pages(operator: httpx.AsyncClient) -> None:
    made = {(await create(operator))["id"] for _ in range(3)}
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await operator.get(TENANTS, params={"limit": 2, **cursor})).json()
        found += [tenant["id"] for tenant in page["data"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert made <= set(found)
    assert len(found) == len(set(found))
