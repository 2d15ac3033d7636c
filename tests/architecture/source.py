"""The product's source as data: its Python modules with their syntax trees, and its SQL sections."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("tenancy", "kernel", "service", "migrations")


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file: its path within the checkout, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def modules(*packages: str) -> tuple[Module, ...]:
    """Read every module of the packages (all of ours by default), in the order of their paths."""
    return tuple(_read(path) for package in packages or PACKAGES for path in _files(package, "*.py"))


@cache
def sql_files(*packages: str) -> tuple[Path, ...]:
    """Find the .sql files with sections; migrations are whole scripts and have none."""
    return tuple(path for package in packages or PACKAGES[:3] for path in _files(package, "*.sql"))


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string in the code with its line, pieces of f-strings included, docstrings left out."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def methods_called(tree: ast.AST) -> Iterator[tuple[int, str, int]]:
    """Every call on something: line, last name, number of arguments; `loop.create_task(body)` gives (…, create_task, 1)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, node.func.attr, len(node.args) + len(node.keywords)


def _files(package: str, pattern: str) -> list[Path]:
    return sorted((CHECKOUT / package).rglob(pattern))


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(str(path.relative_to(CHECKOUT)), text, ast.parse(text, filename=str(path)))
