"""Makes valid rows for any table: by the types, defaults, references and CHECKs of its columns, or as the product says.

A row is made by inserting it. What the server refuses is tried again with other values of the columns that the refusing
rule looks at; what cannot be made this way is an error that says what to give, and never a table that is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any

import psycopg
from psycopg import IntegrityError, sql
from psycopg.errors import CheckViolation, UniqueViolation

from tenancy.isolation.catalog import Catalog, Column, Connection, ForeignKey, Table
from tenancy.isolation.errors import NoRowError
from tenancy.isolation.values import Value, candidates

Row = Mapping[str, Value]
RowFactory = Callable[[Connection, Any], object]
Found = dict[int, Row]
# So many combinations of values are tried before the rules of a table count as too hard to guess.
MOST_TRIES = 600


class RowMaker:
    """Makes each tenant's first row of a table once, within one transaction of a role that policies do not bind.

    `values` fixes columns by `schema.table`; `factories` insert the rows of a table in the product's own way; `found`
    keeps, from one maker to the next, which values the rules of a table liked.
    """

    def __init__(
        self,
        connection: Connection,
        catalog: Catalog,
        values: Mapping[str, Mapping[str, Value]],
        factories: Mapping[str, RowFactory],
        found: "Found",
    ) -> None:
        self._connection = connection
        self._catalog = catalog
        self._values = values
        self._factories = factories
        self._found = found
        self._made: dict[tuple[int, str], Row] = {}
        self._under_way: list[int] = []

    def row(self, table: Table, tenant: object) -> Row:
        """Return a row of the tenant's as texts by column, made now unless it was before.

        Raises:
            NoRowError: none could be made.
        """
        key = (table.oid, "" if table.tenant_column is None else str(tenant))
        if key not in self._made:
            self._under_way.append(table.oid)
            try:
                self._made[key] = self._make(table, tenant)
            finally:
                self._under_way.pop()
        return self._made[key]

    def _make(self, table: Table, tenant: object) -> Row:
        if table.label in self._factories:
            self._factories[table.label](self._connection, tenant)
            row = self.find(table, tenant)
            if row is None:
                raise NoRowError(f"the row factory of {table.label} left no row of tenant {tenant}")
            return row
        if table.tenant_column is None and (row := self.find(table, tenant)) is not None:
            return row
        return self._search(table, tenant)

    def find(self, table: Table, tenant: object) -> Row | None:
        """Return any row of the tenant's as texts by column; of a table without tenants, any row."""
        columns = sql.SQL(", ").join(as_text(column) for column in table.columns)
        whose = owned_by(table, tenant) if table.tenant_column is not None else sql.SQL("true")
        query = sql.SQL("select {} from {} where {} limit 1").format(columns, table.identifier, whose)
        found = self._connection.execute(query).fetchone()
        return None if found is None else dict(zip((column.name for column in table.columns), found, strict=True))

    def _search(self, table: Table, tenant: object) -> Row:
        """Insert with the likeliest values; while a rule refuses, go through those of the columns it looks at."""
        fixed = self._fixed(table, tenant)
        free = {column.name: column for column in table.stored if column.name not in fixed}
        choices = {column.name: self._choices(table, column) for column in self._to_fill(table, fixed)}
        known = self._found.get(table.oid)
        if known is not None:
            first = {name: values[0] for name, values in choices.items()}
            with suppress(IntegrityError):
                return self._insert(table, {**first, **known, **fixed})
        judged: list[str] = []
        try:
            while True:
                found = self._first_accepted(table, fixed, choices, judged)
                if not isinstance(found, CheckViolation):
                    return found
                more = [name for name in _looked_at(table, found) if name in free and name not in judged]
                if not more:
                    raise self._gave_up(table, found) from found
                judged += more
                choices |= {name: self._choices(table, free[name]) for name in more}
        except UniqueViolation as error:
            # The tenant has a row already: a trigger's, or one that came in through another partition.
            row = self.find(table, tenant)
            if row is None:
                raise self._gave_up(table, error) from error
            return row
        except psycopg.Error as error:
            raise self._gave_up(table, error) from error

    def _first_accepted(
        self, table: Table, fixed: Row, choices: Mapping[str, Sequence[Value]], judged: Sequence[str]
    ) -> Row | CheckViolation:
        """Return the row of the first combination that no rule refuses, or the refusal that other columns may mend."""
        refusal: CheckViolation | None = None
        for chosen in islice(_combinations(choices, judged), MOST_TRIES):
            try:
                row = self._insert(table, {**chosen, **fixed})
            except CheckViolation as error:
                refusal = error
                if set(_looked_at(table, error)) - set(judged) - fixed.keys():
                    return error
            else:
                self._found[table.oid] = {name: chosen[name] for name in judged}
                return row
        assert refusal is not None, "there is always a first combination"
        return refusal

    def _fixed(self, table: Table, tenant: object) -> dict[str, Value]:
        """Return what is not to be chosen: the tenant, the keys of the rows referred to, and what the product gave."""
        fixed: dict[str, Value] = {}
        for key in table.foreign_keys:
            fixed |= self._referred(table, key, tenant)
        if table.tenant_column is not None:
            fixed[table.tenant_column] = str(tenant)
        return fixed | dict(self._values.get(table.label, {}))

    def _referred(self, table: Table, key: ForeignKey, tenant: object) -> Row:
        if key.parent in self._under_way:
            columns = {column.name: column for column in table.columns}
            optional = [name for name in key.columns if not columns[name].is_required]
            if not optional:
                raise NoRowError(
                    f"{table.label} and what it refers to by {key.name} need each other: give a row factory for it,"
                    f' rows={{"{table.label}": …}}'
                )
            # Around a ring, or to itself: none.
            return dict.fromkeys(optional)
        parent = self.row(self._catalog.tables[key.parent], tenant)
        return {name: parent[theirs] for name, theirs in zip(key.columns, key.parent_columns, strict=True)}

    def _to_fill(self, table: Table, fixed: Mapping[str, Value]) -> list[Column]:
        """Return the columns for which values are chosen: those that need one, and those of keys, which null evades."""
        keyed = {name for key in table.keys for name in key.columns}
        return [
            column
            for column in table.stored
            if column.name not in fixed and not column.has_default and (column.is_required or column.name in keyed)
        ]

    def _choices(self, table: Table, column: Column) -> Sequence[Value]:
        found = candidates(column, table.rules)
        if not found or (found == [None] and column.is_required):
            raise NoRowError(
                f"no value is known for {table.label}.{column.name} of type {column.type}: give one,"
                f' values={{"{table.label}": {{"{column.name}": "…"}}}}, or a row factory, rows={{"{table.label}": …}}'
            )
        return found

    def _insert(self, table: Table, values: Row) -> Row:
        """Insert a row and return it as it came out, triggers and all."""
        statement = (
            sql.SQL("savepoint made_row; ")
            + insert(table, values)
            + sql.SQL(" returning {}").format(sql.SQL(", ").join(as_text(column) for column in table.columns))
        )
        try:
            cursor = self._connection.execute(statement)
            cursor.nextset()
            row = cursor.fetchone()
        except psycopg.Error:
            self._connection.execute("rollback to savepoint made_row")
            raise
        if row is None:
            raise NoRowError(f"{table.label} swallows its rows (a trigger or a rule): give a row factory, rows={{…}}")
        return dict(zip((column.name for column in table.columns), row, strict=True))

    def _gave_up(self, table: Table, error: Exception | None) -> NoRowError:
        return NoRowError(
            f"no row could be made for {table.label} ({str(error).splitlines()[0] if error else 'nothing to try'}):"
            f' give the values of its columns, values={{"{table.label}": {{"column": "value"}}}}, or a row factory,'
            f' rows={{"{table.label}": lambda connection, tenant: …}}'
        )


def insert(table: Table, values: Row) -> sql.Composed:
    """Return the insert of a row whose values are given as texts, identity columns included."""
    if not values:
        return sql.SQL("insert into {} default values").format(table.identifier)
    return sql.SQL("insert into {} ({}) overriding system value values ({})").format(
        table.identifier,
        sql.SQL(", ").join(sql.Identifier(name) for name in values),
        sql.SQL(", ").join(sql.Literal(value) for value in values.values()),
    )


def owned_by(table: Table, tenant: object) -> sql.Composed:
    """Return the condition that a row is the tenant's."""
    assert table.tenant_column is not None
    return sql.SQL("{} = {}").format(sql.Identifier(table.tenant_column), sql.Literal(str(tenant)))


def as_text(column: Column) -> sql.Composed:
    """Return a column as the text that makes the same value again."""
    return sql.SQL("{}::text").format(sql.Identifier(column.name))


def _combinations(choices: Mapping[str, Sequence[Value]], judged: Sequence[str]) -> Iterator[dict[str, Value]]:
    """Yield values for all columns: every combination for those that a rule refused, else the first one."""
    first = {name: values[0] for name, values in choices.items()}
    for combination in product(*(choices[name] for name in judged)):
        yield first | dict(zip(judged, combination, strict=True))


def _looked_at(table: Table, error: CheckViolation) -> Sequence[str]:
    """Return the columns of the rule that refused a row; a partition's bound has no name."""
    return [name for rule in table.rules if rule.name == error.diag.constraint_name for name in rule.columns]
