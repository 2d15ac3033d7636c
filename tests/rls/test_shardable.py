"""What a cluster that is sharded by tenant asks of statements, held against every section and every function of the schema.

The rules of the catalogs (keys, foreign keys, policies, triggers) are in `tenancy/distribution.sql`, which
`tests/tenancy/test_distribution.py` tests.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pglast import ast as sql_ast
from pglast import parse_plpgsql, parse_sql
from pglast.visitors import Ancestor, Visitor

from tenancy import load_sql
from tests.architecture.source import sql_files
from tests.support.environment import DatabaseUrls

# Where no tenant's rows are written or locked: whoever looks over all tenants, and the catalogs.
OVER_TENANTS = {"tenantry_scheduler", "tenantry_operator", "tenantry_owner"}


@pytest.fixture(scope="module")
def root(database_urls: DatabaseUrls) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_urls.direct) as connection:
        yield connection


@pytest.fixture(scope="module")
def statements(root: psycopg.Connection) -> dict[str, sql_ast.Node]:
    """Every statement that is sent, and every one that a function of the schema runs, by where it stands."""
    found: dict[str, sql_ast.Node] = {}
    for path in sql_files():
        for section in load_sql(str(path)).values():
            if section.role not in OVER_TENANTS:
                found[f"{path.name}:{section.name}"] = parse_sql(section.numbered)[0].stmt
    rows = root.execute(
        "select p.proname, pg_get_functiondef(p.oid) from pg_proc p join pg_language l on l.oid = p.prolang"
        " where p.pronamespace = 'tenantry'::regnamespace and l.lanname = 'plpgsql' order by 1"
    ).fetchall()
    for name, definition in rows:
        if name.startswith("due_tenants"):
            continue
        # The parser knows types of pg_catalog and public alone; of a variable's it only wants that there is one.
        known = definition.replace("tenantry.step_op[]", "text[]")
        for number, query in enumerate(_queries(parse_plpgsql(known))):
            found[f"{name}:{number}"] = parse_sql(query)[0].stmt
    return found


def _queries(tree: Any) -> Iterator[str]:
    """Yield the statements of a parsed function; expressions (parse mode 2 and above) are none."""
    if isinstance(tree, dict):
        expression = tree.get("PLpgSQL_expr")
        if expression is not None and expression.get("parseMode", 0) == 0:
            yield expression["query"]
        for value in tree.values():
            yield from _queries(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _queries(value)


class Traits(Visitor):
    """What a statement does that a cluster does not, or does only under a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.inserts_in_ctes = 0
        self.functions_that_write: set[str] = set()
        self.locks: list[sql_ast.SelectStmt] = []

    def visit_InsertStmt(self, ancestors: Ancestor, node: sql_ast.InsertStmt) -> None:  # noqa: N802 (the name is the node's)
        self.inserts_in_ctes += sql_ast.CommonTableExpr in ancestors
        if node.onConflictClause is not None:
            self.functions_that_write |= _functions(node.onConflictClause)

    def visit_UpdateStmt(self, _ancestors: Ancestor, node: sql_ast.UpdateStmt) -> None:  # noqa: N802 (the name is the node's)
        self.functions_that_write |= _functions(node)

    def visit_DeleteStmt(self, _ancestors: Ancestor, node: sql_ast.DeleteStmt) -> None:  # noqa: N802 (the name is the node's)
        self.functions_that_write |= _functions(node)

    def visit_SelectStmt(self, _ancestors: Ancestor, node: sql_ast.SelectStmt) -> None:  # noqa: N802 (the name is the node's)
        if node.lockingClause:
            self.locks.append(node)


class Calls(Visitor):
    """The names of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_FuncCall(self, _ancestors: Ancestor, node: sql_ast.FuncCall) -> None:  # noqa: N802 (the name is the node's)
        self.names.add(node.funcname[-1].sval)


def _functions(node: sql_ast.Node) -> set[str]:
    calls = Calls()
    calls(node)
    return calls.names


def _traits(node: sql_ast.Node) -> Traits:
    traits = Traits()
    traits((sql_ast.RawStmt(stmt=node),))
    return traits


class Conditions(Visitor):
    """Whether somewhere a column `tenant_id` is compared for equality."""

    def __init__(self) -> None:
        super().__init__()
        self.has_tenant = False

    def visit_A_Expr(self, _ancestors: Ancestor, node: sql_ast.A_Expr) -> None:  # noqa: N802 (the name is the node's)
        if node.name[-1].sval != "=":
            return
        for side in (node.lexpr, node.rexpr):
            if isinstance(side, sql_ast.ColumnRef) and side.fields[-1].sval == "tenant_id":
                self.has_tenant = True


def _within_a_tenant(lock: sql_ast.SelectStmt) -> bool:
    conditions = Conditions()
    conditions(lock.whereClause or ())
    return conditions.has_tenant


def _volatile(root: psycopg.Connection, names: set[str]) -> set[str]:
    rows = root.execute(
        "select distinct proname from pg_proc where proname = any(%s) and provolatile = 'v'"
        " and pronamespace in ('pg_catalog'::regnamespace, 'tenantry'::regnamespace)",
        ([*names],),
    ).fetchall()
    return {name for (name,) in rows}


def test_there_is_something_to_look_at(statements: dict[str, sql_ast.Node]) -> None:
    assert len(statements) > 100
    assert any(name.startswith("write_changes_v1:") for name in statements)
    assert sum(len(_traits(node).locks) for node in statements.values()) > 5


def test_no_insert_stands_in_a_cte(statements: dict[str, sql_ast.Node]) -> None:
    assert [name for name, node in statements.items() if _traits(node).inserts_in_ctes] == []


def test_updates_deletes_and_conflicts_call_nothing_volatile(
    root: psycopg.Connection, statements: dict[str, sql_ast.Node]
) -> None:
    broken = {name: _volatile(root, _traits(node).functions_that_write) for name, node in statements.items()}
    assert {name: found for name, found in broken.items() if found} == {}


def test_rows_are_locked_within_one_tenant(statements: dict[str, sql_ast.Node]) -> None:
    loose = [name for name, node in statements.items() if not all(map(_within_a_tenant, _traits(node).locks))]
    assert loose == []


@pytest.mark.parametrize(
    ("statement", "trait"),
    [
        ("with made as (insert into a.b values (1) returning x) select x from made", "insert"),
        ("update a.b set x = clock_timestamp() where tenant_id = 1", "volatile"),
        ("insert into a.b values (1) on conflict (x) do update set y = gen_random_uuid()", "volatile"),
        ("delete from a.b where x = random()", "volatile"),
        ("select x from a.b where x = 1 for update skip locked", "lock"),
        ("select x from (select y from a.b where tenant_id > 1 for update) as c", "lock"),
    ],
)
def test_the_checks_bite(root: psycopg.Connection, statement: str, trait: str) -> None:
    traits = _traits(parse_sql(statement)[0].stmt)
    found = {
        "insert": traits.inserts_in_ctes > 0,
        "volatile": bool(_volatile(root, traits.functions_that_write)),
        "lock": not all(map(_within_a_tenant, traits.locks)),
    }
    assert [name for name, is_broken in found.items() if is_broken] == [trait]


def test_the_statements_of_functions_are_found() -> None:
    definition = (
        "create function f(a int) returns void language plpgsql as $$ begin if a > 1 then"
        " update b.c set d = 1 where e = a; end if; return; end $$"
    )
    assert list(_queries(parse_plpgsql(definition))) == ["update b.c set d = 1 where e = a"]
