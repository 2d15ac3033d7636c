"""The isolation suite on a product's schema: what is sound passes, and each fault fails the tests that are for it."""

from collections.abc import Callable

import psycopg
import pytest

from tenancy.isolation import InconclusiveError, LeakError, NoRowError
from tests.support.environment import DatabaseUrls
from tests.tenancy.isolation.conftest import MakeSuite, run
from tests.tenancy.isolation.faults import FAULTS

Spoil = Callable[[str], None]


def test_a_sound_schema_passes_and_nothing_is_left_behind(isolation: MakeSuite, shop: DatabaseUrls) -> None:
    assert run(isolation()) == {}
    with psycopg.connect(shop.direct) as connection:
        for table in ("accounts", "countries", "orders", "lines", "events"):
            assert connection.execute(f"select count(*) from shop.{table}".encode()).fetchone() == (0,)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails(isolation: MakeSuite, spoil: Spoil, shop: DatabaseUrls, fault: str) -> None:
    how = FAULTS[fault]
    spoil(how.ddl)
    changes = dict(how.changes)
    if "database_url" in changes:
        changes["database_url"] = shop.direct
    failures = run(isolation(**changes), how.subject, *how.fails)
    assert set(failures) == {f"{how.subject}::{what}" for what in how.fails}
    assert not [failure for failure in failures.values() if isinstance(failure, NoRowError)]
    if how.says:
        assert any(how.says in str(failure) for failure in failures.values()), failures


HARMLESS = {
    "policies-by-command": "drop policy isolation on shop.orders; create policy reads on shop.orders for select using"
    " (tenant_id = shop.tenant()); create policy writes on shop.orders for insert with check (tenant_id = shop.tenant())",
    "only-using": "alter table shop.orders disable row level security; drop policy isolation on shop.orders;"
    " create policy own on shop.orders using (tenant_id = shop.tenant()); alter table shop.orders enable row level security",
    "nothing-granted": "revoke all on shop.orders from shopkeeper",
    "columns-granted": "revoke all on shop.orders from shopkeeper; grant select (reference), update (note) on shop.orders to"
    " shopkeeper; grant insert (code, level, total, discount, share, country, reference, placed_on, tags, meta, digest) on"
    " shop.orders to shopkeeper",
    "setting-that-must-be-there": "alter policy isolation on shop.orders using (tenant_id = current_setting('shop.tenant')::uuid)"
    " with check (tenant_id = current_setting('shop.tenant')::uuid)",
}


@pytest.mark.parametrize("harmless", HARMLESS)
def test_what_leaks_nothing_passes(isolation: MakeSuite, spoil: Spoil, harmless: str) -> None:
    spoil(HARMLESS[harmless])
    assert run(isolation(situations=("other", "ended")), "shop.orders") == {}


def test_a_role_may_cross_tenants_as_far_as_is_said_and_no_further(isolation: MakeSuite, spoil: Spoil) -> None:
    spoil("create policy counts on shop.orders for select using (true);"
          " revoke select on shop.orders from shopkeeper; grant select (tenant_id, total) on shop.orders to shopkeeper")  # fmt: skip
    said = isolation(
        crossing={"shop.orders": {"select": ("tenant_id", "total"), "copy": ("tenant_id", "total"), "lock": None}}
    )
    assert run(said, "shop.orders", "select") == {}
    assert run(said, "shop.orders", "lock[other]").keys() == {"shop.orders::lock[other]"}
    spoil("grant select (note) on shop.orders to shopkeeper")
    assert "note" in str(run(said, "shop.orders", "select[other]")["shop.orders::select[other]"])
    spoil("drop policy counts on shop.orders")
    failures = run(said, "shop.orders", "select")
    assert {type(failure) for failure in failures.values()} == {InconclusiveError}


def test_what_cannot_be_guessed_is_asked_for(isolation: MakeSuite, spoil: Spoil) -> None:
    spoil(
        "create type shop.shape as (width int, height int); create table shop.plans (tenant_id uuid not null, shape shop.shape not null,"
        " code text not null check (code ~ '^[A-Z]{2}-[0-9]{3}$'), primary key (tenant_id, code));"
        " alter table shop.plans enable row level security, force row level security;"
        " create policy own on shop.plans using (tenant_id = shop.tenant()); grant select on shop.plans to shopkeeper"
    )
    (failure,) = {str(one) for one in run(isolation(), "shop.plans", "select").values()}
    assert 'values={"shop.plans": {"shape": "…"}}' in failure
    shaped = {"shape": "(1,2)"}
    failures = run(isolation(values={"shop.plans": shaped}), "shop.plans", "select")
    assert {type(one) for one in failures.values()} == {NoRowError}
    assert "plans_code_check" in str(failures["shop.plans::select[other]"])
    values = {"shop.plans": {**shaped, "code": "AB-123"}}
    assert run(isolation(values=values), "shop.plans") == {}


def test_a_row_factory_makes_rows_in_the_products_own_way(isolation: MakeSuite, spoil: Spoil) -> None:
    spoil("alter table shop.orders add check (reference ~ '^ref-[0-9]+$')")
    assert {type(one) for one in run(isolation(), "shop.lines", "select").values()} == {NoRowError}

    def order(connection: psycopg.Connection, tenant: object) -> None:
        connection.execute("insert into shop.countries values ('YY', 'Y') on conflict do nothing")
        connection.execute("insert into shop.accounts values (%s, %s)", (tenant, f"s-{str(tenant)[:8]}"))
        connection.execute(
            "insert into shop.orders (tenant_id, code, level, total, discount, share, country, reference, placed_on, tags, meta,"
            " digest) values (%s, 'AB-1', 'low', 10, 1, 50, 'YY', 'ref-1', now(), '{}', '{}', '\\x01')",
            (tenant,),
        )

    suite = isolation(rows={"shop.orders": order}, situations=("other",))
    assert run(suite, "shop.orders") == {}
    assert run(suite, "shop.lines") == {}
    empty = isolation(rows={"shop.orders": lambda _connection, _tenant: None})
    assert "left no row" in str(run(empty, "shop.orders", "select[other]")["shop.orders::select[other]"])


@pytest.mark.parametrize(
    "changes",
    [{"shared": {"shop.typo": "x"}}, {"values": {"shop.typo": {}}}, {"schemas": ["nowhere"]}, {"tenants": (1, 1)}],
)
def test_what_would_test_nothing_is_refused(isolation: MakeSuite, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no such table|no table|two tenants"):
        isolation(**changes).suite()


def test_a_binding_that_fails_says_so_on_every_test(isolation: MakeSuite) -> None:
    failures = run(isolation(bind=["select bind(%(tenant)s)"]), "shop.orders", "select[other]", "keys[other]")
    assert len(failures) == 2
    for failure in failures.values():
        assert isinstance(failure, InconclusiveError)
        assert "42883" in str(failure)


def test_it_can_be_called_without_pytest(isolation: MakeSuite, spoil: Spoil) -> None:
    spoil("drop table shop.events, shop.lines; drop view shop.open_orders")
    isolation(commands=["select"])()
    spoil("alter table shop.orders disable row level security")
    with pytest.raises(AssertionError, match=r"shop.orders: select\[other\]"):
        isolation(commands=["select"])()


def test_other_types_of_tenants_and_other_columns(isolation: MakeSuite, spoil: Spoil) -> None:
    spoil(
        'create schema odd; create table odd."My Rows" ("Tenant (id)" varchar(20) not null primary key, "it\'s" xml);'
        ' alter table odd."My Rows" enable row level security, force row level security;'
        ' create policy own on odd."My Rows" using ("Tenant (id)" = current_setting(\'shop.tenant\', true));'
        ' grant usage on schema odd to shopkeeper; grant all on odd."My Rows" to shopkeeper;'
        ' revoke truncate, trigger on odd."My Rows" from shopkeeper'
    )
    changes = {
        "schemas": ["odd"],
        "tenant_column": "Tenant (id)",
        "tenants": ("tenant 'a'", "%s\\b"),
        "shared": {},
        "values": {},
    }
    assert run(isolation(**changes)) == {}
    spoil('alter table odd."My Rows" disable row level security')
    assert isinstance(run(isolation(**changes), "odd.My Rows", "copy")["odd.My Rows::copy[other]"], LeakError)
