"""What the documentation says works: its Python runs, its make targets exist, no line names a machine."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import CHECKOUT
from tests.support.environment import DatabaseUrls

FILE = re.compile(r"^# (\w+)\.py\n")
PAGES = tuple(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:bash|sh|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(PYTHON.findall(page.read_text(encoding="utf-8")), start=1)
]


NAMED = {
    match[1]: block for block in PYTHON.findall(PAGES[0].read_text(encoding="utf-8")) if (match := FILE.match(block))
}


@pytest.fixture
def named_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the README's examples that have a file's name, from which others import them."""
    for name, block in NAMED.items():
        (tmp_path / f"{name}.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in NAMED:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_examples_run(example: str, named_examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = named_examples / "documentation_example.py"
    path.write_text(example, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("documentation_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "documentation_example", module)
    spec.loader.exec_module(module)


# Nine seconds by itself, of processor time: ten times that beside ten others.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("test_")])
def test_examples_of_tests_pass(name: str, named_examples: Path, database_urls: DatabaseUrls) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", f"{name}.py"]
    environment = {**os.environ, "TENANTRY_DATABASE_URL": database_urls.worker, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, cwd=named_examples, env=environment, capture_output=True, text=True, check=False, timeout=360
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    named = {
        target
        for block in SHELL.findall(page.read_text())
        for target in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)
    }
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "tests/helm/requirements.txt"])
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
