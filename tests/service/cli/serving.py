"""The API as a process of its own, which a test stops, kills and starts again, with no worker beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from service.tenants import create_key
from tenancy import Database
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process, answers


async def key_of(database: Database, tenant_id: UUID) -> str:
    """Make a key that may do everything in the tenant."""
    async with database.transaction(tenant_id) as tx:
        return str((await create_key(tx))["key"])


@contextmanager
def serving(urls: DatabaseUrls, port: int) -> Iterator[Process]:
    """An API process on the port, once it is ready; it knows the workflows of `tests/support`."""
    environment = {
        **urls.environment("api"),
        "TENANTRY_WORKFLOWS": "tests.support.workflows:REGISTRY",
        "TENANTRY_PORT": str(port),
    }
    with Process("api", environment=environment) as api:
        api.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
        yield api
