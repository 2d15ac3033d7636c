"""However a transaction ends, its tenant and its role end with it: on one server connection, and on a few shared by a crowd.

PgBouncer gives the next client the same server connection. It must find there what it would on a new one.
"""

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import psycopg
import pytest

from tenancy import Database, DatabaseSettings
from tenancy.database import SQL
from tenancy.sql import parse
from tests.support import waiting
from tests.support.environment import Cluster, DatabaseUrls
from tests.support.pgbouncer import PgBouncer

CLIENTS, ROUNDS, SERVERS = 30, 12, 3
LOOK = (
    "select session_user::text, current_user::text, coalesce(current_setting('tenantry.tenant_id', true), ''),"
    " pg_backend_pid()"
)
WRITE = "insert into tenantry.workflow_run_tags (tag, run_id) values (gen_random_uuid()::text, gen_random_uuid())"
NO_STATEMENT = parse("-- name: fails\nselect 1 / 0 as nothing", "here.sql")["fails"]
Client = psycopg.AsyncConnection


@dataclass(frozen=True, slots=True)
class Scene:
    """Where endings are played: the tenant, and the superuser who ends others' connections."""

    tenant: UUID
    superuser: psycopg.AsyncConnection
    lock: asyncio.Lock

    async def terminate(self, pid: int) -> None:
        async with self.lock:
            await self.superuser.execute("select pg_terminate_backend(%s, 5000)", (pid,))

    async def until(self, pid: int, state: str | None) -> None:
        """Wait until a server process sleeps (`PgSleep`), or is gone (None)."""

        async def is_so() -> bool:
            async with self.lock:
                cursor = await self.superuser.execute("select wait_event from pg_stat_activity where pid = %s", (pid,))
                return await cursor.fetchone() == (None if state is None else (state,))

        await waiting.until(is_so, f"server process {pid} is {state or 'gone'}")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a transaction finds before it has bound anything."""

    login: str
    role: str
    tenant: str
    pid: int

    @property
    def is_clean(self) -> bool:
        return (self.role, self.tenant) == (self.login, "")


async def look(client: Client) -> Seen:
    """Begin a transaction and say what is there."""
    await client.execute("begin")
    row = await (await client.execute(LOOK.encode())).fetchone()
    assert row is not None
    return Seen(*row)


async def bind(client: Client, scene: Scene) -> None:
    """Bind the transaction as every transaction of ours is bound, and write a row as the tenant."""
    await client.execute(SQL["bind"].pyformat.encode(), {"tenant": str(scene.tenant)})
    await client.execute(WRITE.encode())


async def commit(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    await client.execute("commit")


async def roll_back(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    await client.execute("rollback")


async def fail(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await client.execute("select 1 / 0")
    await client.execute("rollback")


async def commit_what_has_failed(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await client.execute("select 1 / 0")
    await client.execute("commit")


async def bind_in_a_savepoint(client: Client, scene: Scene, _pid: int) -> None:
    await client.execute("savepoint here")
    await bind(client, scene)
    await client.execute("release savepoint here")
    await client.execute("commit")


async def time_out(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    await client.execute("set local statement_timeout = '5ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        await client.execute("select pg_sleep(10)")
    await client.execute("rollback")


async def cancel(client: Client, scene: Scene, pid: int) -> None:
    """Cancel the task while the server works: the driver cancels the statement."""
    await bind(client, scene)
    work = asyncio.create_task(client.execute("select pg_sleep(10)"))
    await scene.until(pid, "PgSleep")
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled()
    await client.execute("rollback")


async def leave_politely(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    await client.close()


async def vanish(client: Client, scene: Scene, _pid: int) -> None:
    await bind(client, scene)
    _cut(client)


async def vanish_in_mid_statement(client: Client, scene: Scene, pid: int) -> None:
    await bind(client, scene)
    work = asyncio.create_task(client.execute("select pg_sleep(2)"))
    await scene.until(pid, "PgSleep")
    _cut(client)
    await asyncio.wait([work])
    assert isinstance(work.exception(), psycopg.OperationalError)


async def be_killed(client: Client, scene: Scene, pid: int) -> None:
    await bind(client, scene)
    await scene.terminate(pid)
    with pytest.raises(psycopg.OperationalError):
        await client.execute("commit")


async def idle_for_too_long(client: Client, scene: Scene, pid: int) -> None:
    await bind(client, scene)
    await client.execute("set local idle_in_transaction_session_timeout = '1ms'")
    await scene.until(pid, None)
    # What it is told depends on whether the pooler had noticed.
    with pytest.raises(psycopg.Error):
        await client.execute("commit")


def _cut(client: Client) -> None:
    with socket.socket(fileno=os.dup(client.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


Ending = Callable[[Client, Scene, int], Awaitable[None]]
# Whether the next client gets the very same server connection.
ENDINGS: Mapping[Ending, bool] = {
    commit: True,
    roll_back: True,
    fail: True,
    commit_what_has_failed: True,
    bind_in_a_savepoint: True,
    time_out: True,
    cancel: True,
    leave_politely: False,
    vanish: False,
    vanish_in_mid_statement: False,
    be_killed: False,
    idle_for_too_long: False,
}


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """A client that sends nothing but what it is told to."""
    client = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(params=["tenantry_worker", "tenantry_api"])
def login(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def scene(superuser: psycopg.AsyncConnection, tenant: UUID) -> Scene:
    return Scene(tenant, superuser, asyncio.Lock())


@pytest.fixture(scope="module")
def one_server(cluster: Cluster, pgbouncer: PgBouncer) -> Iterator[PgBouncer]:
    """A pooler with one server connection for each login."""
    assert pgbouncer.port
    pooler = PgBouncer(cluster.postgres, default_pool_size=1).start()
    yield pooler
    pooler.close()


@pytest.fixture(scope="module")
def few_servers(cluster: Cluster, pgbouncer: PgBouncer) -> Iterator[PgBouncer]:
    """A pooler with a few."""
    assert pgbouncer.port
    pooler = PgBouncer(cluster.postgres, default_pool_size=SERVERS).start()
    yield pooler
    pooler.close()


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
async def test_the_next_on_the_connection_finds_neither_tenant_nor_role(
    one_server: PgBouncer, database_urls: DatabaseUrls, scene: Scene, login: str, ending: Ending
) -> None:
    url = one_server.url(login, database_urls.database)
    async with connected(url) as first:
        before = await look(first)
        assert before == Seen(login, login, "", before.pid)
        await ending(first, scene, before.pid)
    async with connected(url) as second:
        after = await look(second)
        assert after == Seen(login, login, "", after.pid)
        assert (after.pid == before.pid) is ENDINGS[ending]
        # Nothing of what the tenant has is there to be read either.
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await second.execute("select from tenantry.workflow_run_tags")


async def test_a_crowd_on_a_few_connections_finds_no_trace_of_each_other(
    few_servers: PgBouncer, database_urls: DatabaseUrls, scene: Scene
) -> None:
    url = few_servers.url("tenantry_worker", database_urls.database)
    chance = random.Random(6)
    played: Counter[str] = Counter()
    seen: list[Seen] = []

    async def one() -> None:
        rounds = 0
        while rounds < ROUNDS:
            async with connected(url) as client:
                while rounds < ROUNDS and not client.closed:
                    ending = chance.choice(list(ENDINGS))
                    found = await look(client)
                    seen.append(found)
                    assert found.is_clean, (found, played)
                    await ending(client, scene, found.pid)
                    played[ending.__name__] += 1
                    rounds += 1
                    if not ENDINGS[ending]:
                        break

    async with asyncio.timeout(90), asyncio.TaskGroup() as crowd:
        for _ in range(CLIENTS):
            crowd.create_task(one())
    assert len(seen) == CLIENTS * ROUNDS
    assert set(played) == {ending.__name__ for ending in ENDINGS}
    # They did share: each server connection had several clients in its life.
    assert len({found.pid for found in seen}) < len(seen) / 2
    assert all(found.is_clean for found in seen)


async def test_a_crowd_of_our_own_transactions_leaves_no_trace_either(
    few_servers: PgBouncer, database_urls: DatabaseUrls, scene: Scene
) -> None:
    url = few_servers.url("tenantry_worker", database_urls.database)
    chance = random.Random(7)
    seen: list[Seen] = []

    async def work(database: Database) -> None:
        how = chance.choice(("commit", "fail", "cancel", "time out"))
        try:
            async with asyncio.timeout(0.02 if how == "time out" else None), database.transaction(scene.tenant) as tx:
                row = await tx.fetch_one(SQL["standing"])
                assert row is not None
                assert (row["tenant"], row["role"]) == (str(scene.tenant), "tenantry_tenant")
                if how == "fail":
                    await tx.execute(NO_STATEMENT)
                if how == "cancel":
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                await asyncio.sleep(10 if how == "time out" else 0)
        except (psycopg.errors.DivisionByZero, TimeoutError):
            pass

    async def watch() -> None:
        async with connected(url) as client:
            for _ in range(ROUNDS):
                seen.append(await look(client))
                await client.execute("rollback")

    async with Database(DatabaseSettings(url, pool_size=SERVERS)) as database:
        for _ in range(ROUNDS):
            workers = [asyncio.create_task(work(database)) for _ in range(CLIENTS // 3)]
            watchers = [asyncio.create_task(watch()) for _ in range(2)]
            done = await asyncio.gather(*workers, *watchers, return_exceptions=True)
            assert [one for one in done if isinstance(one, Exception)] == []
    assert len(seen) == 2 * ROUNDS * ROUNDS
    assert {(found.role, found.tenant) for found in seen} == {("tenantry_worker", "")}


async def test_the_look_bites(one_server: PgBouncer, database_urls: DatabaseUrls, scene: Scene) -> None:
    """Whoever binds for the session leaves tenant and role to the next client, and that is seen."""
    url = one_server.url("tenantry_admin", database_urls.database)
    async with connected(url) as first:
        before = await look(first)
        for name, value in (("tenantry.tenant_id", str(scene.tenant)), ("role", "tenantry_tenant")):
            await first.execute("select set_config(%s, %s, false)", (name, value))
        await first.execute("commit")
    async with connected(url) as second:
        after = await look(second)
    assert after == Seen("tenantry_admin", "tenantry_tenant", str(scene.tenant), before.pid)
    assert not after.is_clean
