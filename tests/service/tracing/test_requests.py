"""The span of a request: what it is part of, and what a client's own trace has to do with it."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from litestar import Litestar
from opentelemetry.trace import SpanKind, StatusCode

from service import keys
from service.app import create_app, opened
from service.auth import Credential
from service.http.tracing import Acquaintances
from service.sampling import SHARE_BURST, ShareSampler
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database
from tests.support.environment import DatabaseUrls
from tests.support.http import connect
from tests.support.tracing import Tracing, tracing
from tests.support.workflows import REGISTRY

THEIRS = "0af7651916cd43dd8448eb211c80319c"
INBOUND = {"traceparent": f"00-{THEIRS}-b7ad6b7169203331-01", "tracestate": "vendor=1"}
BODY: dict[str, Any] = {"workflow": "single", "input": {"n": 1}}


@pytest.fixture
async def key(database: Database, tenant: UUID) -> str:
    async with database.transaction(tenant) as tx:
        return str((await create_key(tx))["key"])


@pytest.fixture
def own_settings(database_urls: DatabaseUrls) -> Settings:
    return Settings(database_url=database_urls.api)


@pytest.fixture
async def app(traced: Tracing, own_settings: Settings) -> AsyncIterator[Litestar]:
    created = create_app(own_settings, REGISTRY)
    async with opened(created):
        yield created


@pytest.fixture
async def client(app: Litestar, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app, key) as connected:
        yield connected


async def test_a_clients_trace_is_linked_and_decides_nothing(
    traced: Tracing, client: httpx.AsyncClient, app: Litestar
) -> None:
    run = (await client.post("/v1/runs", json=BODY, headers=INBOUND)).json()
    request, create = traced.one("POST /v1/runs"), traced.one("run.create single")
    assert (request.kind, request.parent) == (SpanKind.SERVER, None)
    assert [f"{link.context.trace_id:032x}" for link in request.links] == [THEIRS]
    assert request.context is not None
    assert create.parent is not None
    assert create.parent.span_id == request.context.span_id
    assert run["trace_id"] == f"{request.context.trace_id:032x}" != THEIRS
    assert (request.attributes or {})["http.response.status_code"] == 201
    await traced.telemetry.store.flush(app.state.api.database)
    shown = (await client.get(f"/v1/runs/{run['id']}/trace")).json()["data"]
    assert [(span["name"], span["kind"]) for span in shown] == [
        ("POST /v1/runs", "SERVER"), ("run.create single", "PRODUCER"),
    ]  # fmt: skip
    assert shown[0]["links"] == [{"trace_id": THEIRS, "span_id": "b7ad6b7169203331", "attributes": {}}]
    assert shown[1]["parent_span_id"] == shown[0]["span_id"]


class TestTrusted:
    @pytest.fixture
    def own_settings(self, database_urls: DatabaseUrls) -> Settings:
        return replace(Settings(database_url=database_urls.api), trust_traceparent=True)

    async def test_a_trusted_clients_trace_goes_on(self, client: httpx.AsyncClient, traced: Tracing) -> None:
        run = (await client.post("/v1/runs", json=BODY, headers=INBOUND)).json()
        assert run["trace_id"] == THEIRS
        assert traced.one("POST /v1/runs").parent is not None


@pytest.mark.parametrize(
    "traceparent",
    ["", "00", "00-0-0-0", f"00-{'0' * 32}-{'0' * 16}-01", "ff-" + INBOUND["traceparent"][3:], "x" * 9000],
)
async def test_a_malformed_traceparent_is_no_trace(
    traced: Tracing, client: httpx.AsyncClient, traceparent: str
) -> None:
    answered = await client.post("/v1/runs", json=BODY, headers={"traceparent": traceparent})
    assert answered.status_code == 201
    assert list(traced.one("POST /v1/runs").links) == []


async def test_what_is_refused_is_no_error_of_ours_and_nobodys_span(traced: Tracing, client: httpx.AsyncClient) -> None:
    await client.post("/v1/runs", json={"workflow": "none", "input": {}})
    client.headers["Authorization"] = client.headers["Authorization"][:-1] + "#"
    assert (await client.post("/v1/runs", json=BODY)).status_code == 401
    assert {span.status.status_code for span in traced.spans()} == {StatusCode.UNSET}
    assert "run.create single" not in traced.names()


class TestShares:
    @pytest.fixture
    def traced(self) -> Iterator[Tracing]:
        with tracing(ShareSampler()) as opened:
            yield opened

    async def test_whoever_looks_at_runs_often_has_their_creation_traced_all_the_same(
        self, client: httpx.AsyncClient, traced: Tracing
    ) -> None:
        """A share is fifty requests at once, and five more a second."""
        run = (await client.post("/v1/runs", json=BODY)).json()
        for _ in range(80):
            assert (await client.get(f"/v1/runs/{run['id']}")).status_code == 200
        looks = len(traced.named("GET /v1/runs/{run_id}"))
        assert SHARE_BURST <= looks < 80
        await client.post("/v1/runs", json=BODY)
        assert len(traced.named("run.create single")) == 2

    async def test_whoever_makes_keys_up_uses_up_no_share_of_the_tenant_that_they_name(
        self, client: httpx.AsyncClient, traced: Tracing, tenant: UUID
    ) -> None:
        assert (await client.get("/v1/tenant")).status_code == 200
        for _ in range(80):
            made_up = {"Authorization": f"Bearer {keys.mint(tenant, uuid4()).text}"}
            assert (await client.post("/v1/runs", json=BODY, headers=made_up)).status_code == 401
        assert SHARE_BURST <= len(traced.named("POST /v1/runs")) < 80
        await client.post("/v1/runs", json=BODY)
        assert len(traced.named("run.create single")) == 1

    def test_no_more_than_so_many_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.http.tracing.MAX_ACQUAINTANCES", 2)
        acquaintances, owner = Acquaintances(), uuid4()
        first, second, third = (Credential(owner, keys.mint(owner, uuid4())) for _ in range(3))
        for credential in (first, second, first, third):
            acquaintances.meet(credential)
        shares = [acquaintances.share_of(each, "GET /x") for each in (first, second, third, Credential(owner))]
        assert shares == [f"{owner} GET /x", "strangers GET /x", f"{owner} GET /x", f"{owner} GET /x"]
