"""The plugin in a product's own test session: found by pytest, one test a check, quiet where nobody asked for it."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import psycopg
import pytest

from tests.architecture.source import CHECKOUT
from tests.support.environment import DatabaseUrls

PLUGIN = "tenancy.isolation.plugin"
MODULE = """
from tenancy.isolation import Isolation

test_isolation = Isolation(
    superuser_url={url!r}, login="shopkeeper", schemas=["shop"], bind=["select set_config('shop.tenant', %(tenant)s, true)"],
    shared={{"shop.countries": "the same for everybody"}}, values={{"shop.countries": {{"code": "XX"}}}},
    commands=["select", "update"], situations=["other"],
)
"""


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture
def product(tmp_path: Path, shop: DatabaseUrls) -> Path:
    """A product's folder with the suite in a test module."""
    (tmp_path / "test_tables.py").write_text(MODULE.format(url=shop.direct))
    return tmp_path


def test_it_is_published_under_its_modules_name() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    assert callable(import_module(PLUGIN).pytest_pycollect_makeitem)


def test_every_table_is_a_test_and_others_are_left_alone(product: Path) -> None:
    (product / "test_other.py").write_text("class Isolation: pass\nisolation = Isolation()\ndef test_it(): pass\n")
    sound = _pytest(product, "-v", "-W", "error", "-p", PLUGIN)
    assert sound.returncode == 0, sound.stdout + sound.stderr
    for name in (
        "role shopkeeper::is bound by policies",
        "shop.orders::select[other]",
        "shop.events_old::update[other]",
    ):
        assert f"test_tables.py::test_isolation::{name} PASSED" in sound.stdout
    assert "test_other.py::test_it PASSED" in sound.stdout
    assert sound.stdout.count("test_other.py::") == 1


def test_a_leak_fails_its_own_test_and_a_database_that_is_away_is_an_error(product: Path, shop: DatabaseUrls) -> None:
    (product / "test_away.py").write_text(MODULE.format(url="postgresql://nobody@127.0.0.1:1/nowhere"))
    with psycopg.connect(shop.direct, autocommit=True) as connection:
        connection.execute("alter table shop.lines disable row level security")
    leaking = _pytest(
        product, "-p", PLUGIN, "--continue-on-collection-errors", "-k", "lines and select or orders and update"
    )
    assert leaking.returncode == 1
    assert "1 failed, 1 passed" in leaking.stdout
    assert "LeakError: shop.lines: select[other]" in leaking.stdout
    assert "1 error" in leaking.stdout
    assert "ERROR test_away.py" in leaking.stdout


def test_without_the_plugin_no_test_is_lost_in_silence(product: Path) -> None:
    unplugged = _pytest(product, "-p", f"no:{PLUGIN}")
    assert "cannot collect 'test_isolation'" in unplugged.stdout
    assert unplugged.returncode == 5


def test_the_ground_floor_needs_no_pytest() -> None:
    code = "import sys, tenancy, tenancy.isolation; sys.exit('pytest' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60).returncode == 0
