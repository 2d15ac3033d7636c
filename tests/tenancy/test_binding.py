"""`bind` and `adopt` on every connection a caller may bring, and what they refuse."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import tenancy
from tenancy import Statements
from tenancy.pools import sqlalchemy_url
from tests.support.environment import DatabaseUrls

NO_CACHE = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
ROLES = """
do $$ begin
  create role app login inherit;
  create role app_wide login inherit;
  create role app_bypass login bypassrls;
  create role app_owner login inherit;
exception when duplicate_object then null;
end $$;
grant tenantry_tenant to app, app_wide, app_bypass;
grant tenantry_scheduler to app_wide;
grant tenantry_owner to app_owner
"""
Opener = Callable[[str], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def _engine_connection(url: str, driver: Any, **options: Any) -> AsyncIterator[Any]:
    arguments = NO_CACHE if driver == "asyncpg" else {"prepare_threshold": None}
    engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool, connect_args=arguments, **options)
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def _session(url: str, driver: Any) -> AsyncIterator[AsyncSession]:
    async with _engine_connection(url, driver) as connection, AsyncSession(bind=connection) as session:
        yield session


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Any]:
    connection = await psycopg.AsyncConnection.connect(url, prepare_threshold=None)
    try:
        yield connection
    finally:
        await connection.close()


OPENERS: dict[str, Opener] = {
    "sqlalchemy-asyncpg": lambda url: _engine_connection(url, "asyncpg"),
    "sqlalchemy-psycopg": lambda url: _engine_connection(url, "psycopg"),
    "session-asyncpg": lambda url: _session(url, "asyncpg"),
    "session-psycopg": lambda url: _session(url, "psycopg"),
    "asyncpg": _asyncpg,
    "psycopg": _psycopg,
}


@pytest.fixture(params=list(OPENERS))
def opener(request: pytest.FixtureRequest) -> Opener:
    return OPENERS[request.param]


@pytest.fixture
async def app_url(database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection) -> Callable[[str], str]:
    """Address of the module's database as one of the callers' roles."""
    await superuser.execute(ROLES)
    return database_urls.straight


@asynccontextmanager
async def _open(opener: Opener, url: str) -> AsyncIterator[Any]:
    async with opener(url) as connection:
        yield connection


async def test_bind_makes_the_callers_transaction_the_tenants(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID, other_tenant: UUID, sql: Statements
) -> None:
    run_id = uuid4()
    async with _open(opener, app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        assert tx.tenant_id == tenant
        row = await tx.fetch_one(sql["who"])
        assert row is not None
        assert (row["role"], row["tenant"], row["rest"], row["text"]) == ("app", str(tenant), 2, "a%:b::c")
        assert await tx.execute(sql["add"], tag="a", run_id=run_id) == 1
        await tx.send([(sql["add"], {"tag": "b", "run_id": run_id})])
        assert [row["tag"] for row in await tx.fetch_all(sql["tags"])] == ["a", "b"]
        assert [len(rows) for rows in await tx.fetch_batch([(sql["tags"], {}), (sql["who"], {})])] == [2, 1]
        types = await tx.fetch_one(sql["types"], items="[1.0]")
        assert types is not None
        assert (type(types["id"]), type(types["ids"][0]), types["items"]) == (UUID, UUID, "[1.0]")
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(tx.execute(sql["add"], tag=f"many {number}", run_id=run_id))
        assert (await tenancy.bind(connection, tenant)).tenant_id == tenant
        assert (await tenancy.adopt(connection, tenant)).tenant_id == tenant
        for again in (tenancy.bind, tenancy.adopt):
            with pytest.raises(tenancy.TenantMismatchError):
                await again(connection, other_tenant)
    # Nobody committed: the caller's rollback took everything back.
    async with _open(opener, app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        assert await tx.fetch_all(sql["tags"]) == []


async def test_adopt_asks_for_a_bound_tenant_and_binds_none(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID
) -> None:
    async with _open(opener, app_url("app")) as connection:
        for _ in range(2):
            with pytest.raises(tenancy.TenantMismatchError):
                await tenancy.adopt(connection, tenant)


@pytest.mark.parametrize(
    ("role", "why"),
    [
        ("postgres", "superuser"),
        ("app_bypass", "BYPASSRLS"),
        ("app_owner", "owner"),
        ("app_wide", "tenantry_scheduler"),
    ],
)
async def test_roles_that_are_not_isolated_are_refused(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID, role: str, why: str
) -> None:
    async with _open(opener, app_url(role)) as connection:
        for way in (tenancy.bind, tenancy.adopt):
            with pytest.raises(tenancy.UnsafeRoleError, match=why) as refused:
                await way(connection, tenant)
            assert role in str(refused.value)


@pytest.mark.parametrize("wrong", [None, 7, "no uuid", "", b"x", [1]])
async def test_what_is_no_uuid_is_refused(opener: Opener, app_url: Callable[[str], str], wrong: Any) -> None:
    async with _open(opener, app_url("app")) as connection:
        for way in (tenancy.bind, tenancy.adopt):
            with pytest.raises(ValueError, match=r".+"):
                await way(connection, wrong)


@pytest.mark.parametrize("way", [tenancy.bind, tenancy.adopt])
async def test_asyncpg_without_a_transaction_is_refused(app_url: Callable[[str], str], tenant: UUID, way: Any) -> None:
    connection = await asyncpg.connect(app_url("app"))
    with pytest.raises(tenancy.NoTransactionError):
        await way(connection, tenant)
    await connection.close()
    with pytest.raises(tenancy.NoTransactionError):
        await way(connection, tenant)


@pytest.mark.parametrize("way", [tenancy.bind, tenancy.adopt])
async def test_psycopg_in_autocommit_is_refused_unless_a_transaction_is_open(
    app_url: Callable[[str], str], tenant: UUID, way: Any
) -> None:
    connection = await psycopg.AsyncConnection.connect(app_url("app"), autocommit=True)
    with pytest.raises(tenancy.NoTransactionError):
        await way(connection, tenant)
    async with connection.transaction():
        await tenancy.bind(connection, tenant)
        await tenancy.adopt(connection, tenant)
    await connection.close()
    with pytest.raises(tenancy.NoTransactionError):
        await way(connection, tenant)


@pytest.mark.parametrize("way", [tenancy.bind, tenancy.adopt])
@pytest.mark.parametrize("sqlalchemy_driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_in_autocommit_is_refused(
    app_url: Callable[[str], str], tenant: UUID, way: Any, sqlalchemy_driver: str
) -> None:
    async with _engine_connection(app_url("app"), sqlalchemy_driver, isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(tenancy.NoTransactionError):
            await way(connection, tenant)
    async with _engine_connection(app_url("app"), sqlalchemy_driver) as connection:
        by_option = await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(tenancy.NoTransactionError):
            await way(by_option, tenant)


async def test_binding_ends_with_the_transaction(app_url: Callable[[str], str], tenant: UUID) -> None:
    for name in ("sqlalchemy-asyncpg", "sqlalchemy-psycopg"):
        async with _open(OPENERS[name], app_url("app")) as connection:
            await tenancy.bind(connection, tenant)
            await connection.commit()
            with pytest.raises(tenancy.TenantMismatchError):
                await tenancy.adopt(connection, tenant)
            # The caller's own statements go on as they were.
            assert (await connection.execute(text("select 1"))).scalar() == 1


async def test_a_savepoint_that_is_rolled_back_takes_its_binding_along(
    app_url: Callable[[str], str], tenant: UUID
) -> None:
    async with _psycopg(app_url("app")) as connection:
        with pytest.raises(LookupError):  # noqa: PT012 (the savepoint is the statement)
            async with connection.transaction(), connection.transaction():
                await tenancy.bind(connection, tenant)
                raise LookupError
        with pytest.raises(tenancy.TenantMismatchError):
            await tenancy.adopt(connection, tenant)


async def test_another_connection_is_a_type_error(tenant: UUID) -> None:
    with pytest.raises(TypeError):
        await tenancy.bind(object(), tenant)  # type: ignore[arg-type]


async def test_serialisation_failures_pass_untouched(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID, sql: Statements, failing: None
) -> None:
    async with _open(opener, app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        with pytest.raises(Exception, match="as asked") as raised:
            await tx.fetch_all(sql["raise_state"], state="40001")
        error = getattr(raised.value, "orig", raised.value)
        assert getattr(error, "sqlstate", None) == "40001"
