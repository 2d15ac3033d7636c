"""Fixtures of the kernel's tests: a worker played by hand, and a look at rows past every policy."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from tenancy import Database
from tests.support.workflows import HandWorker

Look = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def hand(database: Database, tenant: UUID) -> HandWorker:
    """A worker of the test's tenant, played step by step."""
    return HandWorker(database, tenant)


@pytest.fixture
def look(superuser: psycopg.AsyncConnection) -> Look:
    """Read rows as the superuser: `await look("select …", parameter, …)`."""

    async def read(query: str, *params: object) -> list[dict[str, Any]]:
        async with superuser.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query.encode(), params)
            return await cursor.fetchall()

    return read
