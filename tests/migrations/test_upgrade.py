"""From any database to the newest revision, whoever migrates and however many at once."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import psycopg
import pytest

import migrations
from migrations.roles import ROLES
from tests.support.postgres import Postgres

DONE = {"current": migrations.HEAD, "head": migrations.HEAD, "pending": []}
LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
MEMBERSHIPS = {(role.name, group) for role in ROLES for group in role.member_of}


def _roles(root: psycopg.Connection) -> list[tuple[object, ...]]:
    return root.execute(
        "select role.rolname, role.rolcanlogin, role.rolinherit, role.rolsuper, role.rolbypassrls, role.rolcreaterole,"
        " role.rolcreatedb, role.rolreplication, role.rolpassword, setting.setconfig"
        " from pg_authid as role left join pg_db_role_setting as setting on setting.setrole = role.oid"
        " where role.rolname like 'tenantry%' order by 1"
    ).fetchall()


def _not_owned_by_us(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "select 'relation', relname, pg_get_userbyid(relowner) from pg_class"
            " where relnamespace = 'tenantry'::regnamespace and pg_get_userbyid(relowner) <> 'tenantry_owner'"
            " union all select 'function', proname, pg_get_userbyid(proowner) from pg_proc"
            " where pronamespace = 'tenantry'::regnamespace and pg_get_userbyid(proowner) <> 'tenantry_owner'"
            " union all select 'type', typname, pg_get_userbyid(typowner) from pg_type"
            " where typnamespace = 'tenantry'::regnamespace and pg_get_userbyid(typowner) <> 'tenantry_owner'"
            " union all select 'schema', nspname, pg_get_userbyid(nspowner) from pg_namespace"
            " where nspname = 'tenantry' and pg_get_userbyid(nspowner) <> 'tenantry_owner'"
        ).fetchall()


def _at_once(urls: Sequence[str]) -> None:
    with ProcessPoolExecutor(len(urls), mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(migrations.upgrade, urls))


def test_an_empty_database_gets_the_whole_schema_and_a_repeat_changes_nothing(
    bare: Postgres, root: psycopg.Connection
) -> None:
    revisions = migrations.status(bare.url())["pending"]
    assert isinstance(revisions, list)
    assert revisions[-1] == migrations.HEAD
    migrations.upgrade(bare.url())
    assert migrations.status(bare.url()) == DONE
    before = _roles(root)
    migrations.upgrade(bare.url())
    assert _roles(root) == before
    assert migrations.status(bare.url()) == DONE
    assert _not_owned_by_us(bare.url()) == []


def test_roles_are_as_weak_as_they_are_promised(bare: Postgres, root: psycopg.Connection) -> None:
    migrations.upgrade(bare.url())
    for name, can_login, inherits, *powers, password, _settings in _roles(root):
        assert can_login is (name in LOGINS)
        assert password is None
        assert powers == [False] * 5
        if name in LOGINS:
            assert inherits is False
    links = root.execute(
        "select member.rolname, role.rolname from pg_auth_members as link"
        " join pg_roles as member on member.oid = link.member join pg_roles as role on role.oid = link.roleid"
        " where role.rolname like 'tenantry%'"
    ).fetchall()
    assert set(links) == MEMBERSHIPS
    for login, group in MEMBERSHIPS:
        (holds,) = root.execute("select pg_has_role(%s, %s, 'USAGE')", (login, group)).fetchone() or (None,)
        assert holds is False
    for login in LOGINS:
        (config,) = root.execute("select rolconfig from pg_roles where rolname = %s", (login,)).fetchone() or (None,)
        assert any(setting.startswith("idle_in_transaction_session_timeout=") for setting in config)


def test_many_at_once_migrate_once(bare: Postgres) -> None:
    _at_once([bare.url()] * 5)
    assert migrations.status(bare.url()) == DONE


def test_many_databases_of_one_cluster_migrate_at_once(bare: Postgres, root: psycopg.Connection) -> None:
    for number in range(5):
        root.execute(f"create database many_{number}".encode())
    urls = [bare.url(database=f"many_{number}") for number in range(5)]
    _at_once(urls)
    assert [migrations.status(url) for url in urls] == [DONE] * 5
    found = root.execute(
        "select member.rolname, role.rolname from pg_auth_members as link"
        " join pg_roles as member on member.oid = link.member join pg_roles as role on role.oid = link.roleid"
        " where role.rolname like 'tenantry%'"
    ).fetchall()
    assert set(found) == MEMBERSHIPS
    promised = {role.name: {f"{name}={value}" for name, value in role.timeouts} for role in ROLES}
    configured = root.execute("select rolname, rolconfig from pg_roles where rolname like 'tenantry%'").fetchall()
    assert {name: set(config or ()) for name, config in configured} == promised


def test_roles_of_another_database_are_used_as_they_are(bare: Postgres, root: psycopg.Connection) -> None:
    migrations.upgrade(bare.url())
    root.execute("alter role tenantry_api password 'kept'")
    root.execute("alter role tenantry_worker connection limit 7")
    root.execute("alter role tenantry_worker reset lock_timeout")
    before = _roles(root)
    root.execute("create database second")
    migrations.upgrade(bare.url(database="second"))
    assert _roles(root) == before
    assert migrations.status(bare.url(database="second")) == DONE
    assert root.execute("select rolconnlimit from pg_roles where rolname = 'tenantry_worker'").fetchone() == (7,)


@pytest.mark.parametrize("inherits", ["inherit", "noinherit"])
def test_a_plain_user_who_may_create_roles_migrates(bare: Postgres, root: psycopg.Connection, inherits: str) -> None:
    root.execute(f"create role deployer login createrole {inherits}".encode())
    root.execute("create database ours owner deployer")
    url = bare.url("deployer", "ours")
    migrations.upgrade(url)
    assert migrations.status(url) == DONE
    migrations.upgrade(url)
    assert _not_owned_by_us(bare.url(database="ours")) == []


def test_a_user_who_may_not_create_roles_is_told_what_to_run(bare: Postgres, root: psycopg.Connection) -> None:
    root.execute("create role deployer login noinherit")
    root.execute("create database ours owner deployer")
    url = bare.url("deployer", "ours")
    with pytest.raises(migrations.RolesMissingError) as refused:
        migrations.upgrade(url)
    assert migrations.status(url)["current"] is None
    script = refused.value.script
    for role in ROLES:
        assert f'create role "{role.name}"' in script
    with psycopg.connect(bare.url()) as somebody_else:
        somebody_else.execute(script.encode())
    migrations.upgrade(url)
    assert migrations.status(url) == DONE
    assert _not_owned_by_us(bare.url(database="ours")) == []
    # Nothing but an unchanged schema is needed by those who come after.
    migrations.upgrade(url)


def test_a_newer_database_is_left_as_it_is(bare: Postgres, root: psycopg.Connection) -> None:
    migrations.upgrade(bare.url())
    root.execute("update tenantry.alembic_version set version_num = '9999'")
    migrations.upgrade(bare.url())
    assert migrations.status(bare.url()) == {"current": "9999", "head": migrations.HEAD, "pending": []}


def test_a_failed_migration_leaves_nothing_behind(bare: Postgres, root: psycopg.Connection) -> None:
    root.execute("create role tenantry_owner")
    root.execute("create database ours")
    with psycopg.connect(bare.url(database="ours"), autocommit=True) as connection:
        connection.execute("create schema tenantry authorization tenantry_owner")
        connection.execute("create table tenantry.audit_log (stranger int)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrations.upgrade(bare.url(database="ours"))
    assert migrations.status(bare.url(database="ours"))["current"] is None
    with psycopg.connect(bare.url(database="ours")) as connection:
        names = connection.execute("select tablename from pg_tables where schemaname = 'tenantry'").fetchall()
    assert names == [("audit_log",)]


def test_the_migration_table_is_read_by_logins_and_written_by_its_owner_only(
    bare: Postgres, root: psycopg.Connection
) -> None:
    migrations.upgrade(bare.url())
    for login in LOGINS:
        with psycopg.connect(bare.url(login), autocommit=True) as connection:
            assert connection.execute("select version_num from tenantry.alembic_version").fetchall() == [
                (migrations.HEAD,)
            ]
            for attempt in (
                "update tenantry.alembic_version set version_num = 'x'",
                "delete from tenantry.alembic_version",
                "insert into tenantry.alembic_version values ('x')",
                "truncate tenantry.alembic_version",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(attempt.encode())
    with psycopg.connect(bare.url()) as connection:
        connection.execute("set role tenantry_owner")
        assert connection.execute("update tenantry.alembic_version set version_num = version_num").rowcount == 1
        connection.rollback()
