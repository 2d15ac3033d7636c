"""A cluster without our roles for each test: roles belong to the cluster, not to the database."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.support.postgres import Postgres


@pytest.fixture(scope="module", params=(15, 18), ids=lambda version: f"postgres{version}")
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    started = Postgres(request.param).start()
    yield started
    started.close()


@pytest.fixture
def bare(server: Postgres) -> Iterator[Postgres]:
    """A Postgres of the version that has never seen us, or looks like it."""
    yield server
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("drop schema if exists tenantry cascade")
        for (name,) in connection.execute("select datname from pg_database where oid >= 16384").fetchall():
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
        roles = connection.execute("select rolname from pg_roles where oid >= 16384 order by rolname desc").fetchall()
        for (name,) in roles:
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def root(bare: Postgres) -> Iterator[psycopg.Connection]:
    """The superuser of `bare`, in autocommit."""
    with psycopg.connect(bare.url(), autocommit=True) as connection:
        yield connection
