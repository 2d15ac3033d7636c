"""Operations on tenants as `tenantry_admin` through PgBouncer: what changes, what is refused, what is left."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from service import tenants
from service.tenants import TenantChanges, export, records, removal
from tenancy import Database, DatabaseSettings
from tenancy.sql import load_file
from tests.support.environment import DatabaseUrls


@pytest.fixture
async def operators(database_urls: DatabaseUrls) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(database_urls.admin, pool_size=2)) as database:
        yield database


@pytest.fixture
async def acme(operators: Database) -> dict[str, Any]:
    return await tenants.create_tenant(operators, f"acme-{uuid4().hex[:8]}", "Acme")


async def limit_rows(superuser: psycopg.AsyncConnection, tenant_id: UUID) -> list[str]:
    cursor = await superuser.execute(
        "select kind from tenantry.tenant_limits where tenant_id = %s order by kind", [tenant_id]
    )
    return [kind for (kind,) in await cursor.fetchall()]


async def test_a_new_tenant_is_active_and_without_limits(
    operators: Database, acme: dict[str, Any], superuser: psycopg.AsyncConnection
) -> None:
    assert (acme["status"], acme["weight"], acme["retention"]) == ("active", 1, None)
    assert set(acme["limits"].values()) == {None}
    assert await limit_rows(superuser, acme["id"]) == []
    assert await tenants.get_tenant(operators, acme["id"]) == acme == await tenants.find_tenant(operators, acme["slug"])


@pytest.mark.parametrize("slug", ["", "A", "a_b", "-a", "a-", "a" * 64, "ä", "a\n"])
async def test_a_slug_that_is_none_is_refused_with_its_pointer(operators: Database, slug: str) -> None:
    with pytest.raises(tenants.InvalidTenantError) as refused:
        await tenants.create_tenant(operators, slug)
    assert [error.pointer for error in refused.value.errors] == ["/slug"]


async def test_of_two_that_take_a_slug_at_once_one_gets_it(operators: Database) -> None:
    slug = f"both-{uuid4().hex[:8]}"
    outcomes = await asyncio.gather(*(tenants.create_tenant(operators, slug) for _ in range(2)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["TenantExistsError", "dict"]


async def test_limits_change_one_by_one_and_rows_exist_only_while_they_limit(
    operators: Database, acme: dict[str, Any], superuser: psycopg.AsyncConnection
) -> None:
    async def change(**limits: int | None) -> dict[str, int | None]:
        changed: dict[str, Any] = await tenants.update_tenant(operators, acme["id"], TenantChanges(limits=limits))
        result: dict[str, int | None] = changed["limits"]
        return result

    assert (await change(running_jobs=3))["running_jobs"] == 3
    assert await limit_rows(superuser, acme["id"]) == ["claim"]
    await change(pending_runs=0, payload_bytes=1000)
    assert await change(runs_per_minute=5, payload_bytes=None) == {
        "running_jobs": 3,
        "pending_runs": 0,
        "runs_per_minute": 5,
        "payload_bytes": None,
    }
    assert await limit_rows(superuser, acme["id"]) == ["claim", "create"]
    await change(running_jobs=None, pending_runs=None, runs_per_minute=None)
    assert await limit_rows(superuser, acme["id"]) == []


async def test_weight_and_retention_change_and_the_rest_stays(operators: Database, acme: dict[str, Any]) -> None:
    changed = await tenants.update_tenant(operators, acme["id"], TenantChanges(weight=7, retention=timedelta(days=2)))
    assert (changed["weight"], changed["retention"]) == (7, 172_800)
    changed = await tenants.update_tenant(operators, acme["id"], TenantChanges(retention=None))
    assert (changed["weight"], changed["retention"]) == (7, None)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"limits": {"running_jobs": -1}}, "/limits/running_jobs"),
        ({"limits": {"payload_bytes": 2**31}}, "/limits/payload_bytes"),
        ({"limits": {"pending_runs": True}}, "/limits/pending_runs"),
        ({"limits": {"bogus": 1}}, "/limits/bogus"),
        ({"weight": 0}, "/weight"),
        ({"weight": 1001}, "/weight"),
        ({"retention": timedelta()}, "/retention"),
    ],
)
def test_what_the_database_would_refuse_is_refused_with_its_pointer(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(tenants.InvalidTenantError) as refused:
        TenantChanges(**changes)
    assert [error.pointer for error in refused.value.errors] == [pointer]


async def test_every_deed_is_in_the_audit_log_once(
    operators: Database, acme: dict[str, Any], superuser: psycopg.AsyncConnection
) -> None:
    await tenants.suspend_tenant(operators, acme["id"])
    await tenants.suspend_tenant(operators, acme["id"])
    await tenants.resume_tenant(operators, acme["id"])
    await tenants.update_tenant(operators, acme["id"], TenantChanges(weight=2))
    cursor = await superuser.execute(
        "select action from tenantry.audit_log where tenant_id = %s order by audit_id", [acme["id"]]
    )
    assert [action for (action,) in await cursor.fetchall()] == [
        "tenant.created",
        "tenant.suspended",
        "tenant.resumed",
        "tenant.updated",
    ]


async def test_a_tenant_that_does_not_exist_is_not_found(operators: Database) -> None:
    for attempt in (
        tenants.get_tenant(operators, uuid4()),
        tenants.find_tenant(operators, "nobody"),
        tenants.suspend_tenant(operators, uuid4()),
        tenants.update_tenant(operators, uuid4(), TenantChanges(weight=2)),
        tenants.delete_tenant(operators, uuid4()),
    ):
        with pytest.raises(tenants.TenantNotFoundError):
            await attempt


async def test_a_tenant_being_deleted_can_only_be_deleted(
    operators: Database, acme: dict[str, Any], superuser: psycopg.AsyncConnection
) -> None:
    await superuser.execute("update tenantry.tenants set status = 'deleting' where tenant_id = %s", [acme["id"]])
    for attempt in (
        tenants.suspend_tenant(operators, acme["id"]),
        tenants.resume_tenant(operators, acme["id"]),
        tenants.update_tenant(operators, acme["id"], TenantChanges(weight=2)),
    ):
        with pytest.raises(tenants.TenantDeletingError):
            await attempt
    await tenants.delete_tenant(operators, acme["id"])
    with pytest.raises(tenants.TenantNotFoundError):
        await tenants.get_tenant(operators, acme["id"])


async def test_a_page_of_tenants_goes_on_behind_the_last_one(operators: Database) -> None:
    made = [(await tenants.create_tenant(operators, f"page-{uuid4().hex[:8]}"))["id"] for _ in range(3)]
    everyone = [tenant["id"] for tenant in await tenants.list_tenants(operators, limit=1000)]
    assert everyone[-3:] == made
    assert [tenant["id"] for tenant in await tenants.list_tenants(operators, limit=2, after=made[0])] == made[1:]


async def rows_of(superuser: psycopg.AsyncConnection, tenant_id: UUID) -> dict[str, int]:
    cursor = await superuser.execute(
        "select table_name from information_schema.columns where table_schema = 'tenantry' and column_name = 'tenant_id'"
    )
    counts = {}
    for (table,) in await cursor.fetchall():
        query = sql.SQL("select count(*) from tenantry.{} where tenant_id = %s").format(sql.Identifier(table))
        (counts[table],) = await (await superuser.execute(query, [tenant_id])).fetchone() or (0,)
    return counts


async def fill(superuser: psycopg.AsyncConnection, tenant_id: UUID, runs: int) -> None:
    for statement in load_file(Path(__file__).with_name("fill.sql")).values():
        await superuser.execute(statement.pyformat, {"tenant_id": tenant_id, "runs": runs})  # type: ignore[arg-type]


async def test_deletion_leaves_nothing_in_any_table_and_touches_nobody_else(
    operators: Database, acme: dict[str, Any], superuser: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await tenants.create_tenant(operators, f"other-{uuid4().hex[:8]}")
    await fill(superuser, acme["id"], 7)
    await fill(superuser, other["id"], 2)
    before = await rows_of(superuser, other["id"])
    assert [table for table, count in (await rows_of(superuser, acme["id"])).items() if not count] == []
    monkeypatch.setattr(removal, "PAGE", 3)
    await tenants.delete_tenant(operators, acme["id"])
    assert set((await rows_of(superuser, acme["id"])).values()) == {0}
    assert await rows_of(superuser, other["id"]) == before


async def test_the_export_has_every_row_of_every_table_but_no_secret(
    operators: Database, acme: dict[str, Any], superuser: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(superuser, acme["id"], 7)
    monkeypatch.setattr(export, "PAGE", 3)
    exported = [(table, row) async for table, row in tenants.export_tenant(operators, acme["id"])]
    counts = await rows_of(superuser, acme["id"])
    # A log and a span of a run that is gone, and a key that names no run, belong to no page of runs.
    counts["workflow_logs"] -= 1
    counts["spans"] -= 1
    counts["idempotency_keys"] -= 1
    assert {table: sum(1 for name, _ in exported if name == table) for table in counts} == counts
    assert "736563726574" not in str(exported)
    assert "secret" not in str(exported)


async def test_every_tenant_table_is_exported_and_deleted(superuser: psycopg.AsyncConnection) -> None:
    tables = set(await rows_of(superuser, uuid4()))
    deletions = " ".join(
        statement.text for statements in (removal.SQL, records.SQL) for statement in statements.values()
    )
    exports = " ".join(statement.text for statement in export.SQL.values()) + " tenantry.tenants "
    assert [table for table in tables if f"delete from tenantry.{table} " not in deletions] == []
    assert [table for table in tables if not any(f"tenantry.{table}{end}" in exports for end in (" ", "\n"))] == []
