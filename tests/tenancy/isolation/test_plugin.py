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


def test_every_table_is_a_test_and_a_leak_fails_its_own(product: Path, shop: DatabaseUrls) -> None:
    sound = _pytest(product, "-v", "-p", PLUGIN)
    assert sound.returncode == 0, sound.stdout
    for name in (
        "role shopkeeper::is bound by policies",
        "shop.orders::select[other]",
        "shop.events_old::update[other]",
    ):
        assert f"test_tables.py::test_isolation::{name} PASSED" in sound.stdout
    with psycopg.connect(shop.direct, autocommit=True) as connection:
        connection.execute("alter table shop.lines disable row level security")
    leaking = _pytest(product, "-p", PLUGIN, "-k", "lines and select or orders and update")
    assert leaking.returncode == 1
    assert "1 failed, 1 passed" in leaking.stdout
    assert "LeakError: shop.lines: select[other]" in leaking.stdout
    assert "Traceback" not in leaking.stdout


def test_a_database_that_is_away_is_an_error_and_no_test_is_lost_in_silence(product: Path) -> None:
    (product / "test_tables.py").write_text(MODULE.format(url="postgresql://nobody@127.0.0.1:1/nowhere"))
    assert _pytest(product, "-p", PLUGIN).returncode == 2
    unplugged = _pytest(product, "-p", f"no:{PLUGIN}")
    assert "cannot collect 'test_isolation'" in unplugged.stdout
    assert unplugged.returncode == 5


def test_it_leaves_others_alone(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("class Isolation: pass\nisolation = Isolation()\ndef test_it(): pass\n")
    alone = _pytest(tmp_path, "-q", "-W", "error", "-p", PLUGIN)
    assert (alone.returncode, "1 passed" in alone.stdout) == (0, True), alone.stdout + alone.stderr


def test_the_ground_floor_needs_no_pytest() -> None:
    code = "import sys, tenancy, tenancy.isolation; sys.exit('pytest' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60).returncode == 0
