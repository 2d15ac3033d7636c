"""The catalogs: whatever table, index, function or view a migration adds, it is under the same rules."""

import psycopg
import pytest

# Where the rule does not hold, and why.
EXEMPT_INDEXES = {
    "tenants_slug_key",  # an operator names tenants by slug
    "alembic_version_pkc",  # no tenant's table
    # Not unique; the scheduler walks them over all tenants.
    "workflow_runs_ready", "workflow_runs_waiting", "workflow_runs_open", "job_queue_ready", "job_queue_waiting",
}  # fmt: skip
HAVE_POLICIES_OF_THEIR_OWN = {"tenants", "alembic_version"}
WRITABLE = {"SELECT", "INSERT", "UPDATE", "DELETE"}
GROUPS = ("tenantry_tenant", "tenantry_scheduler", "tenantry_operator")
LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
IS_TENANTS = "(tenant_id = tenantry.current_tenant_id())"


def test_every_table_has_row_level_security_enabled_and_forced(root: psycopg.Connection) -> None:
    bare = root.execute(
        "select relname from pg_class where relnamespace = 'tenantry'::regnamespace and relkind in ('r', 'p')"
        " and not (relrowsecurity and relforcerowsecurity)"
    ).fetchall()
    assert bare == []


def test_every_table_has_the_one_tenant_policy(root: psycopg.Connection) -> None:
    rows = root.execute(
        "select tablename, policyname, permissive, roles::text[], cmd, qual, with_check from pg_policies"
        " where schemaname = 'tenantry'"
    ).fetchall()
    tables = {
        name for (name,) in root.execute("select tablename from pg_tables where schemaname = 'tenantry'").fetchall()
    }
    isolated = {
        table
        for table, _name, _permissive, roles, command, using, check in rows
        if (roles, command, using, check) == (["public"], "ALL", IS_TENANTS, IS_TENANTS)
    }
    assert isolated == tables - HAVE_POLICIES_OF_THEIR_OWN
    # All others are somebody's of ours, never everybody's, and none but the operator's and the owner's write.
    for table, name, _permissive, roles, command, using, _check in rows:
        if using == IS_TENANTS:
            assert roles in (["public"], ["tenantry_tenant"])
        elif table != "alembic_version":
            assert (roles, command) in ((["tenantry_scheduler"], "SELECT"), (["tenantry_operator"], "ALL")), name
        else:
            assert (roles, command) in ((["public"], "SELECT"), (["tenantry_owner"], "ALL")), name


def test_every_tenants_column_is_filled_and_first(root: psycopg.Connection) -> None:
    rows = root.execute(
        "select relname, attname, attnotnull, pg_get_expr(adbin, adrelid) from pg_class"
        " join pg_attribute on attrelid = pg_class.oid and attnum = 1"
        " left join pg_attrdef on adrelid = attrelid and adnum = attnum"
        " where relnamespace = 'tenantry'::regnamespace and relkind in ('r', 'p')"
    ).fetchall()
    for table, first, is_required, default in rows:
        if table != "alembic_version":
            assert (first, is_required) == ("tenant_id", True), table
            assert default == (None if table == "tenants" else "tenantry.current_tenant_id()"), table


def test_every_index_begins_with_the_tenant(root: psycopg.Connection) -> None:
    rows = root.execute(
        "select relname, indisunique, pg_get_indexdef(indexrelid, 1, true) from pg_index"
        " join pg_class on pg_class.oid = indexrelid where relnamespace = 'tenantry'::regnamespace"
    ).fetchall()
    strangers = {name for name, _is_unique, first in rows if first != "tenant_id"}
    assert strangers <= EXEMPT_INDEXES
    assert {name for name, is_unique, first in rows if is_unique and first != "tenant_id"} <= {
        "tenants_slug_key",
        "alembic_version_pkc",
    }


def test_every_table_has_a_primary_key(root: psycopg.Connection) -> None:
    bare = root.execute(
        "select relname from pg_class where relnamespace = 'tenantry'::regnamespace and relkind in ('r', 'p')"
        " and not exists (select from pg_index where indrelid = pg_class.oid and indisprimary)"
    ).fetchall()
    assert bare == []


def test_foreign_keys_stay_within_a_tenant(root: psycopg.Connection) -> None:
    rows = root.execute(
        "select conname, pg_get_constraintdef(oid) from pg_constraint"
        " where connamespace = 'tenantry'::regnamespace and contype = 'f'"
    ).fetchall()
    assert [name for name, text in rows if "(tenant_id, " not in text.split("REFERENCES")[0]] == []


def test_functions_run_as_their_caller_and_look_where_they_should(root: psycopg.Connection) -> None:
    rows = root.execute(
        "select proname, prosecdef, prosqlbody is not null, coalesce(array_to_string(proconfig, ' '), '') from pg_proc"
        " where pronamespace = 'tenantry'::regnamespace"
    ).fetchall()
    assert len(rows) >= 2
    for name, is_definer, is_bound_at_creation, settings in rows:
        assert not is_definer, name
        assert is_bound_at_creation or "search_path=" in settings, name


def test_functions_that_switch_plans_off_are_not_compiled(root: psycopg.Connection) -> None:
    """Before Postgres 18 such a plan costs 10^10, which JIT takes for work: a claim of one job took seconds."""
    rows = root.execute(
        "select proname, 'jit=off' = any(proconfig) from pg_proc where pronamespace = 'tenantry'::regnamespace"
        r" and exists (select from unnest(proconfig) as setting where setting like 'enable\_%=off')"
    ).fetchall()
    assert "claim_jobs_v1" in dict(rows)
    assert [name for name, is_off in rows if not is_off] == []


def test_views_run_as_their_caller_and_nothing_keeps_copies(root: psycopg.Connection) -> None:
    rows = root.execute(
        "select relname, relkind::text, coalesce(array_to_string(reloptions, ' '), '') from pg_class"
        " where relnamespace = 'tenantry'::regnamespace and relkind in ('v', 'm', 'f', 'S')"
    ).fetchall()
    assert [row for row in rows if row[1] != "v" or "security_invoker=true" not in row[2]] == []


def test_statuses_are_text_because_enums_cannot_use_an_index(root: psycopg.Connection) -> None:
    assert root.execute("select typname from pg_type where typtype = 'e'").fetchall() == []


@pytest.mark.parametrize("role", [*GROUPS, *LOGINS, "public"])
def test_grants_hold_nothing_that_passes_policies_by(root: psycopg.Connection, role: str) -> None:
    rows = root.execute(
        "select relname, acl.privilege_type, acl.is_grantable from pg_class,"
        " aclexplode(relacl) as acl where relnamespace = 'tenantry'::regnamespace"
        " and acl.grantee = case when %(role)s = 'public' then 0 else to_regrole(%(role)s) end",
        {"role": role},
    ).fetchall()
    whole = {(table, privilege) for table, privilege, _ in rows}
    assert not any(is_grantable for *_, is_grantable in rows)
    assert {privilege for _, privilege in whole} <= WRITABLE
    if role == "public":
        assert whole == set()
    elif role in LOGINS or role == "tenantry_scheduler":
        assert whole == {("alembic_version", "SELECT")}
    elif role == "tenantry_operator":
        assert {table for table, _ in whole} == {"alembic_version", "tenants", "tenant_limits"}


def test_nobody_creates_in_the_schema(root: psycopg.Connection) -> None:
    for role in (*GROUPS, *LOGINS, "public"):
        row = root.execute("select has_schema_privilege(%s, 'tenantry', 'create')", (role,)).fetchone()
        assert row == (False,), role
