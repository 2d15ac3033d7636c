"""The console as a browser meets it: API and worker in a thread of their own, on a port, with workflows worth looking at."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx
import psycopg
from pydantic import BaseModel, Field

from kernel import Registry, StageContext, Step, Terminal, stage, workflow
from service.process import serve_api
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database, DatabaseSettings
from tests.support import hosts, waiting
from tests.support.environment import DatabaseUrls
from tests.support.processes import answers
from tests.support.system import free_port

HOSTILE = '"><script>window.pwned=1</script><img src=x onerror="window.pwned=1">{{7*7}}'


class Address(BaseModel):
    street: str
    country: Literal["DE", "FR", "GB"] = "DE"


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Order(BaseModel):
    """What a customer wants."""

    order_id: str = Field(max_length=40, description="As the shop numbers it")
    total: int = Field(ge=0, description="In cents")
    ship_to: Address | None = None
    lines: list[Line] = []
    notes: list[str] = []
    due: date | None = None
    is_gift: bool = False


class PriceConfig(BaseModel):
    vat: float = 0.2


class Priced(BaseModel):
    order_id: str
    total: int


@stage("price", name="Price the order")
async def price(ctx: StageContext[PriceConfig], order: Order) -> Priced:
    ctx.log("info", "pricing", lines=len(order.lines))
    return Priced(order_id=order.order_id, total=order.total)


@stage("stock", name="Reserve the stock", max_attempts=3)
async def stock(ctx: StageContext, priced: Priced) -> dict[str, Any]:
    return {"reserved": True}


@stage("approve", name="Approval and payment")
async def approve(ctx: StageContext, both: dict[str, Any]) -> dict[str, Any]:
    async def quote(step: Step) -> dict[str, Any]:
        return {"rate": 1.25}

    await ctx.step.run("quote", quote)
    approval = await ctx.step.wait_for_signal("approval", timeout="7d")
    return {"approval": approval}


@stage("credit", name="Check the credit")
async def credit(ctx: StageContext, priced: Priced) -> dict[str, Any]:
    if ctx.attempt == 1 and priced.total == 666:
        raise Terminal(f"no credit for {HOSTILE}")
    return {"score": 1.10}


@stage("say")
async def say(ctx: StageContext, words: dict[str, Any]) -> dict[str, Any]:
    ctx.log("warning", f"said {words}", words=words)
    if words.get("fail"):
        raise Terminal(str(words["fail"]))
    return words


orders = workflow("orders", input=Order).pipe(price).parallel(stock, credit).pipe(approve).build()
anything = workflow("anything", input=dict).pipe(say).build()
REGISTRY = Registry([orders, anything])


@dataclass(slots=True)
class Stand:
    """A running console; `url` without a slash at its end."""

    url: str
    urls: DatabaseUrls
    loop: asyncio.AbstractEventLoop
    clients: list[httpx.Client] = field(default_factory=list[httpx.Client])

    def tenant(self, name: str = "Northwind Stationery") -> UUID:
        """Make a tenant."""
        tenant_id = uuid4()
        with psycopg.connect(self.urls.direct, autocommit=True) as root:
            root.execute(
                "insert into tenantry.tenants (tenant_id, slug, name) values (%s, %s, %s)",
                (tenant_id, f"t-{tenant_id}", name),
            )
        return tenant_id

    def key(self, tenant_id: UUID, **options: Any) -> str:
        """Make a key of a tenant."""

        async def make() -> str:
            one = DatabaseSettings(self.urls.worker, pool_size=1)
            async with Database(one) as database, database.transaction(tenant_id) as tx:
                return str((await create_key(tx, **options))["key"])

        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(20)

    def client(self, key: str) -> httpx.Client:
        """Return a client of the API."""
        made = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=20, trust_env=False)
        self.clients.append(made)
        return made


@contextmanager
def standing(urls: DatabaseUrls, registry: Registry = REGISTRY) -> Iterator[Stand]:
    """Serve API and console, and execute stages, until the context ends."""
    port = free_port()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    settings = Settings(database_url=urls.api, port=port, pool_size=5)

    async def serve() -> None:
        async with hosts.running(hosts.settings(urls), registry), asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_api(replace(settings), registry, stop))

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())

    thread = threading.Thread(target=run, name="console")
    thread.start()
    stand = Stand(f"http://127.0.0.1:{port}", urls, loop)
    try:
        asyncio.run(waiting.until(lambda: answers(f"{stand.url}/readyz"), "the API is ready", seconds=30))
        yield stand
    finally:
        for client in stand.clients:
            client.close()
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


SignIn = Callable[..., Awaitable[httpx.AsyncClient]]


def token_of(page: httpx.Response) -> str:
    """Return the secret that the page's forms carry."""
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


async def sign_in_with(client: httpx.AsyncClient, key: str, target: str = "/console") -> httpx.Response:
    """Fill in the form to sign in, as a browser does."""
    page = await client.get("/console/sign-in", params={"next": target})
    return await client.post("/console/sign-in", data={"form_token": token_of(page), "key": key, "next": target})
