"""Servers that stop, die or come back: what a transaction tells, and that it recovers by itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import psycopg
import pytest

from tenancy import (
    CommitOutcomeUnknownError,
    Database,
    DatabaseSettings,
    DatabaseUnavailableError,
    Statements,
    TenantTransaction,
)
from tenancy.owned import OPENING_S
from tests.support import factories
from tests.support.environment import Cluster, DatabaseUrls
from tests.support.pgbouncer import program
from tests.support.postgres import Postgres
from tests.support.system import missing
from tests.support.waiting import until

POOL_TIMEOUT_S = 3.0
RECOVERY_S = 12.0


@pytest.fixture(scope="module")
def apart() -> Iterator[Cluster]:
    """A cluster of the module's own, to stop and restart."""
    if program() is None:
        missing("PgBouncer", "pgbouncer")
    started = Cluster()
    yield started
    started.close()


@pytest.fixture(scope="module")
def urls(apart: Cluster) -> DatabaseUrls:
    return apart.create()


@pytest.fixture(params=["pooled", "straight"])
def url(request: pytest.FixtureRequest, urls: DatabaseUrls) -> str:
    return urls.worker if request.param == "pooled" else urls.straight("tenantry_worker")


@pytest.fixture
async def root(urls: DatabaseUrls) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(urls.direct, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def tenant(urls: DatabaseUrls) -> UUID:
    async with await psycopg.AsyncConnection.connect(urls.direct, autocommit=True) as connection:
        return await factories.create_tenant(connection)


@pytest.fixture
async def away(url: str) -> AsyncIterator[Database]:
    settings = DatabaseSettings(url, pool_size=5, pool_timeout=POOL_TIMEOUT_S, connect_timeout=2)
    async with Database(settings) as database:
        yield database


async def _warm(database: Database, tenant: UUID, sql: Statements) -> None:
    """Fill the pool, so that the outage leaves five dead connections in it."""
    all_there = asyncio.Barrier(5)

    async def one() -> None:
        async with database.transaction(tenant) as tx:
            await tx.fetch_all(sql["who"])
            await all_there.wait()

    await asyncio.gather(*(one() for _ in range(5)))


async def _tags(database: Database, tenant: UUID, sql: Statements) -> list[str]:
    async with database.transaction(tenant) as tx:
        return [row["tag"] for row in await tx.fetch_all(sql["tags"])]


async def _recover(database: Database, tenant: UUID, sql: Statements) -> None:
    deadline = time.monotonic() + RECOVERY_S
    while True:
        try:
            await _tags(database, tenant, sql)
        except DatabaseUnavailableError:
            if time.monotonic() > deadline:
                raise
        else:
            return


async def test_a_stopped_server_is_told_in_time_and_its_return_noticed(
    away: Database, apart: Cluster, tenant: UUID, sql: Statements
) -> None:
    await _warm(away, tenant, sql)
    apart.postgres.stop()
    try:
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailableError) as told:
            await _tags(away, tenant, sql)
        assert not isinstance(told.value, CommitOutcomeUnknownError)
        # A pooler keeps its clients waiting in silence while it has no server.
        assert time.monotonic() - began < POOL_TIMEOUT_S + OPENING_S + 3
    finally:
        apart.postgres.start()
    await _recover(away, tenant, sql)
    await _warm(away, tenant, sql)


async def test_a_restart_between_transactions_is_not_noticed(
    away: Database, apart: Cluster, urls: DatabaseUrls, tenant: UUID, sql: Statements
) -> None:
    await _warm(away, tenant, sql)
    assert apart.pgbouncer is not None
    if away.settings.database_url == urls.worker:
        apart.pgbouncer.restart()
    else:
        apart.postgres.restart()
    await _tags(away, tenant, sql)


async def test_a_pooler_that_stopped_is_told_and_its_return_noticed(
    apart: Cluster, urls: DatabaseUrls, tenant: UUID, sql: Statements
) -> None:
    assert apart.pgbouncer is not None
    settings = DatabaseSettings(urls.worker, pool_timeout=POOL_TIMEOUT_S, connect_timeout=2)
    async with Database(settings) as database:
        await _warm(database, tenant, sql)
        apart.pgbouncer.stop()
        try:
            for held in (False, True):
                began = time.monotonic()
                with pytest.raises(DatabaseUnavailableError) as told:  # noqa: PT012 (the transaction is the statement)
                    async with database.transaction(tenant) as tx:
                        if held:
                            await tx.send([(sql["add"], {"tag": "a", "run_id": uuid4()})])
                        else:
                            await tx.fetch_all(sql["tags"])
                assert time.monotonic() - began < POOL_TIMEOUT_S + 3
            # No connection, nothing sent: nothing about the outcome is unknown.
            assert not isinstance(told.value, CommitOutcomeUnknownError)
        finally:
            apart.pgbouncer.start()
        await _recover(database, tenant, sql)


async def test_a_session_killed_half_way_is_told_and_keeps_nothing(
    away: Database, root: psycopg.AsyncConnection, tenant: UUID, sql: Statements
) -> None:
    with pytest.raises(DatabaseUnavailableError) as told:  # noqa: PT012 (the transaction is the statement)
        async with away.transaction(tenant) as tx:
            row = await tx.fetch_one(sql["who"])
            assert row is not None
            await tx.execute(sql["add"], tag="a", run_id=uuid4())
            await root.execute("select pg_terminate_backend(%s, 5000)", (row["pid"],))
            await tx.execute(sql["add"], tag="b", run_id=uuid4())
    assert not isinstance(told.value, CommitOutcomeUnknownError)
    assert await _tags(away, tenant, sql) == []


async def test_a_session_killed_before_commit_leaves_the_outcome_unknown(
    away: Database, root: psycopg.AsyncConnection, tenant: UUID, sql: Statements
) -> None:
    with pytest.raises(CommitOutcomeUnknownError):  # noqa: PT012 (the transaction is the statement)
        async with away.transaction(tenant) as tx:
            row = await tx.fetch_one(sql["who"])
            assert row is not None
            await tx.execute(sql["add"], tag="a", run_id=uuid4())
            await root.execute("select pg_terminate_backend(%s, 5000)", (row["pid"],))
    assert await _tags(away, tenant, sql) == []


async def _end_idle(tx: TenantTransaction, root: psycopg.AsyncConnection, sql: Statements) -> None:
    """Have the server end the session by itself: its last word, 25P03, is no OperationalError of the driver's."""
    row = await tx.fetch_one(sql["who"])
    assert row is not None
    await tx.execute(sql["add"], tag="a", run_id=uuid4())
    await tx.execute(sql["leave_idle"], timeout="50ms")

    async def is_gone() -> bool:
        cursor = await root.execute("select from pg_stat_activity where pid = %s", (row["pid"],))
        return await cursor.fetchone() is None

    await until(is_gone, "the server ended the session")


async def test_a_session_that_the_server_ended_half_way_is_told_and_keeps_nothing(
    away: Database, root: psycopg.AsyncConnection, tenant: UUID, sql: Statements
) -> None:
    with pytest.raises(DatabaseUnavailableError) as told:  # noqa: PT012 (the transaction is the statement)
        async with away.transaction(tenant) as tx:
            await _end_idle(tx, root, sql)
            await tx.fetch_all(sql["tags"])
    assert not isinstance(told.value, CommitOutcomeUnknownError)
    assert await _tags(away, tenant, sql) == []


async def test_a_session_that_the_server_ended_before_commit_leaves_the_outcome_unknown(
    away: Database, root: psycopg.AsyncConnection, tenant: UUID, sql: Statements
) -> None:
    with pytest.raises(CommitOutcomeUnknownError):
        async with away.transaction(tenant) as tx:
            await _end_idle(tx, root, sql)
    assert await _tags(away, tenant, sql) == []


async def test_a_session_killed_in_commit_leaves_the_outcome_unknown(
    away: Database, root: psycopg.AsyncConnection, tenant: UUID, sql: Statements
) -> None:
    await root.execute(
        "create or replace function public.linger() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(30); return null; end $$"
    )
    await root.execute(
        "create constraint trigger linger after insert on tenantry.workflow_run_tags"
        " deferrable initially deferred for each row execute function public.linger()"
    )
    try:
        pids: list[Any] = []

        async def work() -> None:
            async with away.transaction(tenant) as tx:
                row = await tx.fetch_one(sql["who"])
                assert row is not None
                await tx.execute(sql["add"], tag="a", run_id=uuid4())
                pids.append(row["pid"])

        async with asyncio.timeout(20):
            task = asyncio.create_task(work())
            while True:
                cursor = await root.execute(
                    "select pid from pg_stat_activity where wait_event = 'PgSleep' and query ilike 'commit%'"
                )
                if (found := await cursor.fetchone()) is not None:
                    break
                await asyncio.sleep(0.02)
            assert [found[0]] == pids
            await root.execute("select pg_terminate_backend(%s, 5000)", found)
            with pytest.raises(CommitOutcomeUnknownError):
                await task
    finally:
        await root.execute("drop trigger linger on tenantry.workflow_run_tags")
    assert await _tags(away, tenant, sql) == []


async def test_a_pool_that_is_used_up_is_told_in_time(urls: DatabaseUrls, tenant: UUID, sql: Statements) -> None:
    settings = DatabaseSettings(urls.worker, pool_size=1, pool_timeout=0.3)
    async with Database(settings) as database, database.transaction(tenant) as tx:
        await tx.fetch_all(sql["who"])
        with pytest.raises(DatabaseUnavailableError):
            await _tags(database, tenant, sql)


async def test_a_wrong_address_is_told(tenant: UUID, sql: Statements) -> None:
    settings = DatabaseSettings("postgresql://tenantry_worker@127.0.0.1:1/none", pool_timeout=1)
    async with Database(settings) as database:
        with pytest.raises(DatabaseUnavailableError):
            await _tags(database, tenant, sql)


@pytest.fixture(scope="module")
def locked() -> Iterator[Postgres]:
    """A server that asks `tenantry_api` for its password."""
    server = Postgres().start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("create role tenantry_api login")
    (server._data / "pg_hba.conf").write_text(
        "host all tenantry_api 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
    )
    server.restart()
    yield server
    server.close()


@pytest.mark.parametrize("password", ["plain", "p@ss/w:o?r#d", "100%", "a b+c&d=é\\'\"[]"])
async def test_a_password_may_hold_any_character(locked: Postgres, password: str) -> None:
    with psycopg.connect(locked.url(), autocommit=True, cursor_factory=psycopg.ClientCursor) as root:
        root.execute("alter role tenantry_api password %s", (password,))
    for given, is_right in ((password, True), ("wrong", False)):
        url = locked.url("tenantry_api").replace("tenantry_api@", f"tenantry_api:{quote(given, safe='')}@")
        async with Database(DatabaseSettings(url, pool_timeout=2)) as database:
            if is_right:
                assert await database.schema_revision() is None
            else:
                with pytest.raises(DatabaseUnavailableError):
                    await database.schema_revision()
