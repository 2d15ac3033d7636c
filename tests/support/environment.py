"""The cluster of a test session: one Postgres, one PgBouncer, a migrated template and a database per test module."""

import asyncio
import inspect
import os
from dataclasses import dataclass
from functools import cache
from typing import Literal

import psycopg
from psycopg import sql

import migrations
from tests.support.pgbouncer import PgBouncer, program
from tests.support.postgres import Postgres
from tests.support.system import sweep

TEMPLATE = "tenantry_template"


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """Where one database is: `direct` is the superuser straight at the server, the logins go through PgBouncer."""

    database: str
    direct: str
    api: str
    worker: str
    dispatcher: str
    admin: str
    postgres: Postgres

    def straight(self, login: str) -> str:
        """Address of the database as any role, past PgBouncer."""
        return self.postgres.url(login, self.database)

    def environment(self, process: Literal["api", "worker"]) -> dict[str, str]:
        """The settings of one of the product's processes; each gets only its own login (and the API the operator's)."""
        if process == "worker":
            return {"TENANTRY_DATABASE_URL": self.worker, "TENANTRY_DISPATCHER_DATABASE_URL": self.dispatcher}
        return {"TENANTRY_DATABASE_URL": self.api, "TENANTRY_OPERATOR_DATABASE_URL": self.admin}


class Cluster:
    """Postgres and, when the machine has it, PgBouncer; hands out databases."""

    def __init__(self, version: int | None = None) -> None:
        self.postgres = Postgres(version or default_version()).start()
        # Without the binary everything but the tests of PgBouncer itself still runs, straight at the server.
        self.pgbouncer = PgBouncer(self.postgres).start() if _wants_pgbouncer() else None
        self._count = 0
        self._has_template = False

    def close(self) -> None:
        """Stop both and remove their files."""
        if self.pgbouncer is not None:
            self.pgbouncer.close()
        self.postgres.close()

    def create_empty(self) -> DatabaseUrls:
        """Create a database without our schema."""
        return self._create("template0")

    def create(self) -> DatabaseUrls:
        """Create a database with the schema of the newest revision."""
        if not self._has_template:
            migrate(self._create("template0", name=TEMPLATE).direct)
            self._has_template = True
        return self._create(TEMPLATE)

    def drop(self, urls: DatabaseUrls) -> None:
        """Remove a database, whoever is still connected to it."""
        self._administer(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(urls.database)))

    def urls(self, database: str) -> DatabaseUrls:
        """Address a database of this cluster for everyone who uses it."""
        door = self.pgbouncer or self.postgres
        return DatabaseUrls(
            database=database,
            direct=self.postgres.url(database=database),
            api=door.url("tenantry_api", database),
            worker=door.url("tenantry_worker", database),
            dispatcher=door.url("tenantry_dispatcher", database),
            admin=door.url("tenantry_admin", database),
            postgres=self.postgres,
        )

    def _create(self, template: str, name: str | None = None) -> DatabaseUrls:
        self._count += 1
        database = name or f"test_{self._count}"
        create = sql.SQL("create database {} template {}")
        self._administer(create.format(sql.Identifier(database), sql.Identifier(template)))
        return self.urls(database)

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            connection.execute(statement)


@cache
def session_cluster() -> Cluster:
    """The cluster of the test session, started when the first asks: a fixture, or who collects tests from its catalogs."""
    sweep()
    return Cluster()


def close_session_cluster() -> None:
    """Stop the session's cluster if anybody started it."""
    if session_cluster.cache_info().currsize:
        session_cluster().close()
        session_cluster.cache_clear()


def default_version() -> int:
    """The major version of Postgres that this test session runs on."""
    return int(os.environ.get("TENANTRY_TEST_POSTGRES", "18"))


def migrate(direct_url: str) -> None:
    """Bring a database to the newest revision as `tenantry db migrate` does."""
    result: object = migrations.upgrade(direct_url)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _wants_pgbouncer() -> bool:
    return program() is not None or os.environ.get("CI") == "true"
