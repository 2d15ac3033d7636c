"""The guide for products (`tenancy/README.md`): its SQL and Python are executed, from an empty database to a charged order."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tenancy.pools import sqlalchemy_url
from tests.support.environment import Cluster, DatabaseUrls

GUIDE = (Path(__file__).parents[2] / "tenancy" / "README.md").read_text()
BLOCKS = dict(re.findall(r"```(?:sql|python)\n(?:--|#) (\S+)\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture
def urls(cluster: Cluster) -> AsyncIterator[DatabaseUrls]:
    """A database with the product's tables and the engine's schema."""
    made = cluster.create()
    with psycopg.connect(made.direct, autocommit=True) as product:
        product.execute("drop role if exists shop_app")
        for name in ("product.sql", "membership.sql", "tenant.sql"):
            product.execute(BLOCKS[name].encode())
    yield made
    with psycopg.connect(made.direct, autocommit=True) as product:
        product.execute("drop owned by shop_app")
        product.execute("drop role shop_app")
    cluster.drop(made)


@pytest.fixture
async def engine(urls: DatabaseUrls) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(
        sqlalchemy_url(urls.straight("shop_app"), "asyncpg"),
        poolclass=NullPool,
        connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0},
    )
    yield made
    await made.dispose()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The guide's modules, importable by their names."""
    made: dict[str, ModuleType] = {}
    for name in ("shop_workflows", "shop", "test_shop"):
        made[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made[name])
        exec(compile(BLOCKS[f"{name}.py"], f"{name}.py", "exec"), made[name].__dict__)
    return made


async def test_the_guides_own_test_passes(engine: AsyncEngine, modules: dict[str, ModuleType]) -> None:
    await modules["test_shop"].test_an_order_is_charged(engine, uuid4())


async def test_order_and_run_are_one_and_each_tenants_own(
    engine: AsyncEngine, modules: dict[str, ModuleType], urls: DatabaseUrls
) -> None:
    mine, theirs = uuid4(), uuid4()
    run_id = await modules["shop"].place_order(engine, mine, "o-1", 10)
    other = await modules["shop"].place_order(engine, theirs, "o-1", 20)
    assert run_id != other
    with pytest.raises(Exception, match="duplicate key"):
        await modules["shop"].place_order(engine, mine, "o-1", 10)
    async with engine.begin() as connection:
        await connection.execute(text("select set_config('shop.tenant', :tenant, true)"), {"tenant": str(mine)})
        seen = (await connection.execute(text("select run_id from tenantry.workflow_runs"))).scalars().all()
        assert seen == [run_id]
        assert (await connection.execute(text(BLOCKS["enqueue.sql"]))).scalar_one() == run_id


async def test_without_a_tenant_nothing_is_seen_or_written(engine: AsyncEngine, modules: dict[str, ModuleType]) -> None:
    await modules["shop"].place_order(engine, uuid4(), "o-1", 10)
    async with engine.begin() as connection:
        assert (await connection.execute(text("select count(*) from tenantry.workflow_runs"))).scalar_one() == 0


def test_the_guides_isolation_tests_pass_and_bite(urls: DatabaseUrls, tmp_path: Path) -> None:
    (tmp_path / "test_isolation.py").write_text(BLOCKS["test_isolation.py"])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tenancy.isolation.plugin", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SHOP_SUPERUSER_URL": urls.direct,
        "SHOP_DATABASE_URL": urls.straight("shop_app"),
    }

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
        )

    sound = run()
    assert sound.returncode == 0, sound.stdout + sound.stderr
    with psycopg.connect(urls.direct, autocommit=True) as product:
        product.execute("alter table shop.orders add unique (order_id)")
    leaking = run()
    assert leaking.returncode == 1
    assert re.findall(r"^FAILED (.*?)(?: - .*)?$", leaking.stdout, re.MULTILINE) == [
        "test_isolation.py::test_isolation::shop.orders::keys[other]"
    ]
