"""What the documentation says works: its Python runs, its make targets exist, no line names a machine."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.architecture.source import CHECKOUT

PAGES = tuple(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:bash|sh|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(PYTHON.findall(page.read_text(encoding="utf-8")), start=1)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "documentation_example.py"
    path.write_text(example, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("documentation_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "documentation_example", module)
    spec.loader.exec_module(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    named = {
        target
        for block in SHELL.findall(page.read_text())
        for target in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)
    }
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_pin_has_a_hash_and_no_download_address(name: str) -> None:
    lines = (CHECKOUT / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []
    assert [pin for pin in pins if "://" in pin or "--index" in pin or "--find-links" in pin] == []


def test_what_is_installed_is_what_is_pinned_for_the_product() -> None:
    pinned = {_pin(name) for name in (CHECKOUT / "requirements.txt").read_text().splitlines() if "==" in name}
    for_tests = {_pin(name) for name in (CHECKOUT / "requirements-dev.txt").read_text().splitlines() if "==" in name}
    assert pinned - for_tests == set()


def _pin(line: str) -> str:
    return line.split(" ", maxsplit=1)[0].split(";", maxsplit=1)[0]
