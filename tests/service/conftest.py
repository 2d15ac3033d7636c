"""Fixtures of everything that speaks HTTP."""

from typing import Any
from uuid import UUID

import pytest

from service.tenants import create_key
from tenancy import Database
from tests.support.http import MakeKey


@pytest.fixture
def make_key(database: Database) -> MakeKey:
    """Make a key of a tenant's: `await make_key(tenant_id, scopes=…)`, with `key` once."""

    async def make(tenant_id: UUID, **options: Any) -> dict[str, Any]:
        async with database.transaction(tenant_id) as tx:
            return await create_key(tx, **options)

    return make
