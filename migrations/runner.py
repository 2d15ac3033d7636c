"""Brings a database to the newest revision, over a direct connection, safely when many start at once."""

import logging
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

from migrations.roles import ensure_roles
from tenancy.pools import sqlalchemy_url

logger = logging.getLogger(__name__)
SCHEMA = "tenantry"
# Any number will do as long as it stays: it names this lock among the database's advisory locks.
LOCK_ID = 7_365_120_948_117
LOCK_TIMEOUT = "60s"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


HEAD: str = ScriptDirectory.from_config(_config()).get_current_head() or ""


def upgrade(direct_url: str) -> None:
    """Create what roles are missing, then migrate in one transaction as `tenantry_owner`.

    The transaction first takes an advisory lock that ends with it: of many that start at once one migrates, the
    others wait up
    to a minute and find nothing left to do. Needs a direct connection: a pooler would tear lock and session apart.

    Raises:
        RolesMissingError: this user may not create the roles; it carries the SQL.
        sqlalchemy.exc.OperationalError: the server is away, or the lock was not had in time.
    """
    with psycopg.connect(direct_url, autocommit=True, prepare_threshold=None) as connection:
        ensure_roles(connection)
    engine = _engine(direct_url)
    try:
        with engine.begin() as transaction:
            transaction.execute(text("select set_config('lock_timeout', :timeout, true)"), {"timeout": LOCK_TIMEOUT})
            transaction.execute(text("select pg_advisory_xact_lock(:id)"), {"id": LOCK_ID})
            if _current(transaction) == HEAD:
                return
            if transaction.execute(text("select to_regnamespace('tenantry')")).scalar() is None:
                transaction.execute(text("create schema tenantry authorization tenantry_owner"))
            transaction.execute(text("set local role tenantry_owner"))
            config = _config()
            config.attributes["connection"] = transaction
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def status(direct_url: str) -> dict[str, object]:
    """Return `{current, head, pending}`.

    The revision of the database, the build's, and those in between, oldest first.
    """
    engine = _engine(direct_url)
    try:
        with engine.connect() as connection:
            current = _current(connection)
    finally:
        engine.dispose()
    revisions = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    known = revisions[: revisions.index(current)] if current in revisions else revisions
    return {"current": current, "head": HEAD, "pending": list(reversed(known))}


def _current(connection: Connection) -> str | None:
    if connection.execute(text("select to_regclass('tenantry.alembic_version')")).scalar() is None:
        return None
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _engine(direct_url: str) -> Engine:
    return create_engine(
        sqlalchemy_url(direct_url, "psycopg"), poolclass=NullPool, connect_args={"connect_timeout": 10}
    )
