"""What the README shows works: its Python runs, its commands and options exist."""

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.ext.asyncio import create_async_engine

from kernel import Kernel
from service.cli.tree import load
from tests.support.environment import DatabaseUrls

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
APPLICATION = "readme_application"


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("tenantry") + 1 :] for line in words if "tenantry" in line]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_and_its_options_exist(words: list[str]) -> None:
    command: Any = load(words[0])
    for word in words[1:]:
        if hasattr(command, "commands"):
            command = command.commands[word]
        elif word.startswith("-"):
            assert word in {option for parameter in command.params for option in parameter.opts}
    assert not hasattr(command, "commands")


@pytest.fixture
async def application(superuser: psycopg.AsyncConnection, database_urls: DatabaseUrls) -> AsyncIterator[str]:
    """The URL of an application's own role: an inheriting member of `tenantry_tenant`."""
    role = sql.Identifier(APPLICATION)
    await superuser.execute(sql.SQL("create role {} login inherit in role tenantry_tenant").format(role))
    yield database_urls.straight(APPLICATION).replace("postgresql://", "postgresql+psycopg://")
    await superuser.execute(sql.SQL("drop role {}").format(role))


async def test_its_python_starts_a_run_in_the_applications_transaction(
    application: str, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    shop, *_, embedding = blocks("python")
    # Names are resolved as in a module of its own.
    shop_names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(shop, "shop.py", "exec"), shop_names)
    names: dict[str, Any] = {"__name__": "embedding"}
    exec(compile(embedding, "embedding.py", "exec"), names)
    engine = create_async_engine(application)
    try:
        order = {"order_id": "o-1", "amounts": [1, 2]}
        await names["place_order"](engine, Kernel(shop_names["registry"]), str(tenant), order)
    finally:
        await engine.dispose()
    cursor = await superuser.execute(
        "select workflow_id, status from tenantry.workflow_runs where tenant_id = %s", [tenant]
    )
    assert await cursor.fetchall() == [("orders", "PENDING")]
