"""The arena of a test: its tenant in the module's database, and a diary its bodies write."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.arena import Arena, arena
from tests.support.environment import DatabaseUrls


@pytest.fixture
async def ring(database_urls: DatabaseUrls, tenant: UUID, tmp_path: Path) -> AsyncIterator[Arena]:
    """An arena with a tenant of the test's own."""
    async with arena(database_urls, tenant, tmp_path / "diary") as opened:
        yield opened
