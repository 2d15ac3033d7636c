"""The example with CloudNativePG, as far as a Postgres and Helm can tell: its SQL runs, and what comes of it is sound."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql

from migrations.roles import ROLES
from tests.support.chart import CHART, Helm
from tests.support.command_line import CommandLine
from tests.support.postgres import Postgres

CLUSTER = yaml.safe_load((CHART / "examples" / "cloudnative-pg.yaml").read_text())
VALUES = yaml.safe_load((CHART / "examples" / "values-cloudnative-pg.yaml").read_text())
INITDB = CLUSTER["spec"]["bootstrap"]["initdb"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server of its own, as the operator leaves it: roles belong to the whole of it."""
    server = Postgres().start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        owner, database = sql.Identifier(INITDB["owner"]), sql.Identifier(INITDB["database"])
        connection.execute(sql.SQL("create role {} login").format(owner))
        connection.execute(sql.SQL("create database {} owner {}").format(database, owner))
    with psycopg.connect(server.url(database=INITDB["database"]), autocommit=True) as connection:
        for statement in INITDB["postInitApplicationSQL"]:
            connection.execute(statement.encode())
    yield server
    server.close()


def test_who_migrates_is_no_superuser_and_all_is_sound_afterwards(postgres: Postgres) -> None:
    tenantry = CommandLine({"DIRECT_DATABASE_URL": postgres.url(INITDB["owner"], INITDB["database"])})
    migrated = tenantry("db", "migrate", "--json")
    assert (migrated.status, migrated.json["pending"]) == (0, []), migrated.err
    audited = tenantry("db", "audit", "--json")
    assert audited.status == 0, audited.out


def test_its_roles_are_those_that_a_migration_would_have_made(postgres: Postgres) -> None:
    managed = {
        role["name"]: (role["inherit"], tuple(sorted(role["inRoles"]))) for role in CLUSTER["spec"]["managed"]["roles"]
    }
    assert managed == {role.name: (False, tuple(sorted(role.member_of))) for role in ROLES if role.is_login}
    with psycopg.connect(postgres.url()) as connection:
        rows: list[Any] = connection.execute(
            "select rolname::text, rolcanlogin, rolinherit, rolconfig from pg_roles where rolname like 'tenantry%'"
        ).fetchall()
    found = {name: (can_login, inherits, sorted(config or [])) for name, can_login, inherits, config in rows}
    assert found.pop(INITDB["owner"])[0] is True
    assert found == {
        role.name: (role.is_login, not role.is_login, sorted(f"{name}={value}" for name, value in role.timeouts))
        for role in ROLES
    }


def test_the_values_beside_it_are_those_of_the_cluster(helm: Helm) -> None:
    found = helm.render(
        {**VALUES, "workflows": "shop:registry", "operator": {"enabled": True, "tokenSecret": {"name": "x"}}}
    )
    cluster = CLUSTER["metadata"]["name"]
    assert VALUES["database"]["host"] == f"{cluster}-rw"
    assert VALUES["database"]["ca"]["existingSecret"] == f"{cluster}-ca"
    assert VALUES["database"]["maxConnections"] == int(CLUSTER["spec"]["postgresql"]["parameters"]["max_connections"])
    secrets = {role["name"]: role["passwordSecret"]["name"] for role in CLUSTER["spec"]["managed"]["roles"]}
    secrets[INITDB["owner"]] = INITDB["secret"]["name"]
    logins = VALUES["database"]["logins"]
    assert {name: logins[name]["existingSecret"] for name in ("api", "worker", "dispatcher", "admin")} == {
        name.removeprefix("tenantry_"): secret for name, secret in secrets.items() if name != INITDB["owner"]
    }
    assert (logins["owner"]["username"], logins["owner"]["existingSecret"]) == (
        INITDB["owner"],
        secrets[INITDB["owner"]],
    )
    assert found.of_kind("Job")
