"""`tenantry db audit`: exit statuses, the three forms, and what is said to whom."""

import json
from collections.abc import Iterator

import jsonschema
import psycopg
import pytest

from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls
from tests.support.system import free_port

LEAK = """
create schema shop;
create table shop.orders (tenant_id uuid not null, id uuid not null, primary key (tenant_id, id));
"""
MENDED = """
alter table shop.orders enable row level security, force row level security;
create policy isolation on shop.orders
  using (tenant_id = tenantry.current_tenant_id()) with check (tenant_id = tenantry.current_tenant_id());
"""
# What SARIF 2.1.0 requires of the parts that are used here.
SARIF = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "semanticVersion": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "id": {"type": "string"},
                                                "shortDescription": {"type": "object", "required": ["text"]},
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "properties": {
                                                        "level": {"enum": ["error", "warning", "note", "none"]}
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
                            "properties": {
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["error", "warning", "note", "none"]},
                                "message": {"type": "object", "required": ["text"]},
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "properties": {
                                            "logicalLocations": {
                                                "type": "array",
                                                "items": {
                                                    "type": "object",
                                                    "properties": {"fullyQualifiedName": {"type": "string"}},
                                                },
                                            }
                                        },
                                    },
                                },
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                                "properties": {"type": "object"},
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture
def leaky(database_urls: DatabaseUrls) -> Iterator[str]:
    """The address of a migrated database with a product's schema that leaks."""
    with psycopg.connect(database_urls.direct, autocommit=True) as connection:
        connection.execute(LEAK)
        yield database_urls.direct
        connection.execute("drop schema shop cascade")


def test_our_own_schema_has_no_error_and_at_most_the_servers_warning(
    database_urls: DatabaseUrls, tenantry: CommandLine
) -> None:
    answer = tenantry("db", "audit", "--json", DIRECT_DATABASE_URL=database_urls.direct)
    assert (answer.status, answer.err) == (0, "")
    assert {(finding["level"], finding["code"]) for finding in answer.json} <= {("warning", "server_version")}


def test_the_fields_of_a_finding(leaky: str, tenantry: CommandLine) -> None:
    answer = tenantry("db", "audit", "--database-url", leaky, "--schema", "shop", "--format", "json")
    assert answer.status == 1
    assert answer.json[0] == {
        "level": "error",
        "code": "rls_off",
        "object": "shop.orders",
        "reason": "row-level security is off: whoever may read the table reads every tenant's rows",
        "fix": "alter table shop.orders enable row level security, force row level security",
    }
    assert answer.err == ""


def test_text_names_object_reason_and_fix(leaky: str, tenantry: CommandLine) -> None:
    answer = tenantry("db", "audit", "--schema", "shop", DIRECT_DATABASE_URL=leaky)
    assert answer.status == 1
    lines = answer.out.splitlines()
    assert lines[0] == "error rls_off shop.orders"
    assert "row-level security is off" in lines[1]
    assert lines[2] == "  fix: alter table shop.orders enable row level security, force row level security"
    assert "Errors: 2," in answer.err


def test_a_mended_schema_passes(leaky: str, tenantry: CommandLine) -> None:
    with psycopg.connect(leaky, autocommit=True) as connection:
        connection.execute(MENDED)
    answer = tenantry("db", "audit", "--schema", "shop", "--role", "tenantry_api", DIRECT_DATABASE_URL=leaky)
    assert answer.status == 0
    assert "Errors: 0," in answer.err


def test_several_schemas_and_roles(leaky: str, tenantry: CommandLine) -> None:
    with psycopg.connect(leaky, autocommit=True) as connection:
        connection.execute("create role strong bypassrls")
        scope = ("--schema", "shop", "--schema", "tenantry", "--role", "strong", "--role", "tenantry_tenant")
        answer = tenantry("db", "audit", "--json", *scope, DIRECT_DATABASE_URL=leaky)
        connection.execute("drop role strong")
    assert answer.status == 1
    found = {(finding["code"], finding["object"]) for finding in answer.json}
    assert found >= {("rls_off", "shop.orders"), ("role_bypassrls", "strong")}


def test_another_tenant_column(leaky: str, tenantry: CommandLine) -> None:
    arguments = ("--schema", "shop", "--tenant-column", "account_id", "--json")
    answer = tenantry("db", "audit", *arguments, DIRECT_DATABASE_URL=leaky)
    assert ("tenant_column_missing", "shop.orders") in {(one["code"], one["object"]) for one in answer.json}


def test_surrogate_keys_are_accepted_when_asked(leaky: str, tenantry: CommandLine) -> None:
    with psycopg.connect(leaky, autocommit=True) as connection:
        connection.execute(MENDED)
        connection.execute("alter table shop.orders add unique (id)")
    scope = ("--schema", "shop", "--role", "tenantry_api", "--json")
    refused = tenantry("db", "audit", *scope, DIRECT_DATABASE_URL=leaky)
    assert (refused.status, [one["code"] for one in refused.json if one["level"] == "error"]) == (
        1,
        ["key_without_tenant"],
    )
    assert tenantry("db", "audit", *scope, "--accept-surrogate-keys", DIRECT_DATABASE_URL=leaky).status == 0


def test_sarif_has_the_required_structure(leaky: str, tenantry: CommandLine) -> None:
    answer = tenantry("db", "audit", "--schema", "shop", "--format", "sarif", DIRECT_DATABASE_URL=leaky)
    assert (answer.status, answer.err) == (1, "")
    log = json.loads(answer.out)
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["results"] != []
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    places = [result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for result in run["results"]]
    assert "shop.orders" in places


def test_sarif_of_a_sound_schema_exits_with_0(database_urls: DatabaseUrls, tenantry: CommandLine) -> None:
    answer = tenantry("db", "audit", "--format", "sarif", DIRECT_DATABASE_URL=database_urls.direct)
    assert answer.status == 0
    jsonschema.validate(json.loads(answer.out), SARIF)


def test_a_database_without_our_schema_is_an_error(empty_database_urls: DatabaseUrls, tenantry: CommandLine) -> None:
    answer = tenantry("db", "audit", "--json", DIRECT_DATABASE_URL=empty_database_urls.direct)
    assert answer.status == 1
    assert ("schema_unknown", "tenantry") in {(finding["code"], finding["object"]) for finding in answer.json}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--format", "xml"),
        ("--json", "--format", "sarif"),
        ("--database-url", "mysql://u@h/d"),
        ("--role",),
        ("--no-such-option",),
    ],
)
def test_wrong_usage_ends_with_2(tenantry: CommandLine, arguments: tuple[str, ...]) -> None:
    answer = tenantry("db", "audit", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err


def test_without_a_database_one_line_says_why(tenantry: CommandLine) -> None:
    answer = tenantry("db", "audit")
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert "direct_database_url" in answer.err
    url = f"postgresql://nobody:secret@127.0.0.1:{free_port()}/nowhere"
    answer = tenantry("db", "audit", "--json", "--database-url", url)
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert "secret" not in answer.err
