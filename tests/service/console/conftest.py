"""The console as a client without a browser meets it: cookies and forms by hand."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest
from litestar import Litestar

from kernel import Registry
from service.app import create_app, opened
from service.console.sessions import NAME, open_session
from service.settings import Settings
from tenancy import Database
from tests.support.console import REGISTRY, SignIn
from tests.support.environment import DatabaseUrls
from tests.support.http import MakeKey, connect


@pytest.fixture(scope="session")
def registry() -> Registry:
    return REGISTRY


@pytest.fixture
async def app(database_urls: DatabaseUrls, registry: Registry) -> AsyncIterator[Litestar]:
    created = create_app(Settings(database_url=database_urls.api, pool_size=5, max_payload_bytes=100_000), registry)
    async with opened(created):
        yield created


@pytest.fixture
async def anonymous(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app) as client:
        yield client


@pytest.fixture
async def api(app: Litestar, tenant: UUID, make_key: MakeKey) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API with every scope."""
    async with connect(app, (await make_key(tenant))["key"]) as client:
        yield client


@pytest.fixture
async def signed_in(app: Litestar, database: Database, tenant: UUID, make_key: MakeKey) -> AsyncIterator[SignIn]:
    """Return a client that is signed in with a key of the tenant's; `scopes` and other options are the key's."""
    clients: list[httpx.AsyncClient] = []

    async def enter(of: UUID = tenant, **options: Any) -> httpx.AsyncClient:
        client = connect(app)
        clients.append(client)
        key = await make_key(of, **options)
        async with database.transaction(of) as tx:
            session = await open_session(tx, key["id"])
        client.cookies.set(NAME, session.cookie_value, domain="api.test")
        return client

    yield enter
    for client in clients:
        await client.aclose()
