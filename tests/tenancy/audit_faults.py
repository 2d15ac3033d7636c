"""Every way to leak that the audit knows, as what spoils a sound database and the finding that it has to give."""

from dataclasses import dataclass

from tenancy.audit import Scope

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


def policy(using: str, rest: str = "") -> str:
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
    "createrole-by-set-role": Fault(
        "create role manager createrole; grant manager to shop_app", "role_powers", "shop_app", "manager, which has CREATEROLE"
    ),
    "statistics-of-all": Fault("grant pg_read_all_data to shop_app", "role_powers", "shop_app", "pg_statistic"),
    "statistics-by-grant": Fault(
        "grant select on pg_catalog.pg_statistic to shop_app", "role_powers", "shop_app", "may read pg_statistic"
    ),
    "statements-of-all": Fault("grant pg_monitor to shop_app", "role_powers", "shop_app", "every session's statements"),
    "owner-of-what-a-policy-calls": Fault(
        "alter function shop.tenant() owner to shop_app", "role_owner", "shop_app", "function shop.tenant, which a policy calls"
    ),
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
    "true": Fault(policy("true"), "policy_open", LOOSE, "always true"),
    "true-for-the-role": Fault(policy("true", "to shop_app"), "policy_open", LOOSE, "(role shop_app)"),
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
    "true-in-other-words": Fault(policy("1 = 1"), "policy_open", LOOSE, "always true"),
    "or-true": Fault(policy("tenant_id = shop.tenant() or true"), "policy_open", LOOSE, "always true"),
    "equal-to-itself": Fault(policy("tenant_id = tenant_id"), "policy_open", LOOSE, "always true"),
    "not-null": Fault(policy("tenant_id is not null"), "policy_open", LOOSE, "always true"),
    "blind": Fault(policy("current_setting('shop.tenant_id') <> ''"), "policy_open", LOOSE, "does not look at tenant_id"),
    "or-unset": Fault(
        policy("shop.tenant() is null or tenant_id = shop.tenant()"), "policy_alternative", LOOSE, "OR"
    ),
    "or-in-an-and": Fault(
        policy("(current_user = 'boss' or tenant_id = shop.tenant()) and note <> ''"), "policy_alternative", LOOSE, "OR"
    ),
    "case": Fault(
        policy("case when current_user = 'boss' then true else tenant_id = shop.tenant() end"), "policy_alternative", LOOSE, "CASE"
    ),
    "not-equal": Fault(policy("tenant_id <> shop.tenant()"), "policy_alternative", LOOSE, "another operator"),
    "or-with-a-constant": Fault(policy("tenant_id = shop.tenant() or not false"), "policy_open", LOOSE, "always true"),
    "or-before-an-and": Fault(
        policy("(note = '' or note is null) and (shop.tenant() is null or tenant_id = shop.tenant())"), "policy_alternative", LOOSE, "OR"
    ),
    "equal-to-itself-when-unset": Fault(
        policy("tenant_id = coalesce(shop.tenant(), tenant_id)"), "policy_alternative", LOOSE, "with itself"
    ),
    "equal-to-its-neighbour": Fault(
        "alter table shop.orders add column made_for uuid; " + policy("tenant_id = made_for"), "policy_alternative", LOOSE,
        "with itself",
    ),
    "unknown-passes": Fault(
        policy("(tenant_id = shop.tenant()) is not false"), "policy_alternative", LOOSE, "not true"
    ),
    "unknown-passes-by-coalesce": Fault(
        policy("coalesce(tenant_id = shop.tenant(), true)"), "policy_alternative", LOOSE, "a COALESCE"
    ),
    "negation": Fault(policy("not tenant_id = shop.tenant()"), "policy_alternative", LOOSE, "a NOT"),
    "another-tables-tenant": Fault(
        policy("exists (select from shop.lines where lines.tenant_id = shop.tenant())"), "policy_open", LOOSE, "does not look"
    ),
    "function-of-the-tenant": Fault(
        "create function shop.sees(uuid) returns boolean language sql stable return true; " + policy("shop.sees(tenant_id)"),
        "policy_by_function", LOOSE, "a function decides",
    ),
    "narrowed-only-to-read": Fault(
        policy("true") + "; create policy narrow on shop.orders as restrictive using (tenant_id = shop.tenant())"
        " with check (true)", "policy_open", LOOSE,
    ),
    "coalesce": Fault(
        policy("tenant_id = coalesce(shop.tenant(), gen_random_uuid())"), "policy_unindexable", LOOSE, "COALESCE"
    ),
    "subquery": Fault(policy("tenant_id in (select shop.tenant())"), "policy_unindexable", LOOSE, "subquery"),
    "cast": Fault(
        policy("tenant_id::text = current_setting('shop.tenant_id', true)"), "policy_unindexable", LOOSE, "wrapped"
    ),
    "function-around-the-column": Fault(
        "alter table shop.orders add column code text;" + policy("tenant_id = shop.tenant() and uuid_send(tenant_id) is not null"),
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
    "open-table-elsewhere": Fault(
        "create table public.notes (tenant_id int); alter table public.notes enable row level security;"
        " create policy everybody on public.notes using (true); grant select on public.notes to shop_app", "table_reachable",
        "public.notes", "a policy that is true",
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
    "leakproof": Fault(
        "create function public.tell(text) returns boolean language sql leakproof return true", "function_leakproof",
        "public.tell(text)",
    ),
    "view": Fault("create view shop.open as select id from shop.orders", "view_without_security_invoker", "shop.open"),
    "view-elsewhere": Fault(
        "create view public.open with (security_invoker = off) as select id from shop.orders",
        "view_without_security_invoker", "public.open",
    ),
    "view-of-a-view": Fault(
        "create view public.sound with (security_invoker) as select id from shop.orders;"
        " create view public.open as select id from public.sound", "view_without_security_invoker", "public.open",
    ),
    "materialized-view-of-a-view": Fault(
        "create view public.sound with (security_invoker) as select id from shop.orders;"
        " create materialized view public.copy as select id from public.sound", "materialized_view", "public.copy",
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
    "rule-of-a-view-elsewhere": Fault(
        "create view public.sound with (security_invoker) as select id from shop.orders;"
        " create rule put as on insert to public.sound do instead insert into shop.orders (tenant_id) values (gen_random_uuid())",
        "rule_as_owner", "public.sound: rule put",
    ),
    "create-in-schema": Fault("grant create on schema shop to public", "schema_create", "shop", "shop_app"),
    "preset-tenant": Fault(
        "alter role shop_app set tenantry.tenant_id = '00000000-0000-0000-0000-000000000001'", "tenant_preset", "shop_app"
    ),
    "preset-tenant-of-the-products-own": Fault(
        "do $$ begin execute format('alter database %I set shop.tenant_id = %L', current_database(), gen_random_uuid()); end $$",
        "tenant_preset", "{database}", "sets shop.tenant_id",
    ),
    "old-view-of-statistics": Fault(
        "set local allow_system_table_mods = on; do $$ begin execute 'create or replace view pg_catalog.pg_stats_ext_exprs as '"
        " || replace(pg_get_viewdef('pg_stats_ext_exprs'::regclass), 'pg_has_role(c.relowner, ''USAGE''::text)', 'true'); end $$",
        "statistics_exposed", "pg_catalog.pg_stats_ext_exprs", "CVE-2024-4317",
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
