"""What every answer has: problems on all paths, ids, no caching, no details of what went wrong inside."""

import json
import socket
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from litestar import Litestar

import migrations
from kernel import Registry
from service.app import create_app, opened
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database, DatabaseSettings
from tests.support import factories
from tests.support.environment import Cluster, DatabaseUrls
from tests.support.http import MakeKey, connect
from tests.support.system import missing
from tests.support.waiting import until

NOBODY = "00000000-0000-7000-8000-000000000000"
MEMBERS = {"type", "title", "status", "detail", "code", "request_id", "errors"}


def check_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    problem: dict[str, Any] = answer.json()
    assert problem.keys() == MEMBERS
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


@pytest.mark.parametrize("path", ["/", "/nothing", "/v1", "/v1/nothing", "/v2/runs", "/v1/runs/a/b/c", "/v1/%00"])
async def test_an_unknown_path_is_404(anonymous: httpx.AsyncClient, path: str) -> None:
    check_problem(await anonymous.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/runs/{NOBODY}/trace"), ("POST", "/v1/schedules"),
        ("GET", "/v1/webhooks"),
    ],
)  # fmt: skip
async def test_routes_that_are_not_there_yet_are_404(client: httpx.AsyncClient, method: str, path: str) -> None:
    check_problem(await client.request(method, path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/runs"), ("DELETE", "/v1/runs"), ("POST", "/healthz"), ("BREW", "/v1/tenant")]
)
async def test_another_method_is_405_with_allow(anonymous: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await anonymous.request(method, path)
    check_problem(answer, 405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


async def test_a_sane_request_id_is_echoed_and_another_replaced(anonymous: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/nothing", "/v1/runs"):
        assert (await anonymous.get(path, headers={"X-Request-ID": "req-1:a/b"})).headers["x-request-id"] == "req-1:a/b"
        for bad in ("", "x" * 129, "a b", "é".encode(), "a\tb"):
            found = (await anonymous.get(path, headers={"X-Request-ID": bad})).headers["x-request-id"]
            assert UUID(found)


async def test_no_server_header(anonymous: httpx.AsyncClient) -> None:
    assert "server" not in (await anonymous.get("/healthz")).headers


async def test_an_unforeseen_error_is_500_without_details(
    app: Litestar, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("select secret from somewhere")

    monkeypatch.setattr("service.http.tenant.tenant_get", broken)
    problem = check_problem(await client.get("/v1/tenant"), 500, "internal_error")
    assert "secret" not in json.dumps(problem)
    assert [record.message for record in caplog.records] == ["http.unexpected_error"]
    assert (await client.get("/v1/workflows")).status_code == 200


async def test_a_query_string_that_cannot_be_read_is_400(client: httpx.AsyncClient) -> None:
    check_problem(await client.get("/v1/runs?tag=%ff%fe"), 400, "invalid_request")


class TestDatabaseAway:
    async def test_requests_are_503_in_time_and_the_process_lives(
        self, settings: Settings, registry: Registry, tenant: UUID, make_key: MakeKey
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        away = replace(settings, database_url=f"postgresql://tenantry_api@127.0.0.1:{port}/nothing")
        await self._check_away(create_app(away, registry), (await make_key(tenant))["key"])

    async def test_a_database_that_takes_connections_but_never_answers_is_away_too(
        self, settings: Settings, registry: Registry, tenant: UUID, make_key: MakeKey
    ) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=50) as mute:
            port = mute.getsockname()[1]
            away = replace(settings, database_url=f"postgresql://tenantry_api@127.0.0.1:{port}/nothing")
            await self._check_away(create_app(away, registry), (await make_key(tenant))["key"])

    async def _check_away(self, app: Litestar, key: str) -> None:
        async with opened(app), connect(app, key) as client:
            started_at = time.monotonic()
            for method, path in (("GET", "/v1/runs"), ("POST", "/v1/runs")):
                body = {"workflow": "anything", "input": {}} if method == "POST" else None
                answer = await client.request(method, path, json=body)
                check_problem(answer, 503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
            assert time.monotonic() - started_at < 15
            check_problem(await client.get("/readyz"), 503, "unavailable")
            assert (await client.get("/healthz")).json() == {"status": "ok"}

    async def test_a_database_that_goes_away_and_comes_back(self, own_cluster: Cluster, registry: Registry) -> None:
        urls = own_cluster.create()
        app = create_app(Settings(database_url=urls.api, pool_size=3), registry)
        async with opened(app), connect(app) as client:
            assert (await client.get("/readyz")).status_code == 200
            own_cluster.postgres.kill()
            started_at = time.monotonic()
            check_problem(await client.get("/readyz"), 503, "unavailable")
            assert time.monotonic() - started_at < 15
            own_cluster.postgres.restart()
            deadline = time.monotonic() + 30
            while (await client.get("/readyz")).status_code != 200:
                assert time.monotonic() < deadline

    async def test_a_database_that_stands_still_is_away_in_time(
        self, own_cluster: Cluster, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The driver alone would wait ten seconds more, for the server to say that it has cancelled the statement."""
        pooler = own_cluster.pgbouncer or missing("PgBouncer", "pgbouncer")
        for name in ("service.http.routing.TRANSACTION_TIMEOUT_S", "service.probes.CHECK_TIMEOUT_S"):
            monkeypatch.setattr(name, 0.5)
        urls = own_cluster.create()
        async with await psycopg.AsyncConnection.connect(urls.direct, autocommit=True) as root:
            tenant = await factories.create_tenant(root)
        async with Database(DatabaseSettings(urls.admin)) as database, database.transaction(tenant) as tx:
            key = await create_key(tx)
        app = create_app(Settings(database_url=urls.api), registry)
        async with opened(app), connect(app, key["key"]) as client:
            await until(lambda: _is_back(client), "the API is ready")
            with pooler.standing_still():
                for path in ("/v1/runs", "/readyz"):
                    started_at = time.monotonic()
                    check_problem(await client.get(path), 503, "unavailable")
                    assert time.monotonic() - started_at < 5
            await until(lambda: _is_back(client), "the database is back")


async def _is_back(client: httpx.AsyncClient) -> bool:
    return (await client.get("/v1/runs")).status_code == 200


class TestSchema:
    async def test_an_unmigrated_database_says_what_to_do(
        self, empty_database_urls: DatabaseUrls, registry: Registry, tenant: UUID, make_key: MakeKey
    ) -> None:
        app = create_app(Settings(database_url=empty_database_urls.api), registry)
        async with opened(app), connect(app, (await make_key(tenant))["key"]) as client:
            for path in ("/readyz", "/v1/runs"):
                problem = check_problem(await client.get(path), 503, "unavailable")
                assert "tenantry db migrate" in problem["detail"]
            assert (await client.get("/healthz")).status_code == 200

    async def test_an_older_schema_is_not_ready_and_a_newer_one_is(
        self,
        settings: Settings,
        registry: Registry,
        superuser: psycopg.AsyncConnection,
        tenant: UUID,
        make_key: MakeKey,
    ) -> None:
        key = (await make_key(tenant))["key"]
        set_revision = "update tenantry.alembic_version set version_num = %s"
        try:
            await superuser.execute(set_revision, ("0000",))
            app = create_app(settings, registry)
            async with opened(app), connect(app, key) as client:
                for path in ("/readyz", "/v1/runs"):
                    problem = check_problem(await client.get(path), 503, "unavailable")
                    assert "tenantry db migrate" in problem["detail"]
            await superuser.execute(set_revision, ("9999",))
            app = create_app(settings, registry)
            async with opened(app), connect(app, key) as client:
                assert (await client.get("/readyz")).status_code == 200
                assert (await client.get("/v1/runs")).status_code == 200
        finally:
            await superuser.execute(set_revision, (migrations.HEAD,))
