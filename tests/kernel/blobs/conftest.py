"""A worker of the workflows that pass large payloads on."""

from uuid import UUID

import pytest

from tenancy import Database
from tests.kernel.blobs.large import WORKFLOWS
from tests.support.workflows import HandWorker


@pytest.fixture
def worker(database: Database, tenant: UUID) -> HandWorker:
    return HandWorker(database, tenant, WORKFLOWS)
