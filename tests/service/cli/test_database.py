"""`tenantry db`: from an empty database to this build's schema."""

import psycopg

from tenancy.distribution import switched_off
from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls


def test_an_empty_database_is_migrated_and_a_repeat_changes_nothing(
    empty_database_urls: DatabaseUrls, tenantry: CommandLine
) -> None:
    settings = {"DIRECT_DATABASE_URL": empty_database_urls.direct}
    before = tenantry("db", "status", "--json", **settings).json
    assert before["current"] is None
    assert before["pending"] != []
    migrated = tenantry("db", "migrate", "--json", **settings)
    assert migrated.status == 0
    after = tenantry("db", "status", "--json", **settings).json
    assert after == {"current": before["head"], "head": before["head"], "pending": []}
    assert tenantry("db", "migrate", **settings).status == 0


def test_distribute_is_refused_until_the_build_is_ready_and_shows_its_plan(
    database_urls: DatabaseUrls, tenantry: CommandLine
) -> None:
    settings = {"DIRECT_DATABASE_URL": database_urls.direct}
    refused = tenantry("db", "distribute", **settings)
    assert (refused.status, refused.out) == (1, "")
    for switch in switched_off():
        assert switch.name in refused.err
    shown = tenantry("db", "distribute", "--dry-run", **settings)
    assert shown.status == 0
    assert (
        "select create_distributed_table('tenantry.workflow_runs', 'tenant_id', colocate_with := 'none');" in shown.out
    )
    assert "Run on no cluster" in shown.err
    answer = tenantry("db", "distribute", "--dry-run", "--json", **settings)
    assert answer.json["switched_off"] == [switch.name for switch in switched_off()]
    assert f"{answer.json['statements'][0]};" == shown.out.splitlines()[0]


def test_distribute_names_what_cannot_be_distributed(database_urls: DatabaseUrls, tenantry: CommandLine) -> None:
    with psycopg.connect(database_urls.direct, autocommit=True) as connection:
        connection.execute("create table tenantry.stray (id uuid primary key)")
        refused = tenantry("db", "distribute", "--dry-run", DIRECT_DATABASE_URL=database_urls.direct)
        connection.execute("drop table tenantry.stray")
    assert refused.status == 1
    assert "tenantry.stray has no tenant_id" in refused.err
