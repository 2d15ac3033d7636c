"""The API of each module's database, spoken to as a client would, and tenants with keys."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import pytest
from litestar import Litestar
from pydantic import BaseModel, Field

from kernel import Registry, StageContext, stage, workflow
from service.app import create_app, opened
from service.settings import Settings
from tests.support.environment import DatabaseUrls
from tests.support.http import MakeKey, connect

OPERATOR_TOKEN = "operator-token-of-the-tests"


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Order(BaseModel):
    order_id: str
    lines: list[Line]


class Priced(BaseModel):
    total: int


class PriceConfig(BaseModel):
    vat: float = 0.2


@stage("price", name="Price the order")
async def price(ctx: StageContext[PriceConfig], order: Order) -> Priced:
    return Priced(total=sum(line.count for line in order.lines))


@stage("ship")
async def ship(ctx: StageContext, priced: Priced) -> dict:
    return {"shipped": priced.total}


@stage("say")
async def say(ctx: StageContext, words: dict) -> dict:
    return words


@pytest.fixture(scope="session")
def registry() -> Registry:
    orders = workflow("orders", input=Order).pipe(price).pipe(ship).build()
    anything = workflow("anything", input=dict).pipe(say).build()
    return Registry([orders, anything])


@pytest.fixture
def settings(database_urls: DatabaseUrls) -> Settings:
    return Settings(
        database_url=database_urls.api,
        operator_database_url=database_urls.admin,
        operator_token=OPERATOR_TOKEN,
        max_payload_bytes=100_000,
        pool_size=5,
    )


@pytest.fixture
async def app(settings: Settings, registry: Registry) -> AsyncIterator[Litestar]:
    created = create_app(settings, registry)
    async with opened(created):
        yield created


@pytest.fixture
async def anonymous(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app) as client:
        yield client


@pytest.fixture
async def operator(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app, OPERATOR_TOKEN) as client:
        yield client


@pytest.fixture
async def client(app: Litestar, tenant: UUID, make_key: MakeKey) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app, (await make_key(tenant))["key"]) as connected:
        yield connected


@pytest.fixture
async def other_client(app: Litestar, other_tenant: UUID, make_key: MakeKey) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app, (await make_key(other_tenant))["key"]) as connected:
        yield connected


@pytest.fixture
def order() -> dict[str, Any]:
    return {"order_id": "o-1", "lines": [{"sku": "a", "count": 2}]}


@pytest.fixture
def without_operator(settings: Settings) -> Settings:
    return replace(settings, operator_token=None)
