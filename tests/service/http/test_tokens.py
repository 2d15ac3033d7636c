"""JWTs: let in with a valid signature, issuer, audience, time and tenant; every refusal is the same 401."""

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID, uuid4

import httpx
import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from litestar import Litestar

from kernel import Registry
from service.app import create_app, opened
from service.settings import Settings
from tests.support import factories
from tests.support.http import connect

ISSUER, AUDIENCE = "https://issuer.test", "tenantry"


class Issuer:
    """Publishes one key and signs with it; counts how often it was asked."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.asked = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                public = {**json.loads(ECAlgorithm.to_jwk(issuer.key.public_key())), "kid": "k1", "use": "sig"}
                body = json.dumps({"keys": [public]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def sign(self, tenant: object, *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        body = {
            "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "tenant_id": str(tenant), "scope": "runs:read runs:write",
            **claims,
        }  # fmt: skip
        kept = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(kept, self.key, algorithm="ES256", headers={"kid": "k1", **(headers or {})})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    started = Issuer()
    yield started
    started.close()


@pytest.fixture
async def app(settings: Settings, registry: Registry, issuer: Issuer) -> AsyncIterator[Litestar]:
    with_tokens = replace(settings, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_jwks_url=issuer.url)
    created = create_app(with_tokens, registry)
    async with opened(created):
        yield created


async def get(app: Litestar, token: str, path: str = "/v1/runs") -> httpx.Response:
    async with connect(app, token) as client:
        return await client.get(path)


async def test_a_valid_token_has_its_scopes_in_its_tenant(app: Litestar, issuer: Issuer, tenant: UUID) -> None:
    token = issuer.sign(tenant)
    assert (await get(app, token)).status_code == 200
    assert (await get(app, token, "/v1/tenant")).json()["id"] == str(tenant)
    assert (await get(app, token, "/v1/api-keys")).json()["code"] == "forbidden"
    assert issuer.asked == 1


async def test_every_refusal_is_the_same_401(app: Litestar, issuer: Issuer, tenant: UUID) -> None:
    stranger = Issuer()
    stranger.close()
    refused = [
        stranger.sign(tenant),
        issuer.sign(tenant, exp=time.time() - 60),
        issuer.sign(tenant, exp=None),
        issuer.sign(tenant, nbf=time.time() + 3600),
        issuer.sign(tenant, iss="https://else.test"),
        issuer.sign(tenant, aud="else"),
        issuer.sign(uuid4()),
        issuer.sign("no-uuid"),
        issuer.sign(tenant, tenant_id=None),
        issuer.sign(tenant, tenant_id=7),
        issuer.sign(tenant, scope=["runs:read"]),
        issuer.sign(tenant, headers={"kid": "k2"}),
        jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "tenant_id": str(tenant)}, None, algorithm="none"),
        jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "tenant_id": str(tenant)}, "s" * 32, algorithm="HS256", headers={"kid": "k1"}),
        issuer.sign(tenant)[:-4] + "AAAA",
        "a.b.c",
        "x" * 20_000,
    ]  # fmt: skip
    for token in refused:
        answer = await get(app, token)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    # Unknown key ids did not make us ask the issuer over and over.
    assert issuer.asked == 1


async def test_a_suspended_tenant_is_told_so(
    app: Litestar, issuer: Issuer, tenant: UUID, superuser: psycopg.AsyncConnection
) -> None:
    await factories.set_tenant_status(superuser, tenant, "suspended")
    assert (await get(app, issuer.sign(tenant))).json()["code"] == "tenant_suspended"


async def test_without_configuration_no_token_is_taken(
    settings: Settings, registry: Registry, issuer: Issuer, tenant: UUID
) -> None:
    app = create_app(settings, registry)
    async with opened(app):
        assert (await get(app, issuer.sign(tenant))).status_code == 401
    assert issuer.asked == 0
