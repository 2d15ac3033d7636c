"""What each role of ours may: unbound logins nothing, each login its own roles, the tenant what its tables need.

That nobody reaches another tenant's rows beyond what is meant is tested in `test_tables.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IntegrityError, sql
from psycopg.errors import InsufficientPrivilege

LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
# What the tenant role may not do although the table is a tenant's.
TENANTS_LIMITS = {
    "tenants": {"select"},
    "tenant_limits": {"select"},
    "workflow_definitions": {"select", "insert", "delete"},
    "outbox_events": {"select", "insert", "delete"},
    "spans": {"select", "insert", "delete"},
    "audit_log": {"select", "insert", "delete"},
    "workflow_blobs": {"select", "insert", "delete"},
}


@contextmanager
def _as(populated: Any, login: str, role: str | None = None) -> Iterator[psycopg.Connection]:
    with psycopg.connect(populated.urls.straight(login)) as connection:
        if role is not None:
            connection.execute("select set_config('role', %s, true)", (role,))
        yield connection
        connection.rollback()


def _may(connection: psycopg.Connection, statement: sql.Composed) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
    except InsufficientPrivilege:
        return False
    except IntegrityError:
        # It got past every privilege and policy.
        return True
    return True


@pytest.mark.parametrize("login", LOGINS)
def test_an_unbound_login_reads_nothing_but_the_revision(populated: Any, login: str) -> None:
    with _as(populated, login) as connection:
        for table in populated.tables:
            assert not _may(connection, sql.SQL("select from {}").format(table.identifier)), table.name
            assert not _may(connection, populated.insert(table, of=populated.mine, to=populated.mine)), table.name
        assert connection.execute("select count(*) from tenantry.alembic_version").fetchone() == (1,)


@pytest.mark.parametrize("login", LOGINS)
def test_the_setting_alone_opens_nothing(populated: Any, login: str) -> None:
    with _as(populated, login) as connection:
        connection.execute("select set_config('tenantry.tenant_id', %s, true)", (str(populated.mine),))
        for table in populated.tables:
            assert not _may(connection, sql.SQL("select from {}").format(table.identifier)), table.name


@pytest.mark.parametrize(
    ("login", "becomes"),
    [
        ("tenantry_api", {"tenantry_tenant"}),
        ("tenantry_worker", {"tenantry_tenant"}),
        ("tenantry_dispatcher", {"tenantry_scheduler"}),
        ("tenantry_admin", {"tenantry_operator", "tenantry_tenant"}),
    ],
)
def test_a_login_becomes_what_it_is_for_and_nothing_else(populated: Any, login: str, becomes: set[str]) -> None:
    with _as(populated, login) as connection:
        for role in ("tenantry_owner", "tenantry_tenant", "tenantry_scheduler", "tenantry_operator", "postgres"):
            statement = sql.SQL("set local role {}").format(sql.Identifier(role))
            assert _may(connection, statement) is (role in becomes), role


def test_the_tenant_role_may_what_its_tables_need(populated: Any) -> None:
    with _as(populated, "tenantry_api", "tenantry_tenant") as connection:
        connection.execute("select set_config('tenantry.tenant_id', %s, true)", (str(populated.mine),))
        for table in populated.tables:
            key = sql.Identifier(table.primary_key[-1])
            can = {
                "select": _may(connection, sql.SQL("select from {}").format(table.identifier)),
                "insert": _may(connection, populated.insert(table, of=populated.theirs, to=populated.mine)),
                "update": _may(connection, sql.SQL("update {0} set {1} = {1}").format(table.identifier, key)),
                "delete": _may(connection, sql.SQL("delete from {}").format(table.identifier)),
            }
            expected = TENANTS_LIMITS.get(table.name, {"select", "insert", "update", "delete"})
            assert {name for name, is_allowed in can.items() if is_allowed} == expected, table.name
        claimed = "update tenantry.tenant_limits set claimed_at = now()"
        assert connection.execute(claimed).rowcount == 1
        assert not _may(
            connection, sql.SQL("update {} set running_jobs = 1").format(sql.Identifier("tenantry", "tenant_limits"))
        )
