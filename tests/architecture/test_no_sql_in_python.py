"""SQL lives in .sql files: no statement is written, or put together, in Python."""

import ast
import re

import pytest

from tests.architecture.source import Module, modules, strings

STATEMENT = re.compile(
    r"^\s*(select\s+\S|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s|with\s+\w+\s+as\s*\(|truncate\s|set\s+(local|session|role)\s"
    r"|create\s+(table|index|policy|role|function|schema|database)\s|alter\s+(table|role|default)\s|grant\s+\S+.*\sto\s|revoke\s+\S+.*\sfrom\s)",
    re.IGNORECASE,
)
# What puts names of tables, roles and databases into statements: the development server, and the tests of any product's tables.
NAMES_ARE_GIVEN = ("service/embedded", "tenancy/isolation")
CHECKED = [module for module in modules("tenancy", "kernel", "service") if not module.path.startswith(NAMES_ARE_GIVEN)]


@pytest.mark.parametrize("module", CHECKED, ids=lambda module: module.path)
def test_no_statement_is_written_in_python(module: Module) -> None:
    assert [f"{module.path}:{line} {text[:60]!r}" for line, text in strings(module.tree) if STATEMENT.match(text)] == []


@pytest.mark.parametrize("module", CHECKED, ids=lambda module: module.path)
def test_no_statement_is_put_together_from_pieces(module: Module) -> None:
    built = [
        f"{module.path}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.JoinedStr)
        and any(isinstance(part, ast.Constant) and STATEMENT.match(str(part.value)) for part in node.values)
    ]
    assert built == []
