"""Fixtures of all tests: servers once a session, a database once a module, tenants once a test."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from tenancy import Database, DatabaseSettings
from tests.support import factories
from tests.support.environment import Cluster, DatabaseUrls, close_session_cluster, session_cluster
from tests.support.looking import Look
from tests.support.pgbouncer import PgBouncer, programs, version_of
from tests.support.postgres import Postgres
from tests.support.system import missing
from tests.support.workflows import HandWorker

pytest_plugins = ["tenancy.isolation.plugin"]


def pytest_report_header() -> str:
    """Say at the top which poolers are tested, and that the suite goes past PgBouncer when it must."""
    found = ", ".join(f"{'.'.join(map(str, version_of(one)))} ({one})" for one in programs())
    if not found:
        return "PgBouncer is missing, tests go straight to Postgres: apt-get install pgbouncer"
    return f"PgBouncer: {found}"


def pytest_unconfigure() -> None:
    """Stop the servers, which collecting alone may have started."""
    close_session_cluster()


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Postgres (18, or 15 with TENANTRY_TEST_POSTGRES=15) and PgBouncer, started once."""
    return session_cluster()


@pytest.fixture(scope="session")
def postgres(cluster: Cluster) -> Postgres:
    """The session's Postgres. A test that stops it takes `own_cluster` instead."""
    return cluster.postgres


@pytest.fixture(scope="session")
def pgbouncer(cluster: Cluster) -> PgBouncer:
    """The session's PgBouncer; skips when the machine has none."""
    if cluster.pgbouncer is None:
        missing("PgBouncer", "pgbouncer")
    return cluster.pgbouncer


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A Postgres and a PgBouncer of the test's own, to stop, kill and restart."""
    started = Cluster()
    yield started
    started.close()


@pytest.fixture(scope="module")
def database_urls(cluster: Cluster) -> Iterator[DatabaseUrls]:
    """Addresses of the module's own migrated database."""
    urls = cluster.create()
    yield urls
    cluster.drop(urls)


@pytest.fixture
def empty_database_urls(cluster: Cluster) -> Iterator[DatabaseUrls]:
    """Addresses of a database of the test's own, without our schema."""
    urls = cluster.create_empty()
    yield urls
    cluster.drop(urls)


@pytest.fixture
async def database(database_urls: DatabaseUrls) -> AsyncIterator[Database]:
    """The module's database as a worker sees it: login tenantry_worker, through PgBouncer."""
    async with Database(DatabaseSettings(database_urls.worker)) as opened:
        yield opened


@pytest.fixture
async def api_database(database_urls: DatabaseUrls) -> AsyncIterator[Database]:
    """The module's database as the API sees it: login tenantry_api, through PgBouncer."""
    async with Database(DatabaseSettings(database_urls.api)) as opened:
        yield opened


@pytest.fixture
async def superuser(database_urls: DatabaseUrls) -> AsyncIterator[psycopg.AsyncConnection]:
    """A superuser's connection in autocommit, straight at the module's database."""
    connection = await psycopg.AsyncConnection.connect(database_urls.direct, autocommit=True)
    async with connection:
        yield connection


@pytest.fixture
async def tenant(superuser: psycopg.AsyncConnection) -> UUID:
    """A tenant of the test's own."""
    return await factories.create_tenant(superuser)


@pytest.fixture
async def other_tenant(superuser: psycopg.AsyncConnection) -> UUID:
    """A second tenant of the test's own."""
    return await factories.create_tenant(superuser)


@pytest.fixture
def hand(database: Database, tenant: UUID) -> HandWorker:
    """A worker of the test's tenant, played step by step."""
    return HandWorker(database, tenant)


@pytest.fixture
def look(superuser: psycopg.AsyncConnection) -> Look:
    """Read rows as the superuser: `await look("select …", parameter, …)`."""

    async def read(query: str, *params: object) -> list[dict[str, Any]]:
        async with superuser.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query.encode(), params)
            return await cursor.fetchall()

    return read
