"""A database with one row of each of two tenants in every table, whatever tables there are."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests.support.environment import Cluster, DatabaseUrls

# A value for a column that a table insists on: by name where a CHECK is choosy, else by type.
BY_NAME = {
    "status": "'PENDING'", "kind": "'claim'", "level": "'info'", "slug": "'s-' || gen_random_uuid()",
    "actor": "'test'", "command": "'run.create'",
}  # fmt: skip
BY_TABLE = {
    ("workflow_steps", "kind"): "'run'",
    ("workflow_steps", "status"): "'completed'",
    ("tenants", "status"): "'active'",
}
BY_TYPE = {
    "uuid": "gen_random_uuid()", "text": "'x'", "json": "'{}'", "bool": "true", "int2": "1", "int4": "1", "int8": "1",
    "timestamptz": "now()", "bytea": "'\\x00'", "_text": "'{}'", "interval": "'1 s'", "float8": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalog has it; `key` is its primary key."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def insert(self, tenant_id: UUID) -> sql.Composed:
        """Return the insert of the smallest row that the table takes for a tenant."""
        columns = [column for column in self.columns if column.is_required or column.name in self.key]
        values = [
            sql.Literal(tenant_id) if column.name == "tenant_id" else sql.SQL(self._value(column))  # type: ignore[arg-type]
            for column in columns
        ]
        return sql.SQL("insert into {} ({}) values ({})").format(
            self.identifier, sql.SQL(", ").join(sql.Identifier(column.name) for column in columns), _listed(values)
        )

    def copy_of_row(self, of: UUID, to: UUID) -> sql.Composed:
        """Return the insert of one tenant's row under another's name, key and all."""
        names = [sql.Identifier(column.name) for column in self.columns]
        values = [
            sql.Literal(to) if column.name == "tenant_id" else sql.Identifier(column.name) for column in self.columns
        ]
        return sql.SQL("insert into {0} ({1}) select {2} from {0} where tenant_id = {3}").format(
            self.identifier, _listed(names), _listed(values), sql.Literal(of)
        )

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier("tenantry", self.name)

    def _value(self, column: Column) -> str:
        given = BY_TABLE.get((self.name, column.name)) or BY_NAME.get(column.name) or BY_TYPE.get(column.type)
        assert given is not None, f"teach tests/rls/conftest.py a value for {self.name}.{column.name} ({column.type})"
        return given


def _listed(parts: list[sql.Identifier] | list[sql.Composable] | list[sql.Literal | sql.SQL]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


@dataclass(frozen=True, slots=True)
class Populated:
    """The database, its tables that hold tenants' rows, and the two tenants."""

    urls: DatabaseUrls
    tables: tuple[Table, ...]
    mine: UUID
    theirs: UUID


@pytest.fixture(scope="session")
def populated(cluster: Cluster) -> Iterator[Populated]:
    urls = cluster.create()
    mine, theirs = uuid4(), uuid4()
    with psycopg.connect(urls.direct, autocommit=True) as root:
        tables = _tables(root)
        for table in tables:
            for tenant_id in (mine, theirs):
                root.execute(table.insert(tenant_id))
    yield Populated(urls, tables, mine, theirs)
    cluster.drop(urls)


@pytest.fixture
def root(populated: Populated) -> Iterator[psycopg.Connection]:
    """The superuser, in a transaction that is rolled back."""
    with psycopg.connect(populated.urls.direct) as connection:
        yield connection
        connection.rollback()


def _tables(root: psycopg.Connection) -> tuple[Table, ...]:
    """Read every table of the schema but the migration table, partitions included."""
    names = root.execute(
        "select relname from pg_class where relnamespace = 'tenantry'::regnamespace and relkind in ('r', 'p')"
        " and relname <> 'alembic_version' order by 1"
    ).fetchall()
    return tuple(_table(root, name) for (name,) in names)


def _table(root: psycopg.Connection, name: str) -> Table:
    columns = root.execute(
        "select attname, typname, attnotnull and not atthasdef and attidentity = '' and attgenerated = ''"
        " from pg_attribute join pg_type on pg_type.oid = atttypid"
        " where attrelid = ('tenantry.' || quote_ident(%s))::regclass and attnum > 0 and not attisdropped order by attnum",
        (name,),
    ).fetchall()
    key = root.execute(
        "select attname from pg_index join pg_attribute on attrelid = indrelid and attnum = any(indkey)"
        " where indrelid = ('tenantry.' || quote_ident(%s))::regclass and indisprimary",
        (name,),
    ).fetchall()
    return Table(name, tuple(Column(*column) for column in columns), tuple(column for (column,) in key))
