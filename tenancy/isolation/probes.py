"""What is tried on a table, by command: the statements with which a role could reach rows that are not its own.

Statements name tables that are not ours, so they are put together here and cannot lie in a `.sql` file. Whatever is
written is a row that was valid a moment ago: a refusal is then the policies' and no constraint's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from tenancy.isolation.catalog import Table
from tenancy.isolation.rows import Row, as_text, insert, owned_by
from tenancy.isolation.stage import Attempt

FOREIGN_KEY_VIOLATION = "23503"
# All of the class: which one it is, is compared.
CONSTRAINT_VIOLATIONS = "23"
LOCKS: tuple[LiteralString, ...] = ("update", "no key update", "share", "key share")
PAST_POLICIES: tuple[LiteralString, ...] = (
    "truncate {}",
    "alter table {} disable row level security",
    "alter table {} no force row level security",
    "create policy probing on {} using (true) with check (true)",
    (
        "create trigger probing after insert on {} for each row"
        " execute function pg_catalog.suppress_redundant_updates_trigger()"
    ),
)


@dataclass(frozen=True, slots=True)
class Probe:
    """An attempt and what must hold.

    `must_fail`: it is refused by a policy, a privilege or with one of the states `or_with`, or reaches nothing at all.
    `hides`: the answer is the same when these rows are not there.
    """

    attempt: Attempt
    must_fail: bool = False
    hides: tuple[tuple[Table, object], ...] = ()
    or_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """A table with a row of each tenant's, and the columns that the player has privileges for.

    `parents` are the other tenant's rows that its foreign keys could point to.
    """

    table: Table
    mine: object
    theirs: object
    my_row: Row
    their_row: Row
    parents: Mapping[str, tuple[Table, Row]]
    can_select: Sequence[str]
    can_insert: Sequence[str]
    can_update: Sequence[str]

    @property
    def names(self) -> Sequence[str]:
        """The columns that a row is written with."""
        return [column.name for column in self.table.stored]

    @property
    def their_rows(self) -> tuple[tuple[Table, object], ...]:
        """The other tenant's rows of the table."""
        return ((self.table, self.theirs),)

    @property
    def my_rows(self) -> tuple[tuple[Table, object], ...]:
        """The player's own."""
        return ((self.table, self.mine),)

    def insertable(self, row: Row) -> Row:
        """Return what the player may say of a row; all of it when that is nothing, to be refused."""
        names = [name for name in self.names if name in self.can_insert] or self.names
        return {name: row[name] for name in names}

    def listed(self, names: Sequence[str]) -> sql.Composed:
        """Return columns as a list."""
        return sql.SQL(", ").join(sql.Identifier(name) for name in names)

    def format(self, text: LiteralString, **parts: sql.Composable) -> sql.Composed:
        """Fill `{table}`, `{is_theirs}` and what else is named into a statement."""
        is_theirs = owned_by(self.table, self.theirs)
        return sql.SQL(text).format(table=self.table.identifier, is_theirs=is_theirs, **parts)

    @property
    def keyed(self) -> Collection[str]:
        """The columns that keys and foreign keys hold."""
        held = [*(key.columns for key in self.table.keys), *(key.columns for key in self.table.foreign_keys)]
        return {name for columns in held for name in columns}

    @property
    def changeable(self) -> Sequence[str]:
        """The columns that the player may change, to any value."""
        return [
            column.name
            for column in self.table.stored
            if column.name in self.can_update and not column.is_always_identity
        ]

    def writing(self, row: Row) -> sql.Composed:
        """Return the assignments of a row's values to the columns that the player may change."""
        return sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(row[name]))
            for name in self.changeable or self.names[:1]
        )


def select(scene: Scene) -> list[Probe]:
    """Read all that may be read, and ask whether there is a row of the other's."""
    readable = [column for column in scene.table.columns if column.name in scene.can_select]
    columns = sql.SQL(", ").join(as_text(column) for column in readable or scene.table.columns)
    return [
        Probe(Attempt(scene.format("select {columns} from {table}", columns=columns)), hides=scene.their_rows),
        Probe(Attempt(scene.format("select from {table} where {is_theirs}")), hides=scene.their_rows),
    ]


def lock(scene: Scene) -> list[Probe]:
    """Lock the other's rows in each strength."""
    text = "select from {table} where {is_theirs} for {strength}"
    return [
        Probe(Attempt(scene.format(text, strength=sql.SQL(strength))), hides=scene.their_rows) for strength in LOCKS
    ]


def insert_(scene: Scene) -> list[Probe]:
    """Insert a row for the other, exactly one that it had, and one of one's own, which leaves the other alone."""
    theirs = Attempt(insert(scene.table, scene.insertable(scene.their_row)), without=scene.their_rows)
    own = Attempt(insert(scene.table, scene.insertable(scene.my_row)), without=scene.my_rows)
    return [
        Probe(theirs, must_fail=_names_tenant(scene)),
        Probe(own, hides=scene.their_rows, or_with=(CONSTRAINT_VIOLATIONS,)),
    ]


def update(scene: Scene) -> list[Probe]:
    """Change the other's rows, change all rows, and give one's own to the other."""
    theirs = scene.format("update {table} set {values} where {is_theirs}", values=scene.writing(scene.their_row))
    probes = [Probe(Attempt(theirs), hides=scene.their_rows)]
    # A column that no key holds, so that all rows may have the same value; said outright, for what is not read needs no
    # policy for reading.
    loose = next((name for name in reversed(scene.changeable) if name not in scene.keyed), None)
    if loose is not None:
        values = sql.SQL("{} = {}").format(sql.Identifier(loose), sql.Literal(scene.my_row[loose]))
        probes.append(
            Probe(Attempt(scene.format("update {table} set {values}", values=values)), hides=scene.their_rows)
        )
    if scene.table.tenant_column in (scene.can_update or scene.names):
        given = owned_by(scene.table, scene.theirs)
        # Without a condition, which would put the new row under the policy for reading as well.
        gives = scene.format("update {table} set {given}", given=given)
        probes.append(Probe(Attempt(gives, without=scene.their_rows), must_fail=True))
    return probes


def delete(scene: Scene) -> list[Probe]:
    """Delete the other's rows, one's own, and all rows while no foreign key stands in the way."""
    own = Attempt(scene.format("delete from {table} where {is_mine}", is_mine=owned_by(scene.table, scene.mine)))
    return [
        Probe(own, hides=scene.their_rows, or_with=(CONSTRAINT_VIOLATIONS,)),
        Probe(Attempt(scene.format("delete from {table} where {is_theirs}")), hides=scene.their_rows),
        Probe(Attempt(scene.format("delete from {table}"), is_bare=True), hides=scene.their_rows),
    ]


def merge(scene: Scene) -> list[Probe]:
    """Do the same with MERGE, which has policies applied in its own way."""
    matched = "merge into {table} as target using (select) as source on target.{is_theirs} when matched then "
    row = scene.insertable(scene.their_row)
    inserts = scene.format(
        "merge into {table} using (select) as source on false"
        " when not matched then insert ({columns}) overriding system value values ({values})",
        columns=scene.listed(list(row)),
        values=sql.SQL(", ").join(sql.Literal(value) for value in row.values()),
    )
    return [
        Probe(Attempt(scene.format(matched + "delete")), hides=scene.their_rows),
        Probe(
            Attempt(scene.format(matched + "update set {values}", values=scene.writing(scene.their_row))),
            hides=scene.their_rows,
        ),
        Probe(Attempt(inserts, without=scene.their_rows), must_fail=_names_tenant(scene)),
    ]


def copy(scene: Scene) -> list[Probe]:
    """Copy everything out, and a row for the other in."""
    columns = scene.listed(scene.can_select or scene.names)
    query = scene.format("copy (select {columns} from {table}) to stdout", columns=columns)
    probes = [Probe(Attempt(query, is_copy=True), hides=scene.their_rows)]
    if scene.table.kind == "r":
        # Of a partitioned table only a query can be copied, and of a table only what is stored.
        stored = [name for name in scene.names if name in scene.can_select] or scene.names
        whole = scene.format("copy {table} ({columns}) to stdout", columns=scene.listed(stored))
        probes.append(Probe(Attempt(whole, is_copy=True), hides=scene.their_rows))
    row = scene.insertable(scene.their_row)
    into = scene.format("copy {table} ({columns}) from stdin", columns=scene.listed(list(row)))
    data = "\t".join("\\N" if value is None else _escaped(value) for value in row.values()) + "\n"
    attempt = Attempt(into, is_copy=True, data=data, without=scene.their_rows)
    return [*probes, Probe(attempt, must_fail=_names_tenant(scene))]


def upsert(scene: Scene) -> list[Probe]:
    """Insert the other's own row once more, in each way in which it could be let be, overwritten or looked at."""
    exact = insert(scene.table, scene.insertable(scene.their_row))
    return [Probe(Attempt(exact + way), must_fail=_names_tenant(scene), hides=scene.their_rows) for way in _ways(scene)]


def keys(scene: Scene) -> list[Probe]:
    """Take the other's keys for a row of one's own: whether they are taken already is nobody's to know."""
    assert scene.table.tenant_column is not None
    row = scene.insertable({**scene.their_row, scene.table.tenant_column: str(scene.mine)})
    statement = insert(scene.table, row)
    return [
        Probe(Attempt(form, without=scene.my_rows), hides=scene.their_rows, or_with=(CONSTRAINT_VIOLATIONS,))
        for form in (statement, *(statement + way for way in _ways(scene)))
    ]


def references(scene: Scene) -> list[Probe]:
    """Refer to the other's rows from one's own, which works as little as with rows that are not there."""
    probes: list[Probe] = []
    for key in scene.table.foreign_keys:
        if key.name not in scene.parents:
            continue
        parent, row = scene.parents[key.name]
        pairs = zip(key.columns, key.parent_columns, strict=True)
        pointing = {name: row[theirs] for name, theirs in pairs if name != scene.table.tenant_column}
        values = scene.insertable({**scene.my_row, **pointing})
        attempt = Attempt(insert(scene.table, values), without=scene.my_rows)
        is_said = bool(values.keys() & pointing.keys())
        hides = ((parent, scene.theirs),)
        probes.append(Probe(attempt, must_fail=is_said, hides=hides, or_with=(FOREIGN_KEY_VIOLATION,)))
    return probes


def past_policies(scene: Scene) -> list[Probe]:
    """Try what no policy limits, and what would remove the policies."""
    return [Probe(Attempt(sql.SQL(text).format(scene.table.identifier)), must_fail=True) for text in PAST_POLICIES]


# By the name of the command that a test is called by.
COMMANDS: Mapping[str, Callable[[Scene], list[Probe]]] = {
    "select": select,
    "lock": lock,
    "insert": insert_,
    "update": update,
    "delete": delete,
    "merge": merge,
    "copy": copy,
    "upsert": upsert,
    "keys": keys,
    "references": references,
    "past_policies": past_policies,
}
# These ask what one tenant learns of another; without a tenant there is nothing to ask.
BOUND_ONLY = frozenset({"keys", "references", "past_policies"})


def _names_tenant(scene: Scene) -> bool:
    """Whether the player can say whose a row is; where it cannot, the row is its own whatever it inserts."""
    return scene.table.tenant_column in (scene.can_insert or scene.names)


def _ways(scene: Scene) -> list[sql.Composed]:
    ways = [sql.SQL(" on conflict do nothing").format()]
    key = scene.table.primary_key
    changed = scene.changeable or scene.names
    if key:
        overwrite = sql.SQL(" on conflict ({}) do update set {} = excluded.{}").format(
            scene.listed(key), sql.Identifier(changed[-1]), sql.Identifier(changed[-1])
        )
        ways += [overwrite, overwrite + sql.SQL(" where true")]
    return ways


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
