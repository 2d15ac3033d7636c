"""A database with one row of each of two tenants in every table, whatever tables there are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tenancy.isolation.catalog import Table, TenantColumns, read_catalog
from tenancy.isolation.rows import Row, RowMaker, insert
from tests.support.environment import Cluster, DatabaseUrls


@dataclass(frozen=True, slots=True)
class Populated:
    """The database, its tables that hold tenants' rows, the two tenants and their rows."""

    urls: DatabaseUrls
    tables: tuple[Table, ...]
    mine: UUID
    theirs: UUID
    rows: Mapping[tuple[str, UUID], Row]

    def insert(self, table: Table, *, of: UUID, to: UUID) -> sql.Composed:
        """Return the insert of one tenant's row under another's name, key and all."""
        row = {column.name: self.rows[table.label, of][column.name] for column in table.stored}
        return insert(table, {**row, "tenant_id": str(to)})


@pytest.fixture(scope="session")
def populated(cluster: Cluster) -> Iterator[Populated]:
    urls = cluster.create()
    mine, theirs = uuid4(), uuid4()
    with psycopg.connect(urls.direct) as root:
        catalog = read_catalog(root, ["tenantry"], TenantColumns("tenant_id", {}))
        tables = tuple(table for table in catalog.under_test() if table.tenant_column is not None)
        maker = RowMaker(root, catalog, {}, {}, {})
        rows = {(table.label, tenant): maker.row(table, tenant) for table in tables for tenant in (mine, theirs)}
    yield Populated(urls, tables, mine, theirs, rows)
    cluster.drop(urls)


@pytest.fixture
def root(populated: Populated) -> Iterator[psycopg.Connection]:
    """The superuser, in a transaction that is rolled back."""
    with psycopg.connect(populated.urls.direct) as connection:
        yield connection
        connection.rollback()
