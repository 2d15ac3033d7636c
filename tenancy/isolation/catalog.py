"""The tables that are tested, as the catalogs describe them: columns, rules, keys and references."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tenancy.sql import Statement, load

SQL = load(__file__)
Connection = psycopg.Connection[Any]
TABLE_KINDS = ("r", "p")


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    `type` and `category` are those of pg_type; `length` is the most characters that it takes, `digits` the most before
    the point.
    """

    name: str
    type: str
    category: str
    length: int | None
    digits: int | None
    is_required: bool
    has_default: bool
    is_generated: bool
    is_always_identity: bool
    labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """A CHECK by its name, or a partition's bound without one, and the columns that it looks at."""

    name: str | None
    columns: Sequence[str]
    definition: str


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A reference to a table by its oid, columns on both sides in the same order."""

    name: str
    columns: Sequence[str]
    parent: int
    parent_columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class Key:
    """A unique index or an exclusion constraint; expressions are not among its columns."""

    name: str
    is_primary: bool
    columns: Sequence[str]
    predicate: str | None
    is_exclusion: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table, a view or whatever else can be read; `tenant_column` is None where rows belong to nobody."""

    oid: int
    schema: str
    name: str
    kind: str
    tenant_column: str | None
    columns: Sequence[Column]
    rules: Sequence[Rule]
    foreign_keys: Sequence[ForeignKey]
    keys: Sequence[Key]

    @property
    def label(self) -> str:
        """`schema.name`, as people write it."""
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name."""
        return sql.Identifier(self.schema, self.name)

    @property
    def stored(self) -> Sequence[Column]:
        """The columns that a row is written with."""
        return [column for column in self.columns if not column.is_generated]

    @property
    def primary_key(self) -> Sequence[str]:
        """The columns of the primary key; none where there is none."""
        return next((key.columns for key in self.keys if key.is_primary), ())


@dataclass(frozen=True, slots=True)
class Catalog:
    """The relations under test and those that they refer to, by oid."""

    tables: Mapping[int, Table]
    tested: Sequence[int]

    def under_test(self) -> Sequence[Table]:
        """Return the relations of the schemas, in the order of their names."""
        return sorted((self.tables[oid] for oid in self.tested), key=lambda table: table.label)


@dataclass(frozen=True, slots=True)
class TenantColumns:
    """Which column names the tenant: `usual`, but for the tables named in `others`."""

    usual: str
    others: Mapping[str, str]

    def of(self, label: str, columns: Sequence[Column]) -> str | None:
        """Return the column of a table that names the tenant."""
        name = self.others.get(label, self.usual)
        return name if any(column.name == name for column in columns) else None


def read_catalog(connection: Connection, schemas: Sequence[str], tenants: TenantColumns) -> Catalog:
    """Read the relations of the schemas and, following foreign keys, those that rows of theirs need."""
    tested = [int(row["oid"]) for row in ask(connection, SQL["relations"], schemas=list(schemas))]
    tables: dict[int, Table] = {}
    wanted = list(tested)
    while wanted:
        oid = wanted.pop()
        if oid in tables:
            continue
        tables[oid] = _read(connection, oid, tenants)
        wanted += [key.parent for key in tables[oid].foreign_keys]
    return Catalog(_with_tenants_own(tables), tested)


def ask(connection: Connection, statement: Statement, **params: object) -> list[dict[str, Any]]:
    """Run a section and return its rows."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.pyformat.encode(), params).fetchall()


def _read(connection: Connection, oid: int, tenants: TenantColumns) -> Table:
    (relation,) = ask(connection, SQL["relation"], oid=oid)
    columns = [Column(**row) for row in ask(connection, SQL["columns"], oid=oid)]
    return Table(
        oid=oid,
        schema=relation["schema"],
        name=relation["name"],
        kind=relation["kind"],
        tenant_column=tenants.of(f"{relation['schema']}.{relation['name']}", columns),
        columns=columns,
        rules=[Rule(**row) for row in ask(connection, SQL["rules"], oid=oid)],
        foreign_keys=[ForeignKey(**row) for row in ask(connection, SQL["foreign_keys"], oid=oid)],
        keys=[Key(**row) for row in ask(connection, SQL["keys"], oid=oid)],
    )


def _with_tenants_own(tables: Mapping[int, Table]) -> Mapping[int, Table]:
    """Find the table of the tenants themselves: tenant columns refer to it, and to the column that names them."""
    found = dict(tables)
    for table in tables.values():
        for key in table.foreign_keys:
            parent = found[key.parent]
            if parent.tenant_column is None and list(key.columns) == [table.tenant_column]:
                found[key.parent] = replace(parent, tenant_column=key.parent_columns[0])
    return found
