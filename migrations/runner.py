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
# A migrating user need not hold the owner's rights without asking, and the schema is closed to strangers.
_BECOME_OWNER_IF_MEMBER = text(
    "select set_config('role', rolname, true) from pg_roles where rolname = 'tenantry_owner'"
    " and pg_has_role(oid, case when current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end)"
)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


HEAD: str = ScriptDirectory.from_config(_config()).get_current_head() or ""


def upgrade(direct_url: str) -> None:
    """Create what roles are missing, then migrate in one transaction as `tenantry_owner`.

    The transaction first takes an advisory lock that ends with it: of many that start at once one migrates, the
    others wait up to a minute and find nothing left to do. A database that a newer build has migrated is left as it
    is. Needs a direct connection: a pooler would tear lock and session apart.

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
            if transaction.execute(text("select to_regnamespace('tenantry')")).scalar() is None:
                transaction.execute(text("create schema tenantry authorization tenantry_owner"))
            transaction.execute(text("set local role tenantry_owner"))
            current = _current(transaction)
            if current == HEAD or (current is not None and current not in _revisions()):
                # Up to date, or already where a newer build brought it.
                return
            config = _config()
            config.attributes["connection"] = transaction
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def status(direct_url: str) -> dict[str, object]:
    """Return `{current, head, pending}`.

    The revision of the database, the build's, and those in between, oldest first: none when a newer build was here.
    """
    engine = _engine(direct_url)
    try:
        with engine.connect() as connection:
            connection.execute(_BECOME_OWNER_IF_MEMBER)
            current = _current(connection)
    finally:
        engine.dispose()
    revisions = _revisions()
    done = 0 if current is None else revisions.index(current) + 1 if current in revisions else len(revisions)
    return {"current": current, "head": HEAD, "pending": revisions[done:]}


def _revisions() -> list[str]:
    """Return this build's revisions, oldest first."""
    newest_first = ScriptDirectory.from_config(_config()).walk_revisions()
    return [script.revision for script in newest_first][::-1]


def _current(connection: Connection) -> str | None:
    if connection.execute(text("select to_regclass('tenantry.alembic_version')")).scalar() is None:
        return None
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _engine(direct_url: str) -> Engine:
    return create_engine(
        sqlalchemy_url(direct_url, "psycopg"), poolclass=NullPool, connect_args={"connect_timeout": 10}
    )
