"""Modules and functions stay small, folders are named for what they hold, public names are listed."""

import ast
import importlib
import subprocess
import types

import pytest

from tests.architecture.source import CHECKOUT, PACKAGES, Module, modules

MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 60
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "core", "base", "lib", "misc"}
TOP_LEVEL = {
    "kernel", "service", "tenancy", "migrations", "tests", "helm", ".ci",
    "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "Dockerfile", ".dockerignore",
    ".gitignore", "requirements.txt", "requirements-dev.txt",
}  # fmt: skip


def _id(module: Module) -> str:
    return module.path


@pytest.mark.parametrize("module", modules(), ids=_id)
def test_a_module_has_at_most_400_lines(module: Module) -> None:
    assert len(module.text.splitlines()) <= MOST_LINES_OF_A_MODULE


@pytest.mark.parametrize("module", modules(), ids=_id)
def test_a_function_has_at_most_60_lines(module: Module) -> None:
    too_long = [
        f"{module.path}:{node.lineno} {node.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]
    assert too_long == []


@pytest.mark.parametrize("module", modules(), ids=_id)
def test_a_module_says_what_it_owns(module: Module) -> None:
    assert ast.get_docstring(module.tree) is not None


def test_no_folder_and_no_module_is_called_utils() -> None:
    parts = {part for module in modules() for part in module.name.split(".")}
    assert parts & NAMES_THAT_SAY_NOTHING == set()


@pytest.mark.parametrize("name", ["kernel", "tenancy", "migrations"])
def test_all_lists_the_public_names_in_order(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert listed == sorted(listed)
    assert [public for public in listed if not hasattr(module, public)] == []
    there = {
        public
        for public, value in vars(module).items()
        if not public.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert there - set(listed) == set()


def test_the_top_level_holds_only_what_tools_expect_there() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("no git checkout")
    assert {line.split("/")[0] for line in tracked.stdout.splitlines()} - TOP_LEVEL == set()


def test_packages_of_the_wheel_are_the_layers() -> None:
    assert all((CHECKOUT / package).is_dir() for package in PACKAGES)
