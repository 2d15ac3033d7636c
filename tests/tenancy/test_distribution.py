"""The plan for a cluster: what it has, in which order, and that the rules find whatever breaks them.

There is no cluster here. Stand-ins with the arguments of Citus' functions note what they are called with.
"""

from collections.abc import AsyncIterator

import psycopg
import pytest
from pglast import parse_sql

from tenancy.callers import PsycopgAdapter
from tenancy.distribution import REFERENCE_TABLES, SWITCHES, distribute, has_cluster, plan, switched_off, violations
from tests.support.environment import DatabaseUrls

STAND_INS = """
create table public.calls (number serial, name text, object text, arguments text[]);
create function public.create_reference_table(table_name regclass) returns void language sql as
  $$ insert into public.calls (name, object) values ('reference', table_name::text) $$;
create function public.create_distributed_table(
  table_name regclass, distribution_column text, distribution_type text default 'hash', colocate_with text default 'default'
) returns void language sql as
  $$ insert into public.calls (name, object, arguments)
     values ('table', table_name::text, array[distribution_column, colocate_with]) $$;
create function public.create_distributed_function(
  function_name regprocedure, distribution_arg_name text default null, colocate_with text default 'default'
) returns void language sql as
  $$ insert into public.calls (name, object, arguments)
     values ('function', function_name::text, array[distribution_arg_name, colocate_with]) $$;
"""


@pytest.fixture
async def root(database_urls: DatabaseUrls) -> AsyncIterator[psycopg.AsyncConnection]:
    """The superuser, in a transaction that is rolled back."""
    async with await psycopg.AsyncConnection.connect(database_urls.direct) as connection:
        yield connection
        await connection.rollback()


async def test_the_schema_keeps_the_rules(root: psycopg.AsyncConnection) -> None:
    assert await violations(PsycopgAdapter(root, None)) == []


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("create table tenantry.notes (note_id uuid)", "tenantry.notes has no tenant_id"),
        (
            "alter table tenantry.workflow_runs add unique (run_id)",
            "tenantry.workflow_runs_run_id_key is a key without tenant_id",
        ),
        (
            "create table tenantry.notes (tenant_id uuid, note_id uuid primary key)",
            "tenantry.notes_pkey is a key without tenant_id",
        ),
        (
            (
                "alter table tenantry.workflow_runs add unique (run_id); alter table tenantry.job_queue"
                " add constraint loose foreign key (run_id) references tenantry.workflow_runs (run_id)"
            ),
            "tenantry.job_queue: loose is a foreign key without tenant_id",
        ),
        (
            "create policy loose on tenantry.job_queue using (tenant_id in (select tenantry.current_tenant_id()))",
            "tenantry.job_queue: policy loose has a subquery",
        ),
        (
            (
                "create function public.nothing() returns trigger language plpgsql as 'begin return new; end';"
                " create trigger noise before insert on tenantry.job_queue for each row execute function public.nothing()"
            ),
            "tenantry.job_queue: noise is a trigger",
        ),
    ],
)
async def test_whatever_breaks_a_rule_is_named(root: psycopg.AsyncConnection, ddl: str, says: str) -> None:
    await root.execute(ddl.encode())
    assert says in [str(found) for found in await violations(PsycopgAdapter(root, None))]


async def test_a_foreign_key_within_a_tenant_breaks_none(root: psycopg.AsyncConnection) -> None:
    await root.execute(
        "create table tenantry.notes (tenant_id uuid, run_id uuid, primary key (tenant_id, run_id),"
        " foreign key (tenant_id, run_id) references tenantry.workflow_runs (tenant_id, run_id),"
        " foreign key (tenant_id) references tenantry.tenants (tenant_id))"
    )
    assert await violations(PsycopgAdapter(root, None)) == []


async def test_every_statement_of_the_plan_is_sql_and_calls_what_citus_has(root: psycopg.AsyncConnection) -> None:
    await root.execute(STAND_INS)
    tx = PsycopgAdapter(root, None)
    for statement in await plan(tx):
        assert len(parse_sql(statement)) == 1
    number = await distribute(tx)
    rows = await (await root.execute("select name, object, arguments from public.calls order by number")).fetchall()
    settings = await (
        await root.execute(
            "select r.rolname::text, s.setconfig from pg_db_role_setting s join pg_roles r on r.oid = s.setrole"
            " where s.setdatabase <> 0 and s.setconfig::text like '%citus%'"
        )
    ).fetchall()
    assert number == len(rows) + len(settings)
    assert dict(settings) == {
        login: ["citus.propagate_set_commands=local"]
        for login in ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
    }
    tables = {
        row[0]
        for row in await (
            await root.execute("select tablename from pg_tables where schemaname = 'tenantry'")
        ).fetchall()
    }
    assert {what.removeprefix("tenantry.") for name, what, _ in rows if name == "reference"} == {*REFERENCE_TABLES}
    spread = [(what.removeprefix("tenantry."), arguments) for name, what, arguments in rows if name == "table"]
    assert spread[0] == ("workflow_runs", ["tenant_id", "none"])
    assert {table for table, _ in spread} == tables - {*REFERENCE_TABLES}
    assert all(arguments == ["tenant_id", "tenantry.workflow_runs"] for _, arguments in spread[1:])
    functions = {what: arguments for name, what, arguments in rows if name == "function"}
    assert functions["tenantry.now()"] == [None, "default"]
    assert functions["tenantry.claim_standing_v1(uuid)"] == ["tenant", "tenantry.workflow_runs"]
    order = [name for name, _, _ in rows]
    # What policies and defaults call is there before the tables, what is called with a tenant after them.
    first_table, last_table = order.index("table"), len(order) - 1 - order[::-1].index("table")
    assert order.index("reference") < first_table
    assert all(what != "tenantry.claim_standing_v1(uuid)" for _, what, _ in rows[:last_table])
    assert "tenantry.current_tenant_id()" in [what for _, what, _ in rows[: order.index("reference")]]


async def test_there_is_no_cluster_here_and_this_build_says_what_it_lacks(root: psycopg.AsyncConnection) -> None:
    assert await has_cluster(PsycopgAdapter(root, None)) is False
    assert [switch.name for switch in switched_off()] == [switch.name for switch in SWITCHES if not switch.is_on]
    assert len(switched_off()) > 0
