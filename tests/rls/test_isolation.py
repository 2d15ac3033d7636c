"""Every table, every command and somebody else's rows, as the tenant role: bound to another tenant, to none, to ''."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import FeatureNotSupported, InsufficientPrivilege

REFUSED = (InsufficientPrivilege, FeatureNotSupported)
Bind = Callable[[], psycopg.Connection]


@pytest.fixture(params=["mine", "none", "empty"])
def bound(request: pytest.FixtureRequest, populated: Any) -> Iterator[psycopg.Connection]:
    """A worker's connection as `tenantry_tenant`, in a transaction bound to tenant `mine` or to none."""
    with psycopg.connect(populated.urls.straight("tenantry_worker")) as connection:
        connection.execute("select set_config('role', 'tenantry_tenant', true)")
        if request.param != "none":
            tenant = str(populated.mine) if request.param == "mine" else ""
            connection.execute("select set_config('tenantry.tenant_id', %s, true)", (tenant,))
        yield connection
        connection.rollback()


@contextmanager
def _attempt(connection: psycopg.Connection) -> Iterator[None]:
    with connection.transaction(force_rollback=True):
        yield


def _changed(connection: psycopg.Connection, statement: sql.Composed) -> int:
    """Return how many rows a statement reached; one that is refused reached none."""
    try:
        with _attempt(connection):
            return connection.execute(statement).rowcount
    except REFUSED:
        return 0


def _refused(connection: psycopg.Connection, statement: sql.Composed) -> bool:
    try:
        with _attempt(connection):
            connection.execute(statement)
    except REFUSED:
        return True
    return False


def _theirs(table: Any, theirs: UUID, text: str) -> sql.Composed:
    return sql.SQL(text).format(table.identifier, sql.Literal(theirs))  # type: ignore[arg-type]


def test_there_are_rows_to_be_found(populated: Any, root: psycopg.Connection) -> None:
    assert len(populated.tables) >= 13
    for table in populated.tables:
        for tenant in (populated.mine, populated.theirs):
            statement = _theirs(table, tenant, "select count(*) from {} where tenant_id = {}")
            assert root.execute(statement).fetchone() == (1,), table.name


def test_select_shows_ones_own_rows_only(populated: Any, bound: psycopg.Connection) -> None:
    (tenant,) = bound.execute("select tenantry.current_tenant_id()").fetchone() or (None,)
    for table in populated.tables:
        seen = bound.execute(sql.SQL("select tenant_id from {}").format(table.identifier)).fetchall()
        assert seen == ([] if tenant is None else [(populated.mine,)]), table.name


def test_locking_reaches_no_other_row(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        for strength in ("update", "no key update", "share", "key share"):
            text = "select from {} where tenant_id = {} for " + strength
            assert _changed(bound, _theirs(table, populated.theirs, text)) == 0, table.name


def test_update_reaches_no_other_row(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        for column in table.columns:
            statement = sql.SQL("update {0} set {1} = {1} where tenant_id = {2}").format(
                table.identifier, sql.Identifier(column.name), sql.Literal(populated.theirs)
            )
            assert _changed(bound, statement) == 0, (table.name, column.name)


def test_delete_reaches_no_other_row(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        assert _changed(bound, _theirs(table, populated.theirs, "delete from {} where tenant_id = {}")) == 0, table.name


def test_merge_reaches_no_other_row(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        text = (
            "merge into {0} as target using (select {1}::uuid as id) as source on target.tenant_id = source.id"
            " when matched then delete"
        )
        assert _changed(bound, _theirs(table, populated.theirs, text)) == 0, table.name


def test_no_row_is_inserted_for_others(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        assert _refused(bound, table.insert(populated.theirs)), table.name


def test_no_row_is_given_to_others(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        text = "update {0} set tenant_id = {1}"
        assert _changed(bound, _theirs(table, populated.theirs, text)) == 0, table.name


@pytest.mark.parametrize("way", ["nothing", "update", "update-where"])
def test_upsert_reaches_no_other_row(
    populated: Any, bound: psycopg.Connection, root: psycopg.Connection, way: str
) -> None:
    for table in populated.tables:
        key = sql.SQL(", ").join(map(sql.Identifier, table.key))
        row = root.execute(
            sql.SQL("select {} from {} where tenant_id = {}").format(
                key, table.identifier, sql.Literal(populated.theirs)
            )
        ).fetchone()
        assert row is not None
        values = dict(zip(table.key, row, strict=True))
        insert = table.insert(populated.theirs)
        last = table.columns[-1].name
        conflict = {
            "nothing": sql.SQL(" on conflict do nothing"),
            "update": sql.SQL(" on conflict ({}) do update set {} = null").format(key, sql.Identifier(last)),
            "update-where": sql.SQL(" on conflict ({}) do update set {} = null where true").format(
                key, sql.Identifier(last)
            ),
        }[way]
        exact = sql.SQL("insert into {} ({}) values ({})").format(
            table.identifier, key, sql.SQL(", ").join(sql.Literal(values[name]) for name in table.key)
        )
        assert _refused(bound, insert + conflict), table.name
        assert _refused(bound, exact + conflict), table.name


def test_copy_brings_nothing_in_and_only_ones_own_out(populated: Any, bound: psycopg.Connection) -> None:
    theirs = str(populated.theirs)
    for table in populated.tables:
        out = sql.SQL("copy {} to stdout").format(table.identifier)
        with _attempt(bound), bound.cursor() as cursor, cursor.copy(out) as copy:
            found = b"".join(bytes(block) for block in copy).decode()
        assert theirs not in found, table.name
        into = sql.SQL("copy {} (tenant_id) from stdin").format(table.identifier)
        with pytest.raises(REFUSED), _attempt(bound), bound.cursor() as cursor, cursor.copy(into) as copy:
            copy.write_row((theirs,))


def test_what_goes_past_policies_is_not_granted(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        for text in (
            "truncate {}",
            "create trigger spy after insert on {} for each row execute function suppress_redundant_updates_trigger()",
            "create policy mine on {} using (true)",
            "alter table {} disable row level security",
            "alter table {} no force row level security",
        ):
            statement = sql.SQL(text).format(table.identifier)  # type: ignore[arg-type]
            assert _refused(bound, statement), (table.name, text)


def test_anothers_keys_are_free_to_take(populated: Any, root: psycopg.Connection) -> None:
    """Two tenants may have the same keys: no unique constraint tells one what the other has."""
    for table in populated.tables:
        if table.name == "tenants":
            continue
        with _attempt(root):
            root.execute(_theirs(table, populated.mine, "delete from {} where tenant_id = {}"))
            assert root.execute(table.copy_of_row(populated.theirs, populated.mine)).rowcount == 1, table.name


def test_error_texts_tell_no_values(populated: Any, bound: psycopg.Connection) -> None:
    for table in populated.tables:
        with pytest.raises(REFUSED) as refused, _attempt(bound):
            bound.execute(table.insert(populated.theirs))
        assert str(populated.theirs) not in f"{refused.value} {refused.value.diag.message_detail}", table.name
