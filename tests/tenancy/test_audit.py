"""The audit of the catalogs: each way to leak is found by its code and its object, and what is sound is not accused."""

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tenancy.audit import CHECKS, EXEMPTIONS, SERVER_CODE, SERVER_HOLES, SQL, Finding, Scope, audit, server_findings
from tenancy.transaction import PsycopgAdapter
from tests.support.environment import Cluster, DatabaseUrls, default_version

SHOP = Path(__file__).with_name("test_audit_shop.sql").read_bytes()
OF_SHOP = Scope(("shop_app",), ("shop",), "tenant_id")
OF_TENANTRY = Scope()


@dataclass(frozen=True, slots=True)
class Fault:
    """What spoils a sound database, and the code and object of the finding that it has to give."""

    ddl: str
    code: str
    object: str
    says: str = ""
    scope: Scope = OF_SHOP
    since: int = 15
    until: int = 18


def _ours(ddl: str, code: str, name: str, says: str = "") -> Fault:
    return Fault(ddl, code, name, says, OF_TENANTRY)


def _policy(using: str, rest: str = "") -> str:
    return f"drop policy isolation on shop.orders; create policy loose on shop.orders {rest} using ({using}) with check ({using})"


ORDERS = "shop.orders"
LOOSE = "shop.orders: policy loose"
ODD = """
create schema odd;
create table odd."My Rows" ("Tenant (id)" varchar(20) not null primary key);
alter table odd."My Rows" enable row level security, force row level security;
create policy own on odd."My Rows" using ("Tenant (id)" = current_setting('odd.tenant', true))
  with check ("Tenant (id)" = current_setting('odd.tenant', true));
"""
FAULTS = {
    "unknown-role": Fault("drop owned by shop_app; drop role shop_app", "role_unknown", "shop_app"),
    "unknown-schema": Fault("drop schema shop cascade", "schema_unknown", "shop"),
    "superuser": Fault("alter role shop_app superuser", "role_superuser", "shop_app"),
    "superuser-inherited": Fault(
        "create role boss superuser; grant boss to shop_app", "role_superuser", "shop_app", "boss"
    ),
    "superuser-by-detour": Fault(
        "create role boss superuser; create role detour noinherit; grant boss to detour; grant detour to shop_app",
        "role_superuser", "shop_app", "boss",
    ),
    "bypassrls": Fault("alter role shop_app bypassrls", "role_bypassrls", "shop_app"),
    "bypassrls-by-detour": Fault(
        "create role free bypassrls; create role detour; grant free to detour; grant detour to shop_app",
        "role_bypassrls", "shop_app", "free",
    ),
    "owner": Fault("alter table shop.orders owner to shop_app", "role_owner", "shop_app", "owns shop.orders"),
    "owner-inherited": Fault("grant shop_owner to shop_app", "role_owner", "shop_app", "inherits from shop_owner"),
    "owner-by-set-role": Fault(
        "alter role shop_app noinherit; grant shop_owner to shop_app; create role other", "role_owner", "shop_app",
        "shop_owner",
    ),
    "owner-by-detour": Fault(
        "create role detour; grant shop_owner to detour; grant detour to shop_app", "role_owner", "shop_app", "shop_owner"
    ),
    "owner-of-schema": Fault("alter schema shop owner to shop_app", "role_owner", "shop_app", "schema shop"),
    "createrole": Fault("alter role shop_app createrole", "role_powers", "shop_app", "CREATEROLE"),
    "replication": Fault("alter role shop_app replication", "role_powers", "shop_app", "REPLICATION"),
    "server-files": Fault("grant pg_read_server_files to shop_app", "role_powers", "shop_app", "pg_read_server_files"),
    "products-role-is-scheduler": Fault(
        "grant tenantry_scheduler to shop_app", "role_membership", "shop_app", "tenantry_scheduler"
    ),
    "rls-off": Fault("alter table shop.orders disable row level security", "rls_off", ORDERS),
    "rls-not-forced": Fault("alter table shop.orders no force row level security", "rls_not_forced", ORDERS),
    "partition-off": Fault(
        "alter table shop.events_2026 disable row level security", "partition_unprotected", "shop.events_2026"
    ),
    "partition-not-forced": Fault(
        "alter table shop.events_2026 no force row level security", "partition_unprotected", "shop.events_2026"
    ),
    "partition-elsewhere": Fault(
        "create table public.events_2027 partition of shop.events for values from ('2027-01-01') to ('2028-01-01')",
        "partition_unprotected", "public.events_2027",
    ),
    "no-tenant-column": Fault(
        "create table shop.notes (id uuid primary key); alter table shop.notes enable row level security,"
        " force row level security", "tenant_column_missing", "shop.notes",
    ),
    "other-tenant-column": Fault(
        "select 1", "tenant_column_missing", ORDERS, "account_id", Scope(("shop_app",), ("shop",), "account_id")
    ),
    "nullable-tenant": Fault(
        "create table shop.notes (tenant_id uuid)", "tenant_column_nullable", "shop.notes", "null"
    ),
    "no-policy": Fault("drop policy isolation on shop.orders", "policy_missing", ORDERS),
    "only-restrictive": Fault(
        "drop policy isolation on shop.orders; create policy narrow on shop.orders as restrictive"
        " using (tenant_id = shop.tenant()) with check (true)", "policy_missing", ORDERS,
    ),
    "command-without-policy": Fault(
        "drop policy isolation on shop.orders; create policy reads on shop.orders for select"
        " using (tenant_id = shop.tenant())", "policy_command_missing", ORDERS, "INSERT, UPDATE, DELETE",
    ),
    "policy-of-somebody-else": Fault(
        "alter policy isolation on shop.orders to shop_owner", "policy_command_missing", ORDERS, "shop_app"
    ),
    "no-with-check": Fault(
        "drop policy isolation on shop.orders; create policy loose on shop.orders using (tenant_id = shop.tenant())",
        "policy_without_check", LOOSE,
    ),
    "true": Fault(_policy("true"), "policy_open", LOOSE, "always true"),
    "true-for-the-role": Fault(_policy("true", "to shop_app"), "policy_open", LOOSE, "(role shop_app)"),
    "true-for-a-role-it-inherits": Fault(
        "create role readers; grant readers to shop_app; create policy loose on shop.orders for select to readers using (true)",
        "policy_open", LOOSE, "shop_app",
    ),
    "true-for-a-role-it-may-become": Fault(
        "create role readers; alter role shop_app noinherit; grant readers to shop_app;"
        " create policy loose on shop.orders for select to readers using (true)", "policy_open", LOOSE, "readers",
    ),
    "true-to-write": Fault(
        "create policy loose on shop.orders for insert with check (true)", "policy_open", LOOSE, "WITH CHECK"
    ),
    "true-in-other-words": Fault(_policy("1 = 1"), "policy_open", LOOSE, "always true"),
    "or-true": Fault(_policy("tenant_id = shop.tenant() or true"), "policy_open", LOOSE, "always true"),
    "equal-to-itself": Fault(_policy("tenant_id = tenant_id"), "policy_open", LOOSE, "always true"),
    "not-null": Fault(_policy("tenant_id is not null"), "policy_open", LOOSE, "always true"),
    "blind": Fault(_policy("current_setting('shop.tenant_id') <> ''"), "policy_open", LOOSE, "does not look at tenant_id"),
    "or-unset": Fault(
        _policy("shop.tenant() is null or tenant_id = shop.tenant()"), "policy_alternative", LOOSE, "OR"
    ),
    "or-in-an-and": Fault(
        _policy("(current_user = 'boss' or tenant_id = shop.tenant()) and note <> ''"), "policy_alternative", LOOSE, "OR"
    ),
    "case": Fault(
        _policy("case when current_user = 'boss' then true else tenant_id = shop.tenant() end"), "policy_alternative", LOOSE, "CASE"
    ),
    "not-equal": Fault(_policy("tenant_id <> shop.tenant()"), "policy_alternative", LOOSE, "another operator"),
    "narrowed-only-to-read": Fault(
        _policy("true") + "; create policy narrow on shop.orders as restrictive using (tenant_id = shop.tenant())"
        " with check (true)", "policy_open", LOOSE,
    ),
    "coalesce": Fault(
        _policy("tenant_id = coalesce(shop.tenant(), gen_random_uuid())"), "policy_unindexable", LOOSE, "COALESCE"
    ),
    "subquery": Fault(_policy("tenant_id in (select shop.tenant())"), "policy_unindexable", LOOSE, "subquery"),
    "cast": Fault(
        _policy("tenant_id::text = current_setting('shop.tenant_id', true)"), "policy_unindexable", LOOSE, "wrapped"
    ),
    "function-around-the-column": Fault(
        "alter table shop.orders add column code text;" + _policy("tenant_id = shop.tenant() and uuid_send(tenant_id) is not null"),
        "policy_unindexable", LOOSE, "wrapped",
    ),
    "volatile": Fault("alter function shop.tenant() volatile", "policy_unindexable", "shop.orders: policy isolation", "volatile"),
    "no-index": Fault(
        "alter table shop.orders drop constraint orders_pkey cascade; alter table shop.orders add primary key (id, tenant_id)",
        "tenant_index_missing", ORDERS,
    ),
    "partial-index-only": Fault(
        "alter table shop.orders drop constraint orders_pkey cascade;"
        " create index on shop.orders (tenant_id) where note <> ''", "tenant_index_missing", ORDERS,
    ),
    "primary-key": Fault(
        "create table shop.notes (tenant_id uuid not null, id uuid primary key)", "key_without_tenant",
        "shop.notes: primary key notes_pkey",
    ),
    "unique": Fault(
        "alter table shop.orders add unique (note)", "key_without_tenant", "shop.orders: unique orders_note_key"
    ),
    "unique-index": Fault(
        "create unique index by_note on shop.orders (lower(note)) include (tenant_id)", "key_without_tenant",
        "shop.orders: unique by_note",
    ),
    "foreign-key": Fault(
        "alter table shop.orders add unique (id); alter table shop.lines add constraint loose foreign key (order_id)"
        " references shop.orders (id)", "foreign_key_without_tenant", "shop.lines: foreign key loose", "shop.orders",
    ),
    "foreign-key-crosswise": Fault(
        "alter table shop.lines add constraint loose foreign key (order_id, tenant_id) references shop.orders (tenant_id, id)",
        "foreign_key_without_tenant", "shop.lines: foreign key loose",
    ),
    "foreign-key-from-elsewhere": Fault(
        "alter table shop.orders add unique (id); create table public.likes (order_id uuid references shop.orders (id))",
        "foreign_key_without_tenant", "public.likes: foreign key likes_order_id_fkey",
    ),
    "table-elsewhere": Fault(
        "create table public.notes (id int); grant select on public.notes to shop_app", "table_reachable", "public.notes",
        "shop_app",
    ),
    "column-elsewhere-by-public": Fault(
        "create table public.notes (id int); grant select (id) on public.notes to public", "table_reachable", "public.notes"
    ),
    "foreign-table": Fault(
        "create extension file_fdw; create server files foreign data wrapper file_fdw;"
        " create foreign table shop.log (line text) server files options (filename '/dev/null')", "foreign_table", "shop.log",
    ),
    "security-definer": Fault(
        "create function shop.total(uuid) returns bigint language sql security definer return 1",
        "function_security_definer", "shop.total(uuid)", "search_path",
    ),
    "security-definer-elsewhere": Fault(
        "create function public.total() returns bigint language sql security definer set search_path = '' return 1",
        "function_security_definer", "public.total()",
    ),
    "view": Fault("create view shop.open as select id from shop.orders", "view_without_security_invoker", "shop.open"),
    "view-elsewhere": Fault(
        "create view public.open with (security_invoker = off) as select id from shop.orders",
        "view_without_security_invoker", "public.open",
    ),
    "materialized-view": Fault(
        "create materialized view shop.copy as select id from shop.orders", "materialized_view", "shop.copy"
    ),
    "materialized-view-elsewhere": Fault(
        "create materialized view public.copy as select id from shop.orders", "materialized_view", "public.copy"
    ),
    "truncate": Fault("grant truncate on shop.orders to shop_app", "grant_past_policies", ORDERS, "TRUNCATE"),
    "references": Fault("grant references (id) on shop.orders to public", "grant_past_policies", ORDERS, "REFERENCES"),
    "trigger-by-membership": Fault(
        "create role extra; grant extra to shop_app; grant trigger on shop.orders to extra", "grant_past_policies", ORDERS,
        "TRIGGER",
    ),
    "default-privileges": Fault(
        "alter default privileges for role shop_owner in schema shop grant select on tables to shop_app",
        "default_privileges", "default privileges of shop_owner in schema shop", "shop_app",
    ),
    "default-privileges-of-everybody": Fault(
        "alter default privileges for role shop_owner grant insert on tables to public",
        "default_privileges", "default privileges of shop_owner", "public",
    ),
    "publication": Fault("create publication feed for table shop.orders", "publication", "feed", "shop.orders"),
    "publication-of-all": Fault("create publication feed for all tables", "publication", "feed"),
    "publication-of-schema": Fault("create publication feed for tables in schema shop", "publication", "feed"),
    "rule": Fault(
        "create rule copy as on insert to shop.orders do also delete from shop.lines", "rule_as_owner", "shop.orders: rule copy"
    ),
    "create-in-schema": Fault("grant create on schema shop to public", "schema_create", "shop", "shop_app"),
    "preset-tenant": Fault(
        "alter role shop_app set tenantry.tenant_id = '00000000-0000-0000-0000-000000000001'", "tenant_preset", "shop_app"
    ),
    # Tenantry's own schema, where some of this is meant, but no more than is listed.
    "worker-inherits": Fault(
        "alter role tenantry_worker inherit", "role_membership", "tenantry_worker", "inherits", OF_TENANTRY, until=15
    ),
    "grant-inherits": Fault(
        "grant tenantry_tenant to tenantry_api with inherit true", "role_membership", "tenantry_api", "inherits",
        OF_TENANTRY, since=16,
    ),
    "worker-is-scheduler": _ours(
        "grant tenantry_scheduler to tenantry_worker", "role_membership", "tenantry_worker", "may become tenantry_scheduler"
    ),
    "api-is-owner": _ours("grant tenantry_owner to tenantry_api", "role_owner", "tenantry_api", "tenantry_owner"),
    "scheduler-reads-payloads": _ours(
        "grant select (input) on tenantry.workflow_runs to tenantry_scheduler", "policy_open",
        "tenantry.workflow_runs: policy scheduler_reads", "select input",
    ),
    "scheduler-reads-whole-table": _ours(
        "grant select on tenantry.job_queue to tenantry_scheduler", "policy_open",
        "tenantry.job_queue: policy scheduler_reads", "select run_id",
    ),
    "scheduler-reads-another-table": _ours(
        "create policy scheduler_reads on tenantry.api_keys for select to tenantry_scheduler using (true)", "policy_open",
        "tenantry.api_keys: policy scheduler_reads", "tenantry_scheduler",
    ),
    "scheduler-policy-for-all": _ours(
        "alter policy scheduler_reads on tenantry.job_queue to public", "policy_open",
        "tenantry.job_queue: policy scheduler_reads", "tenantry_tenant",
    ),
    "operator-reads-runs": _ours(
        "create policy operator_administers on tenantry.workflow_runs to tenantry_operator using (true) with check (true)",
        "policy_open", "tenantry.workflow_runs: policy operator_administers", "tenantry_operator",
    ),
    "everyone-writes-the-revision": _ours(
        "grant update on tenantry.alembic_version to tenantry_api", "policy_open",
        "tenantry.alembic_version: policy everyone_reads", "update version_num",
    ),
    "second-global-key": _ours(
        "create unique index by_name on tenantry.tenants (name)", "key_without_tenant", "tenantry.tenants: unique by_name"
    ),
    "forgotten-table": _ours(
        "create table tenantry.notes (tenant_id uuid not null primary key)", "rls_off", "tenantry.notes"
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=(15, 18), ids=lambda version: f"postgres{version}")
def urls(request: pytest.FixtureRequest) -> Iterator[DatabaseUrls]:
    """A migrated database of the version that has a product's own sound schema too."""
    is_ours = request.param == default_version()
    cluster: Cluster = request.getfixturevalue("cluster") if is_ours else Cluster(request.param)
    found = cluster.create()
    with psycopg.connect(found.direct) as connection:
        connection.execute(SHOP)
    yield found
    if not is_ours:
        cluster.close()
        return
    with psycopg.connect(found.direct) as connection:
        connection.execute("drop schema shop cascade")
        connection.execute("drop role shop_app, shop_owner")
    cluster.drop(found)


@pytest.fixture
async def root(urls: DatabaseUrls) -> AsyncIterator[psycopg.AsyncConnection]:
    """The superuser, in a transaction that is rolled back: roles, grants and publications with it."""
    async with await psycopg.AsyncConnection.connect(urls.direct) as connection:
        yield connection
        await connection.rollback()


async def _audit(connection: psycopg.AsyncConnection, scope: Scope) -> list[Finding]:
    return await audit(PsycopgAdapter(connection, None), scope)


@pytest.mark.parametrize("scope", [OF_TENANTRY, OF_SHOP], ids=["tenantry", "shop"])
async def test_a_sound_schema_gives_nothing_but_the_servers_warning(
    root: psycopg.AsyncConnection, scope: Scope
) -> None:
    found = await _audit(root, scope)
    assert [(finding.level, finding.code) for finding in found if finding.code != SERVER_CODE] == []
    assert found == list(server_findings(root.info.server_version))


@pytest.mark.parametrize("login", ["tenantry_api", "tenantry_owner"])
async def test_whoever_connects_sees_the_same(root: psycopg.AsyncConnection, login: str) -> None:
    await root.execute("alter table shop.orders disable row level security")
    expected = await _audit(root, OF_SHOP)
    await root.execute("select set_config('role', %s, true)", (login,))
    assert await _audit(root, OF_SHOP) == expected


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_found(root: psycopg.AsyncConnection, fault: str) -> None:
    how = FAULTS[fault]
    if not how.since <= root.info.server_version // 10_000 <= how.until:
        pytest.skip("whether a membership inherits is the role's until 15, the grant's since 16")
    await root.execute(how.ddl.encode())
    found = await _audit(root, how.scope)
    assert (how.code, how.object) in [(one.code, one.object) for one in found]
    (finding,) = [one for one in found if (one.code, one.object) == (how.code, how.object)]
    assert finding.level == next(check.level for check in CHECKS if check.code == how.code)
    assert how.says in finding.reason
    assert finding.fix


@pytest.mark.parametrize(
    "harmless",
    [
        "create policy more on shop.orders as restrictive using (note <> 'x') with check (note <> 'x')",
        "create role clerk; create policy clerks on shop.orders for select to clerk using (true)",
        "create view shop.open with (security_invoker = true) as select id from shop.orders",
        "create table public.notes (id int)",
        "create function public.f() returns int language sql security definer return 1; revoke all on function public.f() from public",
        "create publication feed for table tenantry.job_queue",
        "create unique index by_note on shop.orders (note, tenant_id)",
        "create role extra; grant extra to shop_app",
        # The tenants' own table has another name for the column.
        (
            "create table shop.accounts (id uuid primary key); alter table shop.accounts enable row level security,"
            " force row level security; create policy own on shop.accounts using (id = shop.tenant()) with check (id = shop.tenant());"
            " alter table shop.orders add foreign key (tenant_id) references shop.accounts (id)"
        ),
        _policy("shop.tenant() = tenant_id"),
        _policy("tenant_id = shop.tenant() and (note <> 'x' or note <> 'y')"),
        _policy("tenant_id is not distinct from shop.tenant()"),
        "grant tenantry_tenant to shop_app",
        "create role safe noinherit; alter default privileges for role shop_owner grant select on tables to safe",
        # A permissive policy that is always true, narrowed by a restrictive one.
        (
            "drop policy isolation on shop.orders; create policy wide on shop.orders using (true) with check (true);"
            " create policy narrow on shop.orders as restrictive using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant())"
        ),
    ],
)
async def test_what_leaks_nothing_is_not_accused(root: psycopg.AsyncConnection, harmless: str) -> None:
    await root.execute(harmless.encode())
    found = await _audit(root, OF_SHOP)
    assert [finding for finding in found if finding.code != SERVER_CODE] == []


async def test_a_tenant_column_of_another_type_with_an_odd_name(root: psycopg.AsyncConnection) -> None:
    await root.execute(ODD.encode())
    found = await _audit(root, Scope(("shop_app",), ("odd",), "Tenant (id)"))
    assert [finding for finding in found if finding.code != SERVER_CODE] == []
    await root.execute("""alter policy own on odd."My Rows" using ("Tenant (id)" is not null)""")
    found = await _audit(root, Scope(("shop_app",), ("odd",), "Tenant (id)"))
    assert [(one.code, one.object) for one in found if one.level == "error"] == [
        ("policy_open", 'odd."My Rows": policy own')
    ]


async def test_a_fix_that_is_a_statement_closes_what_it_is_for(root: psycopg.AsyncConnection) -> None:
    for ddl in ("alter table shop.orders disable row level security", "grant truncate on shop.orders to shop_app",
                "alter role shop_app bypassrls", "create view shop.open as select id from shop.orders"):  # fmt: skip
        await root.execute(ddl.encode())
    for finding in await _audit(root, OF_SHOP):
        if finding.code != SERVER_CODE:
            statement = finding.fix.replace(" (or from public)", "")
            await root.execute(statement.encode())
    assert {finding.code for finding in await _audit(root, OF_SHOP)} <= {SERVER_CODE}


async def test_errors_come_first(root: psycopg.AsyncConnection) -> None:
    await root.execute("create table shop.notes (tenant_id uuid)")
    levels = [finding.level for finding in await _audit(root, OF_SHOP)]
    assert levels == sorted(levels)
    assert set(levels) == {"error", "warning"}


async def test_nothing_of_the_audited_database_is_called(root: psycopg.AsyncConnection) -> None:
    """A function of the same name that matches better is passed by: only pg_catalog is searched."""
    await root.execute(
        "create function public.unnest(text[]) returns setof text language plpgsql as 'begin raise exception ''called''; end'"
    )
    await root.execute("set local search_path = public, pg_catalog")
    await _audit(root, OF_SHOP)


async def test_every_exemption_is_needed(root: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenancy.audit.EXEMPTIONS", ())
    found = {(finding.code, finding.object) for finding in await _audit(root, OF_TENANTRY)}
    assert {one for one in found if one[0] != SERVER_CODE} == {(one.code, one.object) for one in EXEMPTIONS}


def test_every_section_is_a_check_and_every_check_has_its_test() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert set(SQL) == {*codes, "opening", "reachable_roles", "audited_tables"} - {SERVER_CODE}
    assert {fault.code for fault in FAULTS.values()} == set(codes) - {SERVER_CODE}


@pytest.mark.parametrize(
    ("number", "fixed_in"),
    [(180006, "18.7"), (170005, "17.12"), (160015, "16.16"), (150018, "15.20"), (150001, "15.20")],
)
def test_a_server_with_known_holes_is_one_warning(number: int, fixed_in: str) -> None:
    (finding,) = server_findings(number)
    assert (finding.level, finding.code) == ("warning", SERVER_CODE)
    assert "CVE-2026-120154" in finding.reason
    assert f"update the server to {fixed_in} " in finding.fix


@pytest.mark.parametrize("number", [180007, 180010, 170012, 160016, 150020, 190000])
def test_a_server_without_known_holes_is_not_mentioned(number: int) -> None:
    assert list(server_findings(number)) == []


def test_holes_are_named_by_their_numbers() -> None:
    assert all(re.match(r"CVE-\d{4}-\d+ \(", name) for name in SERVER_HOLES)
