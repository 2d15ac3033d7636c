"""`bind` and `adopt` on every connection a caller may bring, and what they refuse."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

import tenancy
from tenancy import Statements
from tenancy.pools import sqlalchemy_url
from tests.support.callers import ROLES, SHAPES, STREAMING, Shape, sqlalchemy_shape
from tests.support.environment import DatabaseUrls

Opener = Callable[[str], AbstractAsyncContextManager[Any]]


def _uncommitted(shape: Shape) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        async with shape(url) as caller:
            await caller.begin()
            yield caller.connection

    return opened


OPENERS = {name: _uncommitted(shape) for name, shape in SHAPES.items()}


@pytest.fixture(params=list(OPENERS))
def opener(request: pytest.FixtureRequest) -> Opener:
    return OPENERS[request.param]


@pytest.fixture
async def app_url(database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection) -> Callable[[str], str]:
    """Address of the module's database as one of the callers' roles."""
    await superuser.execute(ROLES)
    return database_urls.straight


async def test_bind_makes_the_callers_transaction_the_tenants(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID, other_tenant: UUID, sql: Statements
) -> None:
    run_id = uuid4()
    async with opener(app_url("app")) as connection:
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
    async with opener(app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        assert await tx.fetch_all(sql["tags"]) == []


async def test_adopt_asks_for_a_bound_tenant_and_binds_none(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID
) -> None:
    async with opener(app_url("app")) as connection:
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
        ("app_stranger", "no inheriting member"),
        ("app_heirless", "no inheriting member"),
    ],
)
async def test_roles_that_are_not_isolated_are_refused(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID, role: str, why: str
) -> None:
    async with opener(app_url(role)) as connection:
        for way in (tenancy.bind, tenancy.adopt):
            with pytest.raises(tenancy.UnsafeRoleError, match=why) as refused:
                await way(connection, tenant)
            assert role in str(refused.value)


@pytest.mark.parametrize("wrong", [None, 7, "no uuid", "", b"x", [1]])
async def test_what_is_no_uuid_is_refused(opener: Opener, app_url: Callable[[str], str], wrong: Any) -> None:
    async with opener(app_url("app")) as connection:
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
    shape = sqlalchemy_shape(sqlalchemy_driver, isolation_level="AUTOCOMMIT")
    async with _uncommitted(shape)(app_url("app")) as connection:
        with pytest.raises(tenancy.NoTransactionError):
            await way(connection, tenant)
    async with OPENERS[f"sqlalchemy-{sqlalchemy_driver}"](app_url("app")) as connection:
        by_option = await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(tenancy.NoTransactionError):
            await way(by_option, tenant)


async def test_binding_ends_with_the_transaction(app_url: Callable[[str], str], tenant: UUID) -> None:
    for name in ("sqlalchemy-asyncpg", "sqlalchemy-psycopg"):
        async with OPENERS[name](app_url("app")) as connection:
            await tenancy.bind(connection, tenant)
            await connection.commit()
            with pytest.raises(tenancy.TenantMismatchError):
                await tenancy.adopt(connection, tenant)
            # The caller's own statements go on as they were.
            assert (await connection.execute(text("select 1"))).scalar() == 1


async def test_a_savepoint_that_is_rolled_back_takes_its_binding_along(
    app_url: Callable[[str], str], tenant: UUID
) -> None:
    async with OPENERS["psycopg"](app_url("app")) as connection:
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
    async with opener(app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        with pytest.raises(Exception, match="as asked") as raised:
            await tx.fetch_all(sql["raise_state"], state="40001")
        error = getattr(raised.value, "orig", raised.value)
        assert getattr(error, "sqlstate", None) == "40001"


async def test_an_aborted_transaction_is_told_as_such(
    opener: Opener, app_url: Callable[[str], str], tenant: UUID, sql: Statements
) -> None:
    async with opener(app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        with pytest.raises(tenancy.StatementFailedError) as refused:
            await tx.fetch_all(sql["divide"], by=0)
        assert refused.value.sqlstate == "22012"
        for way in (tenancy.bind, tenancy.adopt):
            with pytest.raises(tenancy.TransactionAbortedError):
                await way(connection, tenant)
        with pytest.raises(tenancy.TransactionAbortedError):
            await tx.fetch_all(sql["who"])


@pytest.mark.parametrize("name", SHAPES)
async def test_a_setting_that_names_no_tenant_is_no_reason_to_abort(
    name: str, app_url: Callable[[str], str], tenant: UUID
) -> None:
    async with SHAPES[name](app_url("app")) as caller:
        await caller.begin()
        await caller.run("set local tenantry.tenant_id = 'nonsense'")
        for way in (tenancy.bind, tenancy.adopt):
            with pytest.raises(tenancy.TenantMismatchError, match="no UUID"):
                await way(caller.connection, tenant)
        await caller.run("set local tenantry.tenant_id = ''")
        await tenancy.bind(caller.connection, tenant)


@pytest.fixture
async def named_by_the_product(superuser: psycopg.AsyncConnection) -> AsyncIterator[None]:
    """Let the product name its tenants itself, and the engine's processes in their way."""
    name = (
        "create or replace function tenantry.current_tenant_id() returns uuid language sql stable parallel safe return"
    )
    ours = "nullif(current_setting('tenantry.tenant_id', true), '')"
    theirs = "nullif(current_setting('shop.tenant', true), '')"
    await superuser.execute(f"{name} (case when {theirs} <> '' then {theirs} else {ours} end)::uuid".encode())
    yield
    await superuser.execute(f"{name} {ours}::uuid".encode())


@pytest.mark.parametrize("name", SHAPES)
async def test_two_tenants_on_one_transaction_are_refused_however_they_are_named(
    name: str, app_url: Callable[[str], str], tenant: UUID, other_tenant: UUID, named_by_the_product: None
) -> None:
    async with SHAPES[name](app_url("app")) as caller:
        await caller.begin()
        await caller.run(f"select set_config('shop.tenant', '{tenant}', true)")
        assert (await tenancy.adopt(caller.connection, tenant)).tenant_id == tenant
        for way in (tenancy.bind, tenancy.adopt):
            with pytest.raises(tenancy.TenantMismatchError, match="another tenant"):
                await way(caller.connection, other_tenant)
        tx = await tenancy.bind(caller.connection, tenant)
        await caller.run(f"select set_config('shop.tenant', '{other_tenant}', true)")
        with pytest.raises(tenancy.TenantMismatchError):
            await tx.confirm(writes=False)


@pytest.mark.parametrize("way", [tenancy.bind, tenancy.adopt])
async def test_what_was_never_opened_or_is_closed_already_is_refused(
    app_url: Callable[[str], str], tenant: UUID, way: Any
) -> None:
    engine = create_async_engine(sqlalchemy_url(app_url("app"), "psycopg"))
    with pytest.raises(tenancy.NoTransactionError):
        await way(engine.connect(), tenant)
    async with engine.connect() as connection:
        await connection.close()
        with pytest.raises(tenancy.NoTransactionError):
            await way(connection, tenant)
    session = AsyncSession(engine, close_resets_only=False)
    await session.close()
    with pytest.raises(tenancy.NoTransactionError):
        await way(session, tenant)
    await engine.dispose()
    async with asyncpg.create_pool(app_url("app"), min_size=1, max_size=1) as pool:
        lent = await pool.acquire()
        with pytest.raises(tenancy.NoTransactionError):
            await way(lent, tenant)
        await pool.release(lent)
        with pytest.raises(tenancy.NoTransactionError):
            await way(lent, tenant)


async def test_a_connection_that_streams_its_own_results_reads_ours_at_once(
    app_url: Callable[[str], str], tenant: UUID, sql: Statements
) -> None:
    async with _uncommitted(STREAMING)(app_url("app")) as connection:
        tx = await tenancy.bind(connection, tenant)
        assert await tx.execute(sql["add"], tag="a", run_id=uuid4()) == 1
        assert [row["tag"] for row in await tx.fetch_all(sql["tags"])] == ["a"]


async def test_a_scoped_session_is_the_session_of_its_task(app_url: Callable[[str], str], tenant: UUID) -> None:
    engine = create_async_engine(sqlalchemy_url(app_url("app"), "asyncpg"))
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    tx = await tenancy.bind(scoped, tenant)
    async with tenancy.turn(scoped):
        bound = await scoped.execute(text("select current_setting('tenantry.tenant_id')"))
    assert bound.scalar_one() == str(tx.tenant_id) == str(tenant)
    await scoped.remove()
    await engine.dispose()


async def test_codecs_of_the_applications_own_change_nothing(
    app_url: Callable[[str], str], tenant: UUID, sql: Statements
) -> None:
    async with OPENERS["asyncpg"](app_url("app")) as connection:
        for kind in ("json", "jsonb"):
            await connection.set_type_codec(kind, schema="pg_catalog", encoder=repr, decoder=repr)
        tx = await tenancy.bind(connection, tenant)
        types = await tx.fetch_one(sql["types"], items="[1.0]")
        assert types is not None
        assert types["items"] == "[1.0]"
