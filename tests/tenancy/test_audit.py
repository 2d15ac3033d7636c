"""The audit of the catalogs: each way to leak is found by its code and its object, and what is sound is not accused."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from tenancy.audit import CHECKS, EXEMPTIONS, SERVER_CODE, SERVER_HOLES, SQL, Finding, Scope, audit, server_findings
from tenancy.callers import PsycopgAdapter
from tests.support.environment import Cluster, DatabaseUrls, default_version
from tests.tenancy.audit_faults import FAULTS, ODD, OF_SHOP, OF_TENANTRY, policy

SHOP = Path(__file__).with_name("test_audit_shop.sql").read_bytes()


@pytest.fixture(scope="module", params=(15, 18), ids=lambda version: f"postgres{version}")
def urls(request: pytest.FixtureRequest) -> Iterator[DatabaseUrls]:
    """A migrated database of the version that has a product's own sound schema too."""
    is_ours = request.param == default_version()
    cluster: Cluster = request.getfixturevalue("cluster") if is_ours else Cluster(request.param)
    found = cluster.create()
    with psycopg.connect(found.direct) as connection:
        connection.execute(SHOP)
    yield found
    if not is_ours:
        cluster.close()
        return
    with psycopg.connect(found.direct) as connection:
        connection.execute("drop schema shop cascade")
        connection.execute("drop role shop_app, shop_owner")
    cluster.drop(found)


@pytest.fixture
async def root(urls: DatabaseUrls) -> AsyncIterator[psycopg.AsyncConnection]:
    """The superuser, in a transaction that is rolled back: roles, grants and publications with it."""
    async with await psycopg.AsyncConnection.connect(urls.direct) as connection:
        yield connection
        await connection.rollback()


async def _audit(connection: psycopg.AsyncConnection, scope: Scope) -> list[Finding]:
    return await audit(PsycopgAdapter(connection, None), scope)


@pytest.mark.parametrize("scope", [OF_TENANTRY, OF_SHOP], ids=["tenantry", "shop"])
async def test_a_sound_schema_gives_nothing_but_the_servers_warning(
    root: psycopg.AsyncConnection, scope: Scope
) -> None:
    found = await _audit(root, scope)
    assert [(finding.level, finding.code) for finding in found if finding.code != SERVER_CODE] == []
    assert found == list(server_findings(root.info.server_version))


@pytest.mark.parametrize("login", ["tenantry_api", "tenantry_owner"])
async def test_whoever_connects_sees_the_same(root: psycopg.AsyncConnection, login: str) -> None:
    await root.execute("alter table shop.orders disable row level security")
    expected = await _audit(root, OF_SHOP)
    await root.execute("select set_config('role', %s, true)", (login,))
    assert await _audit(root, OF_SHOP) == expected


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_found(root: psycopg.AsyncConnection, fault: str) -> None:
    how = FAULTS[fault]
    if not how.since <= root.info.server_version // 10_000 <= how.until:
        pytest.skip("whether a membership inherits is the role's until 15, the grant's since 16")
    await root.execute(how.ddl.encode())
    found = await _audit(root, how.scope)
    name = how.object.format(database=root.info.dbname)
    assert (how.code, name) in [(one.code, one.object) for one in found]
    (finding,) = [one for one in found if (one.code, one.object) == (how.code, name)]
    assert finding.level == next(check.level for check in CHECKS if check.code == how.code)
    assert how.says in finding.reason
    assert finding.fix


@pytest.mark.parametrize(
    "harmless",
    [
        "create policy more on shop.orders as restrictive using (note <> 'x') with check (note <> 'x')",
        "create role clerk; create policy clerks on shop.orders for select to clerk using (true)",
        "create role clerk; create policy clerks on shop.orders for select to clerk using (note = '' or tenant_id = shop.tenant())",
        "create view shop.open with (security_invoker = true) as select id from shop.orders",
        "create table public.notes (id int)",
        "create function public.f() returns int language sql security definer return 1; revoke all on function public.f() from public",
        "create publication feed for table tenantry.job_queue",
        "create unique index by_note on shop.orders (note, tenant_id)",
        "create role extra; grant extra to shop_app",
        "alter role shop_app set shop.colour = 'red'",
        # The tenants' own table has another name for the column.
        (
            "create table shop.accounts (id uuid primary key); alter table shop.accounts enable row level security,"
            " force row level security; create policy own on shop.accounts using (id = shop.tenant()) with check (id = shop.tenant());"
            " alter table shop.orders add foreign key (tenant_id) references shop.accounts (id)"
        ),
        policy("shop.tenant() = tenant_id"),
        policy("tenant_id = shop.tenant() and (note <> 'x' or note <> 'y')"),
        policy("(note <> 'x' or note <> 'y') and tenant_id = shop.tenant()"),
        policy("tenant_id is not distinct from shop.tenant()"),
        policy("tenant_id = any (array[shop.tenant()])"),
        policy("tenant_id = (select shop.tenant())"),
        "create table public.notes (id int); alter table public.notes enable row level security; grant select on public.notes to shop_app",
        "create view public.sound with (security_invoker) as select id from shop.orders; create view public.too with (security_invoker) as select id from public.sound",
        "grant tenantry_tenant to shop_app",
        "create role safe noinherit; alter default privileges for role shop_owner grant select on tables to safe",
        # A permissive policy that is always true, narrowed by a restrictive one.
        (
            "drop policy isolation on shop.orders; create policy wide on shop.orders using (true) with check (true);"
            " create policy narrow on shop.orders as restrictive using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant())"
        ),
    ],
)
async def test_what_leaks_nothing_is_not_accused(root: psycopg.AsyncConnection, harmless: str) -> None:
    await root.execute(harmless.encode())
    found = await _audit(root, OF_SHOP)
    assert [finding for finding in found if finding.code != SERVER_CODE] == []


async def test_a_tenant_column_of_another_type_with_an_odd_name(root: psycopg.AsyncConnection) -> None:
    await root.execute(ODD.encode())
    found = await _audit(root, Scope(("shop_app",), ("odd",), "Tenant (id)"))
    assert [finding for finding in found if finding.code != SERVER_CODE] == []
    await root.execute("""alter policy own on odd."My Rows" using ("Tenant (id)" is not null)""")
    found = await _audit(root, Scope(("shop_app",), ("odd",), "Tenant (id)"))
    assert [(one.code, one.object) for one in found if one.level == "error"] == [
        ("policy_open", 'odd."My Rows": policy own')
    ]


async def test_a_fix_that_is_a_statement_closes_what_it_is_for(root: psycopg.AsyncConnection) -> None:
    for ddl in ("alter table shop.orders disable row level security", "grant truncate on shop.orders to shop_app",
                "alter role shop_app bypassrls", "create view shop.open as select id from shop.orders"):  # fmt: skip
        await root.execute(ddl.encode())
    for finding in await _audit(root, OF_SHOP):
        if finding.code != SERVER_CODE:
            statement = finding.fix.replace(" (or from public)", "")
            await root.execute(statement.encode())
    assert {finding.code for finding in await _audit(root, OF_SHOP)} <= {SERVER_CODE}


async def test_errors_come_first(root: psycopg.AsyncConnection) -> None:
    await root.execute("create table shop.notes (tenant_id uuid)")
    levels = [finding.level for finding in await _audit(root, OF_SHOP)]
    assert levels == sorted(levels)
    assert set(levels) == {"error", "warning"}


async def test_nothing_of_the_audited_database_is_called(root: psycopg.AsyncConnection) -> None:
    """A function of the same name that matches better is passed by: only pg_catalog is searched."""
    await root.execute(
        "create function public.unnest(text[]) returns setof text language plpgsql as 'begin raise exception ''called''; end'"
    )
    await root.execute("set local search_path = public, pg_catalog")
    await _audit(root, OF_SHOP)


async def test_every_exemption_is_needed(root: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenancy.audit.EXEMPTIONS", ())
    found = {(finding.code, finding.object) for finding in await _audit(root, OF_TENANTRY)}
    assert {one for one in found if one[0] != SERVER_CODE} == {(one.code, one.object) for one in EXEMPTIONS}


def test_every_section_is_a_check_and_every_check_has_its_test() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert set(SQL) == {*codes, "opening", "reachable_roles", "audited_tables", "policies", "equalities"} - {
        SERVER_CODE
    }
    assert {fault.code for fault in FAULTS.values()} == set(codes) - {SERVER_CODE}


@pytest.mark.parametrize(
    ("number", "fixed_in"),
    [(180006, "18.7"), (170005, "17.12"), (160015, "16.16"), (150018, "15.20"), (150001, "15.20")],
)
def test_a_server_with_known_holes_is_one_warning(number: int, fixed_in: str) -> None:
    (finding,) = server_findings(number)
    assert (finding.level, finding.code) == ("warning", SERVER_CODE)
    assert "CVE-2026-120154" in finding.reason
    assert f"update the server to {fixed_in} " in finding.fix


@pytest.mark.parametrize("number", [180007, 180010, 170012, 160016, 150020, 190000])
def test_a_server_without_known_holes_is_not_mentioned(number: int) -> None:
    assert list(server_findings(number)) == []


def test_holes_are_named_by_their_numbers() -> None:
    assert all(re.match(r"CVE-\d{4}-\d+ \(", name) for name in SERVER_HOLES)


@pytest.mark.parametrize(
    ("column", "is_surrogate"),
    [
        ("id uuid primary key", True),
        ("id uuid unique", True),
        ("id int generated always as identity primary key", True),
        ("id bigint generated by default as identity unique", True),
        ("id bigserial primary key", True),
        ("id int primary key", False),
        ("id text default gen_random_uuid() primary key", False),
        ("id uuid, note text, unique (id, note)", False),
        ("note text, exclude using hash (note with =)", False),
        ("id int default 7 unique", False),
    ],
)
async def test_surrogate_keys_are_accepted_by_name_only(
    root: psycopg.AsyncConnection, column: str, is_surrogate: bool
) -> None:
    await root.execute(f"create table shop.notes (tenant_id uuid not null, {column})".encode())
    keys = [one.object for one in await _audit(root, OF_SHOP) if one.code == "key_without_tenant"]
    assert len(keys) == 1
    assert keys[0].startswith("shop.notes: ")
    accepting = Scope(OF_SHOP.roles, OF_SHOP.schemas, OF_SHOP.tenant_column, surrogates_accepted=True)
    kept = [one.object for one in await _audit(root, accepting) if one.code == "key_without_tenant"]
    assert kept == ([] if is_surrogate else keys)


async def test_accepted_surrogates_make_no_foreign_key_safe(root: psycopg.AsyncConnection) -> None:
    await root.execute(
        "create table shop.notes (tenant_id uuid not null, id uuid primary key);"
        " create table shop.likes (tenant_id uuid not null, note_id uuid references shop.notes (id))"
    )
    accepting = Scope(OF_SHOP.roles, OF_SHOP.schemas, OF_SHOP.tenant_column, surrogates_accepted=True)
    found = {(one.code, one.object) for one in await _audit(root, accepting)}
    assert ("foreign_key_without_tenant", "shop.likes: foreign key likes_note_id_fkey") in found
