"""What is tested on which tables: from the catalogs, one check a table, command and situation.

A check makes a row of each of two tenants', tries as one of them what `probes.py` knows to reach the other's, and looks
at two things past all policies: whether rows changed that are not its own, and whether the answer would have been the
same without the other's rows. Isolation is both. An answer that proves nothing is an error as well.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

import psycopg
from psycopg import sql

from tenancy.database import SQL as BINDING
from tenancy.isolation.catalog import SQL, TABLE_KINDS, Catalog, Table, TenantColumns, ask, read_catalog
from tenancy.isolation.errors import InconclusiveError, LeakError
from tenancy.isolation.probes import BOUND_ONLY, COMMANDS, Probe, Scene
from tenancy.isolation.rows import Found, Row, RowFactory, RowMaker, owned_by
from tenancy.isolation.stage import SITUATIONS, Attempt, Part, Reply, Situation, Stage, Stages, entrance
from tenancy.isolation.values import Value

Url = str | Callable[[], str]
# No privilege, or a policy's veto; what row-level security does not support, as COPY FROM.
REFUSED = ("42501", "0A000")
# Without a tenant a policy may also stumble over the setting that is not there, or that holds no tenant.
CLOSED = (*REFUSED, "42704", "22P02", "22023")
# In `crossing`, of a shared table: this role may write it.
WRITE = "write"
VIEW_KINDS: Mapping[str, str] = {"m": "a materialized view, a copy", "f": "a foreign table, a door"}


def _two_tenants() -> tuple[object, object]:
    return uuid4(), uuid4()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to be tested: `run` raises an AssertionError that says what leaks, or what keeps it from knowing."""

    subject: str
    what: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Tables under row-level security, and the role that is to be held by it.

    `superuser_url` leads to the migrated database; nothing is left behind in it. `login` is whom the application
    connects as (through `database_url`, when that shall be tested too), `bind` what it says to bind a transaction to
    the tenant `%(tenant)s`, `enter` what it says in every transaction, bound or not.

    Tables are named `schema.table`: `tenant_columns` where the column has another name, `values` and `rows` for what
    cannot be guessed (texts by column; a function of the superuser's connection and the tenant that inserts), `shared`
    for those that hold no tenant's rows, with the reason, and `crossing` for what a role is meant to reach of every
    tenant's: by command, the columns or None for all; `write` for a shared table.
    """

    superuser_url: Url
    login: str
    schemas: Sequence[str]
    bind: Sequence[str] = (BINDING["bind_tenant"].pyformat,)
    enter: Sequence[str] = ()
    database_url: Url | None = None
    tenant_column: str = "tenant_id"
    tenant_columns: Mapping[str, str] = field(default_factory=dict[str, str])
    tenants: tuple[object, object] = field(default_factory=_two_tenants)
    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict[str, Mapping[str, Value]])
    rows: Mapping[str, RowFactory] = field(default_factory=dict[str, RowFactory])
    shared: Mapping[str, str] = field(default_factory=dict[str, str])
    crossing: Mapping[str, Mapping[str, Collection[str] | None]] = field(
        default_factory=dict[str, Mapping[str, Collection[str] | None]]
    )
    # More states with which the product refuses, those of its triggers for instance.
    refusals: Collection[str] = ()
    commands: Collection[str] = tuple(COMMANDS)
    situations: Collection[Situation] = SITUATIONS

    def suite(self) -> "Suite":
        """Read the catalogs and return what is to be tested: a new table is among it.

        Raises:
            ValueError: there is no table, or one is named that does not exist.
        """
        return Suite(self)

    def __call__(self) -> None:
        """Run every check, for whoever has no pytest, and raise an AssertionError that lists all failures."""
        failures: list[str] = []
        with closing(self.suite()) as suite:
            for check in suite.checks():
                try:
                    check.run()
                except AssertionError as failure:
                    failures.append(f"{check.subject}: {check.what}: {failure}")
        assert not failures, "\n".join(failures)


class Suite:
    """An Isolation with the catalogs that were read for it, and the connections that its checks share."""

    def __init__(self, isolation: Isolation) -> None:
        self._its = isolation
        url = _resolved(isolation.superuser_url)
        self._part = Part(isolation.login, isolation.enter, isolation.bind)
        self._mine, self._theirs = isolation.tenants
        self._found: Found = {}
        self._stages = Stages(url, self._part, self._mine, self._theirs)
        with psycopg.connect(url) as connection:
            tenants = TenantColumns(isolation.tenant_column, isolation.tenant_columns)
            self._catalog: Catalog = read_catalog(connection, isolation.schemas, tenants)
        self._check_names()

    def _check_names(self) -> None:
        tables = self._catalog.under_test()
        if not tables:
            raise ValueError(f"no table is in {', '.join(self._its.schemas)}: nothing would be tested")
        known = {table.label for table in self._catalog.tables.values()}
        given = {*self._its.tenant_columns, *self._its.values, *self._its.rows, *self._its.shared, *self._its.crossing}
        if given - known:
            raise ValueError(f"no such table: {', '.join(sorted(given - known))}")
        if self._mine == self._theirs:
            raise ValueError("two tenants are needed, not one twice")

    def close(self) -> None:
        """Close the connections; a check that is run later connects again."""
        self._stages.close()

    def checks(self) -> Iterator[Check]:
        """Yield what is tested, table by table."""
        yield Check(f"role {self._its.login}", "is bound by policies", self._check_role)
        if self._its.database_url is not None:
            yield Check(f"role {self._its.login}", "is who connects", self._check_login)
        if self._its.bind:
            yield Check(f"role {self._its.login}", "sees its own rows when bound", self._check_binding)
        for table in self._catalog.under_test():
            yield from self._checks_of(table)

    def _checks_of(self, table: Table) -> Iterator[Check]:
        if table.kind in VIEW_KINDS:
            yield Check(table.label, "is out of reach", partial(self._check_out_of_reach, table))
        elif table.label in self._its.shared:
            yield Check(table.label, "is only read", partial(self._check_shared, table))
        elif table.kind not in TABLE_KINDS:
            for situation in self._its.situations:
                yield Check(table.label, f"view[{situation}]", partial(self._check_view, table, situation))
        elif table.tenant_column is None:
            yield Check(table.label, "has a tenant in each row", self._refuse_ownerless)
        else:
            yield from self._checks_of_rows(table)

    def _checks_of_rows(self, table: Table) -> Iterator[Check]:
        has = {"keys": bool(table.keys), "references": bool(table.foreign_keys)}
        for command in self._its.commands:
            for situation in self._its.situations:
                if has.get(command, True) and (situation == "other" or command not in BOUND_ONLY):
                    check = partial(self._check_command, table, command, situation)
                    yield Check(table.label, f"{command}[{situation}]", check)

    # -- the role -----------------------------------------------------------------------------------------------------

    def _check_role(self) -> None:
        with self._opened("other") as stage:
            (me,) = stage.asked(SQL["standing"])
        if me["is_superuser"] or me["bypasses_rls"] or me["row_security"] != "on":
            raise LeakError(
                f"policies do not bind {me['role']}: it is a superuser, has BYPASSRLS or row_security is off"
            )

    def _check_login(self) -> None:
        assert self._its.database_url is not None
        with self._opened("other") as stage:
            played = stage.asked(SQL["standing"])
        with psycopg.connect(_resolved(self._its.database_url), autocommit=True, prepare_threshold=None) as connection:
            connection.execute("begin")
            connection.execute(entrance(connection, self._part, self._mine, is_played=False))
            found = ask(connection, SQL["standing"])
            connection.execute("rollback")
        if found != played:
            raise LeakError(f"the application connects as {found}, what is tested is {played}")

    def _check_binding(self) -> None:
        """See one's own row somewhere: a binding that binds nothing would pass every other test."""
        readable: list[str] = []
        with self._opened("other") as stage:
            maker = self._maker(stage)
            for table in self._catalog.under_test():
                if (
                    table.kind in TABLE_KINDS
                    and table.tenant_column is not None
                    and table.label not in self._its.shared
                ):
                    maker.row(table, self._mine)
                    query = sql.SQL("select from {} where {}").format(table.identifier, owned_by(table, self._mine))
                    reply = stage.try_(Attempt(query), table).reply
                    if reply.state is None:
                        readable.append(table.label)
                        if reply.count > 0:
                            return
        if readable:
            raise InconclusiveError(
                f"bound to its own tenant, {self._its.login} sees no row of its own in {', '.join(readable)}:"
                " is `bind` what binds a tenant here?"
            )

    # -- tables -------------------------------------------------------------------------------------------------------

    def _check_command(self, table: Table, command: str, situation: Situation) -> None:
        crossing = self._its.crossing.get(table.label, {})
        with self._opened(situation) as stage:
            scene = self._scene(stage, table, with_parents=command == "references")
            if command == "keys":
                _refuse_rows_beside_keys(stage, scene)
            if command not in crossing:
                self._try_all(stage, scene, command)
                return
            try:
                self._try_all(stage, scene, command)
            except LeakError as leak:
                columns = crossing[command]
                if columns is not None and set(columns) != set(scene.can_select):
                    raise LeakError(
                        f"crosses tenants by {sorted(scene.can_select)}, where {sorted(columns)} are meant: {leak}"
                    ) from leak
            else:
                raise InconclusiveError("is declared to cross tenants, and does not")

    def _try_all(self, stage: Stage, scene: Scene, command: str) -> None:
        for probe in COMMANDS[command](scene):
            self._try(stage, scene, probe)

    def _try(self, stage: Stage, scene: Scene, probe: Probe) -> None:
        """Make the probe's attempt and judge it.

        Raises:
            LeakError: rows that are not the player's were changed, reached or told of.
            InconclusiveError: an error that is nobody's refusal kept the attempt from showing anything.
        """
        outcome = stage.try_(probe.attempt, scene.table)
        reply, is_bound = outcome.reply, stage.situation == "other"
        said = f"`{probe.attempt.statement.as_string()}` answers {reply}"
        if outcome.has_changed:
            raise LeakError(f"rows that are not its own changed: {said}")
        if reply.state is None and reply.count != 0 and (probe.must_fail or not is_bound):
            raise LeakError(f"it was not refused: {said}")
        allowed = (*(REFUSED if is_bound else CLOSED), *probe.or_with, *self._its.refusals)
        if reply.state is not None and not reply.state.startswith(allowed):
            raise InconclusiveError(f"neither policy nor privilege refused it, so it proves nothing: {said}")
        if is_bound and probe.hides:
            attempt = replace(probe.attempt, without=probe.attempt.without + probe.hides)
            _compare(said, reply, stage.try_(attempt, scene.table).reply)

    def _check_view(self, table: Table, situation: Situation) -> None:
        tables = [
            other
            for other in self._catalog.under_test()
            if other.kind in TABLE_KINDS and other.tenant_column is not None and other.label not in self._its.shared
        ]
        with self._opened(situation) as stage:
            maker = self._maker(stage)
            for other in tables:
                maker.row(other, self._mine)
                maker.row(other, self._theirs)
            granted = [row["name"] for row in stage.asked(SQL["granted"], oid=table.oid) if row["can_select"]]
            columns = sql.SQL(", ").join(map(sql.Identifier, granted)) if granted else sql.SQL("*")
            attempt = Attempt(sql.SQL("select {} from {}").format(columns, table.identifier))
            hidden = [self._theirs] if situation == "other" else [self._mine, self._theirs]
            without = tuple((other, tenant) for other in tables for tenant in hidden)
            reply = stage.try_(attempt, table).reply
            _compare(
                f"`{attempt.statement.as_string()}` answers {reply}",
                reply,
                stage.try_(replace(attempt, without=without), table).reply,
            )

    def _check_out_of_reach(self, table: Table) -> None:
        with self._opened("other") as stage:
            granted = [row["name"] for row in stage.asked(SQL["granted"], oid=table.oid) if row["can_select"]]
        if granted and table.label not in self._its.shared:
            raise LeakError(f"{self._its.login} may read {VIEW_KINDS[table.kind]} that no policy limits")

    def _check_shared(self, table: Table) -> None:
        with self._opened("other") as stage:
            (found,) = stage.asked(SQL["writable"], oid=table.oid)
        if found["privileges"] and WRITE not in self._its.crossing.get(table.label, {}):
            raise LeakError(f"what every tenant reads, one may write: {', '.join(found['privileges'])} is granted")

    def _refuse_ownerless(self) -> None:
        raise LeakError(
            f"there is no column {self._its.tenant_column}: add it, name the table's own in `tenant_columns`, or, if it"
            " holds no tenant's rows, name it in `shared`"
        )

    # -- what they stand on -------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, situation: Situation) -> Generator[Stage]:
        # A row factory may bind in its own way: after it a connection is none on which nothing was ever bound.
        with self._stages.opened(situation, afresh=bool(self._its.rows)) as stage:
            yield stage

    def _maker(self, stage: Stage) -> RowMaker:
        return RowMaker(stage.connection, self._catalog, self._its.values, self._its.rows, self._found)

    def _scene(self, stage: Stage, table: Table, *, with_parents: bool) -> Scene:
        maker = self._maker(stage)
        mine, theirs = maker.row(table, self._mine), maker.row(table, self._theirs)
        parents: dict[str, tuple[Table, Row]] = {}
        for key in table.foreign_keys if with_parents else ():
            parent = self._catalog.tables[key.parent]
            if parent.tenant_column is not None and set(key.columns) != {table.tenant_column}:
                parents[key.name] = (parent, maker.row(parent, self._theirs))
        granted = stage.asked(SQL["granted"], oid=table.oid)
        return Scene(
            table=table,
            mine=self._mine,
            theirs=self._theirs,
            my_row=mine,
            their_row=theirs,
            parents=parents,
            can_select=[row["name"] for row in granted if row["can_select"]],
            can_insert=[row["name"] for row in granted if row["can_insert"]],
            can_update=[row["name"] for row in granted if row["can_update"]],
        )


def _compare(said: str, there: Reply, gone: Reply) -> None:
    if there != gone:
        raise LeakError(f"the answer tells whether the other's rows are there: {said}, and without them {gone}")


def _refuse_rows_beside_keys(stage: Stage, scene: Scene) -> None:
    """Refuse to test a key with a row that it does not hold: such a row never meets another."""
    for key in scene.table.keys:
        is_held = all(scene.their_row[name] is not None for name in key.columns)
        if is_held and key.predicate is not None:
            query = b"select (%s) is true from %s where %s" % (
                key.predicate.encode(),
                scene.table.identifier.as_bytes(),
                owned_by(scene.table, scene.theirs).as_bytes(),
            )
            is_held = stage.connection.execute(query).fetchone() == (True,)
        if not is_held:
            raise InconclusiveError(
                f"the row that was made is not in {key.name}, so that it meets no other: give it values that are,"
                f' values={{"{scene.table.label}": {{…}}}}'
            )


def _resolved(url: Url) -> str:
    return url if isinstance(url, str) else url()
