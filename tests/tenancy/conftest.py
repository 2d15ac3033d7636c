"""Fixtures of tenancy's tests: a database as either login, and statements to run on it."""

from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from tenancy import Database, DatabaseSettings, Statements, load_sql
from tests.support.environment import DatabaseUrls

FAIL = """
create schema if not exists tenantry_test;
grant usage on schema tenantry_test to public;
create or replace function tenantry_test.fail(state text) returns void language plpgsql as
  $$ begin raise exception 'as asked' using errcode = state; end $$
"""


@pytest.fixture(scope="session")
def sql() -> Statements:
    """The sections of conftest.sql."""
    return load_sql(__file__)


@pytest.fixture(params=["worker", "api"])
async def opened(request: pytest.FixtureRequest, database_urls: DatabaseUrls) -> AsyncIterator[Database]:
    """The module's database through PgBouncer, as either login that works for tenants."""
    async with Database(DatabaseSettings(getattr(database_urls, request.param), pool_size=2)) as database:
        yield database


@pytest.fixture
async def failing(superuser: psycopg.AsyncConnection) -> None:
    """Make the section `raise_state` work."""
    await superuser.execute(FAIL)


@pytest.fixture
async def run_id() -> UUID:
    return UUID(int=7)
