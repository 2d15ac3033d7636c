"""Operators' commands against a real database, as `tenantry_admin` through PgBouncer."""

import json
from uuid import UUID, uuid4

import psycopg

from service import keys
from service.tenants import SCOPES
from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls


def slug() -> str:
    return f"t-{uuid4().hex[:12]}"


def test_a_tenant_is_created_listed_suspended_and_resumed(operator: CommandLine) -> None:
    name = slug()
    created = operator("tenant", "create", name, "--name", "Acme [Ltd]", "--json").json
    assert {key: created[key] for key in ("slug", "name", "status")} == {
        "slug": name,
        "name": "Acme [Ltd]",
        "status": "active",
    }
    assert UUID(created["id"])
    assert operator("tenant", "suspend", name, "--json").json["status"] == "suspended"
    listed = {tenant["slug"]: tenant for tenant in operator("tenant", "list", "--json").json}
    assert listed[name]["status"] == "suspended"
    assert operator("tenant", "resume", name, "--json").json["status"] == "active"
    assert "Acme [Ltd]" in operator("tenant", "list").out


def test_refused_tenants_end_with_1_and_leave_stdout_empty(operator: CommandLine) -> None:
    name = slug()
    operator("tenant", "create", name)
    for arguments in (
        ("tenant", "create", name),
        ("tenant", "create", "No Slug"),
        ("tenant", "create", slug(), "--name", ""),
        ("tenant", "suspend", "nobody"),
        ("tenant", "delete", "nobody", "--yes"),
        ("tenant", "export", "nobody"),
        ("key", "create", "--tenant", "nobody"),
        ("key", "list", "--tenant", "nobody"),
        ("key", "revoke", str(uuid4()), "--tenant", name),
        ("key", "revoke", "no-uuid", "--tenant", name),
    ):
        answer = operator(*arguments, "--json")
        assert (answer.status, answer.out) == (1, ""), arguments
        assert answer.err.count("\n") == 1


def test_a_key_is_made_listed_without_its_secret_and_revoked(operator: CommandLine) -> None:
    name = slug()
    tenant_id = operator("tenant", "create", name, "--json").json["id"]
    made = operator("key", "create", "--tenant", name, "--scope", "runs:read", "--expires-in", "24h", "--json").json
    parsed = keys.parse(made["key"])
    assert parsed is not None
    assert (str(parsed.tenant_id), str(parsed.key_id)) == (tenant_id, made["id"])
    assert made["scopes"] == ["runs:read"]
    assert made["expires_at"].endswith("Z")
    everything = operator("key", "create", "--tenant", name, "--json").json
    assert (everything["scopes"], everything["expires_at"]) == (list(SCOPES), None)
    assert operator("key", "revoke", made["id"], "--tenant", name, "--json").status == 0
    listed = operator("key", "list", "--tenant", name, "--json")
    assert [key["revoked_at"] is None for key in listed.json] == [False, True]
    assert made["key"] not in listed.out
    assert "secret" not in listed.out


def test_a_tenant_is_exported_without_secrets_and_deleted_with_all_it_owns(
    operator: CommandLine, database_urls: DatabaseUrls
) -> None:
    name, other = slug(), slug()
    tenant_id = operator("tenant", "create", name, "--json").json["id"]
    operator("tenant", "create", other)
    operator("key", "create", "--tenant", name)
    operator("key", "create", "--tenant", other)
    exported = operator("tenant", "export", name)
    lines = [json.loads(line) for line in exported.out.splitlines()]
    assert lines[0]["table"] == "tenants"
    assert {line["table"] for line in lines} == {"tenants", "api_keys", "audit_log"}
    assert "secret" not in exported.out
    assert operator("tenant", "export", name, "--json").json == lines
    assert operator("tenant", "delete", name, "--yes", "--json").json == {
        "id": tenant_id,
        "slug": name,
        "deleted": True,
    }
    with psycopg.connect(database_urls.direct) as connection:
        tables = connection.execute(
            "select table_name from information_schema.columns where table_schema = 'tenantry' and column_name = 'tenant_id'"
        ).fetchall()
        assert len(tables) > 10
        for (table,) in tables:
            query = psycopg.sql.SQL("select count(*) from tenantry.{} where tenant_id = %s").format(
                psycopg.sql.Identifier(table)
            )
            assert connection.execute(query, [tenant_id]).fetchone() == (0,), table
    assert len(operator("key", "list", "--tenant", other, "--json").json) == 1
    assert operator("tenant", "delete", name, "--yes").status == 1


def test_an_owner_or_superuser_is_refused(database_urls: DatabaseUrls, tenantry: CommandLine) -> None:
    answer = tenantry("tenant", "list", OPERATOR_DATABASE_URL=database_urls.direct)
    assert answer.status == 1
    assert "superuser" in answer.err
    assert answer.err.count("\n") == 1
