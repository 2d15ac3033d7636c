"""The stagehand of a test: a worker of its tenant whose every transaction the test performs itself."""

from uuid import UUID

import pytest

from tenancy import Database
from tests.support.stagehand import Make, Stagehand


@pytest.fixture
def make(database: Database, tenant: UUID) -> Make:
    return lambda body, **options: Stagehand(database, tenant, body, **options)
