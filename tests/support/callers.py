"""An application's own connection, on everything that it may be: the same few words for all of them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
from psycopg import AsyncRawCursor
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tenancy.pools import sqlalchemy_url

NO_CACHE = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
# `app` may do what a caller has to; each of the others lacks one thing. `app_notes` is the product's own table.
ROLES = """
do $$ begin
  create role app login inherit;
  create role app_wide login inherit;
  create role app_bypass login bypassrls;
  create role app_owner login inherit;
  create role app_stranger login inherit;
  create role app_heirless login noinherit;
exception when duplicate_object then null;
end $$;
grant tenantry_tenant to app, app_wide, app_bypass;
do $$ begin
  if current_setting('server_version_num')::int >= 160000 then
    -- As text: an older server refuses to read what it does not know.
    execute 'grant tenantry_tenant to app_heirless with inherit false';
  else
    grant tenantry_tenant to app_heirless;
  end if;
end $$;
grant tenantry_scheduler to app_wide;
grant tenantry_owner to app_owner;
create table if not exists public.app_notes (note text primary key);
grant select, insert on public.app_notes to public
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a test does with a caller's connection; `connection` is what `tenancy.bind` is given.

    `run` sends one statement of the caller's own, `begin` opens a transaction where none opens by itself.
    """

    connection: Any
    run: Callable[[str], Awaitable[Any]]
    begin: Callable[[], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]
    close: Callable[[], Awaitable[Any]]

    async def note(self, note: str) -> None:
        """Write a row of the caller's own."""
        await self.run(f"insert into public.app_notes values ('{note}')")


Shape = Callable[[str], AbstractAsyncContextManager[Caller]]


async def _nothing() -> None:
    """Begin nothing: the first statement does."""


def sqlalchemy_shape(driver: Any, **options: Any) -> Shape:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = _engine(url, driver, **options)
        async with engine.connect() as connection:
            yield Caller(
                connection,
                lambda statement: connection.execute(text(statement)),
                _nothing,
                connection.commit,
                connection.rollback,
                connection.close,
            )
        await engine.dispose()

    return opened


def _session(driver: Any) -> Shape:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = _engine(url, driver)
        async with AsyncSession(engine, close_resets_only=False) as session:
            yield Caller(
                session,
                lambda statement: session.execute(text(statement)),
                _nothing,
                session.commit,
                session.rollback,
                session.close,
            )
        await engine.dispose()

    return opened


def _engine(url: str, driver: Any, **options: Any) -> Any:
    arguments = NO_CACHE if driver == "asyncpg" else {"prepare_threshold": None}
    return create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool, connect_args=arguments, **options)


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        yield _of_asyncpg(connection, connection.close)
    finally:
        connection.terminate()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1, statement_cache_size=0) as pool:
        connection: Any = await pool.acquire()
        try:
            yield _of_asyncpg(connection, lambda: pool.release(connection))
        finally:
            await pool.release(connection)


def _of_asyncpg(connection: Any, close: Callable[[], Awaitable[Any]]) -> Caller:
    # In words, as an application may: the driver knows of the transaction all the same.
    return Caller(
        connection,
        connection.execute,
        lambda: connection.execute("begin"),
        lambda: connection.execute("commit"),
        lambda: connection.execute("rollback"),
        close,
    )


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Caller]:
    connection = await psycopg.AsyncConnection.connect(url, prepare_threshold=None)
    try:
        yield _of_psycopg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg_odd(url: str) -> AsyncIterator[Caller]:
    """Autocommit, a transaction in words, another style of parameters and a pipeline."""
    connection = await psycopg.AsyncConnection.connect(
        url, prepare_threshold=None, autocommit=True, cursor_factory=AsyncRawCursor
    )
    try:
        async with connection.pipeline():
            caller = _of_psycopg(connection)

            async def say(word: str) -> None:
                async with connection.pipeline():
                    await connection.execute(word.encode())

            yield Caller(
                connection,
                say,
                lambda: say("begin"),
                lambda: say("commit"),
                lambda: say("rollback"),
                caller.close,
            )
    except psycopg.OperationalError:
        # The end of a pipeline on a connection that the test closed.
        assert connection.closed
    finally:
        await connection.close()


def _of_psycopg(connection: psycopg.AsyncConnection[Any]) -> Caller:
    return Caller(
        connection,
        lambda statement: connection.execute(statement.encode()),
        _nothing,
        connection.commit,
        connection.rollback,
        connection.close,
    )


SHAPES: Mapping[str, Shape] = {
    "sqlalchemy-asyncpg": sqlalchemy_shape("asyncpg"),
    "sqlalchemy-psycopg": sqlalchemy_shape("psycopg"),
    "session-asyncpg": _session("asyncpg"),
    "session-psycopg": _session("psycopg"),
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "psycopg": _psycopg,
    "psycopg-odd": _psycopg_odd,
}
STREAMING = sqlalchemy_shape("psycopg", execution_options={"stream_results": True})
