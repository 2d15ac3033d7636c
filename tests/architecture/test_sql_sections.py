"""Every SQL section is accepted and planned, as its role, by the oldest and the newest Postgres that we support."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pglast import ast as sql_ast
from pglast import parse_sql
from pglast.visitors import Ancestor, Visitor

from tenancy import Statement, load_sql
from tests.architecture.source import CHECKOUT, sql_files
from tests.support.environment import Cluster, default_version

VERSIONS = (15, 18)
CROWD = Path(__file__).with_name("crowd.sql")
SECTIONS: tuple[Statement, ...] = tuple(statement for path in sql_files() for statement in load_sql(str(path)).values())
PLANNED = (sql_ast.SelectStmt, sql_ast.InsertStmt, sql_ast.UpdateStmt, sql_ast.DeleteStmt, sql_ast.MergeStmt)
# Tables that grow without end or change all the time: read by index, always.
HOT = {
    "workflow_runs", "workflow_run_tags", "workflow_stages", "job_queue", "outbox_events", "idempotency_keys",
    "workflow_logs", "workflow_annotations", "workflow_steps", "workflow_blobs", "spans",
}  # fmt: skip
MIGRATION_TABLE = "alembic_version"
TENANTS_OWN = re.compile(r"\btenant_id\s*=\s*(any\s*\(\s*)?:tenant_id::uuid", re.IGNORECASE)
DUE_CHECK = re.compile(r"\b(available_at|expires_at|rank)\b[^)]*(<=?|>=?)")


def _id(statement: Statement) -> str:
    return f"{statement.source.rsplit('/', 1)[-1]}:{statement.name}"


class References(Visitor):
    """Collects the tables that a statement names, the names of its CTEs, and stars in its own target list."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[str | None, str]] = []
        self.ctes: set[str] = set()

    def visit_RangeVar(self, ancestors: Ancestor, node: sql_ast.RangeVar) -> None:  # noqa: N802 (the name is the node's)
        # `for update of run` names an alias, not a table.
        if sql_ast.LockingClause not in ancestors:
            self.tables.append((node.schemaname, node.relname))

    def visit_CommonTableExpr(self, _ancestors: object, node: sql_ast.CommonTableExpr) -> None:  # noqa: N802 (the name is the node's)
        self.ctes.add(node.ctename)


def _references(statement: Statement) -> References:
    found = References()
    found(parse_sql(statement.numbered))
    return found


def _node(statement: Statement) -> sql_ast.Node:
    (raw,) = parse_sql(statement.numbered)
    return raw.stmt


def _is_planned(statement: Statement) -> bool:
    return isinstance(_node(statement), PLANNED)


PLANNED_SECTIONS = [statement for statement in SECTIONS if _is_planned(statement)]
TENANT_SECTIONS = [
    statement
    for statement in PLANNED_SECTIONS
    if statement.role == "tenantry_tenant"
    and any(schema == "tenantry" and table != MIGRATION_TABLE for schema, table in _references(statement).tables)
]


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"postgres{version}")
def server(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A superuser's connection to a migrated database of the version, as full as in production."""
    version: int = request.param
    is_ours = version == default_version()
    cluster: Cluster = request.getfixturevalue("cluster") if is_ours else Cluster(version)
    urls = cluster.create()
    with psycopg.connect(urls.direct) as connection:
        connection.execute(CROWD.read_bytes())
        connection.commit()
        yield connection
    cluster.drop(urls) if is_ours else cluster.close()


@pytest.mark.parametrize("statement", SECTIONS, ids=_id)
def test_tables_are_named_with_their_schema(statement: Statement) -> None:
    found = _references(statement)
    bare = [table for schema, table in found.tables if schema is None and table not in found.ctes]
    assert bare == []


@pytest.mark.parametrize("statement", SECTIONS, ids=_id)
def test_columns_are_listed(statement: Statement) -> None:
    node = _node(statement)
    targets = getattr(node, "targetList", None) or ()
    returned = (
        getattr(node, "returningList", None) or getattr(getattr(node, "returningClause", None), "exprs", None) or ()
    )
    stars = [
        target
        for target in (*targets, *returned)
        if isinstance(target.val, sql_ast.ColumnRef) and isinstance(target.val.fields[-1], sql_ast.A_Star)
    ]
    assert stars == []


@pytest.mark.parametrize("statement", SECTIONS, ids=_id)
def test_keywords_are_lower_case(statement: Statement) -> None:
    without_strings = re.sub(r"'[^']*'", "''", statement.text)
    assert (
        re.findall(r"\b(?:SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|RETURNING|VALUES|JOIN|WITH|AND|OR)\b", without_strings)
        == []
    )


@pytest.mark.parametrize("statement", TENANT_SECTIONS, ids=_id)
def test_the_tenant_is_said_in_words(statement: Statement) -> None:
    assert "tenant_id" in statement.parameters
    if not isinstance(_node(statement), sql_ast.InsertStmt):
        assert TENANTS_OWN.search(statement.text) is not None


@pytest.mark.parametrize("statement", PLANNED_SECTIONS, ids=_id)
def test_it_is_prepared_and_planned_as_its_role(server: psycopg.Connection, statement: Statement) -> None:
    _check_plan(statement, _plan(server, statement))


def _check_plan(statement: Statement, plan: Mapping[str, Any]) -> None:
    """Refuse a plan that reads a hot table other than by tenant and index, or that looks for what is due row by row."""
    for scan in _nodes(plan):
        table = scan.get("Relation Name")
        if table in HOT:
            assert scan["Node Type"] != "Seq Scan", f"sequential scan of {table}"
            assert not DUE_CHECK.search(scan.get("Filter", "")), f"due-check outside of the index: {scan['Filter']}"
        if "Index Name" in scan and statement.role == "tenantry_tenant":
            assert "tenant_id" in scan.get("Index Cond", ""), f"no look-up by tenant in {scan['Index Name']}"


def test_the_check_of_plans_bites(server: psycopg.Connection) -> None:
    numbered = "select run_id from tenantry.workflow_runs where tenant_id = $1::uuid and available_at <= tenantry.now()"
    text = numbered.replace("$1", ":tenant_id")
    slow = Statement("slow", "here.sql", "tenantry_tenant", text, ("tenant_id",), numbered, numbered)
    with pytest.raises(AssertionError, match="due-check"):
        _check_plan(slow, _plan(server, slow))


def _plan(server: psycopg.Connection, statement: Statement) -> Mapping[str, Any]:
    """EXPLAIN the section's generic plan as its role, bound to a tenant; everything is rolled back."""
    nulls = ", ".join(["null"] * len(statement.parameters))
    try:
        server.execute("select set_config('role', %s, true)", (statement.role,))
        server.execute("select set_config('tenantry.tenant_id', gen_random_uuid()::text, true)")
        server.execute("set local plan_cache_mode = force_generic_plan")
        server.execute(f"prepare section as {statement.numbered}".encode())
        explain = f"explain (format json, costs off) execute section{f'({nulls})' if nulls else ''}"
        row = server.execute(explain.encode()).fetchone()
        assert row is not None
        plan: Mapping[str, Any] = row[0][0]["Plan"]
        return plan
    finally:
        server.rollback()
        server.execute("deallocate all")
        server.commit()


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def test_every_sql_file_belongs_to_a_module() -> None:
    strays = [str(path.relative_to(CHECKOUT)) for path in sql_files() if not path.with_suffix(".py").exists()]
    assert strays == []


def test_there_are_sections() -> None:
    assert len(SECTIONS) > 0
