"""The operator's door to the database: `OPERATOR_DATABASE_URL` and nothing else."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from service import tenants
from service.environment import variables_of
from service.settings import Settings
from tenancy import Database, DatabaseSettings


def read_settings(*names: str) -> Settings:
    """Read only these settings, so that a mistake in another one does not stop a command that does not use it.

    Raises:
        SettingsError: one of them is missing or unacceptable.
    """
    variables = frozenset().union(*map(variables_of, names))
    settings = Settings.from_environment({key: value for key, value in os.environ.items() if key in variables})
    for name in names:
        settings.require(name)
    return settings


@asynccontextmanager
async def operator_database() -> AsyncIterator[Database]:
    """Open the database as `tenantry_admin`.

    Raises:
        SettingsError: the URL is missing or malformed.
        TenancyError: the database is away, or the login may more than it should.
    """
    url = read_settings("operator_database_url").require("operator_database_url")
    async with Database(DatabaseSettings(url, pool_size=1)) as database:
        await database.check_login()
        yield database


async def tenant_id_of(database: Database, slug: str) -> UUID:
    """Return the id of the tenant of this slug.

    Raises:
        TenantNotFoundError: there is none.
    """
    tenant_id: UUID = (await tenants.find_tenant(database, slug))["id"]
    return tenant_id
