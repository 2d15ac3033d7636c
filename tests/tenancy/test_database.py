"""Transactions of a Database: what is kept, what is rolled back, and as whom they run."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tenancy import (
    Database,
    DatabaseSettings,
    DatabaseUnavailableError,
    NoTransactionError,
    RoleTransaction,
    Statements,
    TenantTransaction,
    TransactionAbortedError,
)
from tests.support.environment import DatabaseUrls


def _state(error: BaseException) -> str | None:
    return getattr(error, "sqlstate", None)


async def _tags(tx: TenantTransaction, sql: Statements) -> list[str]:
    return [row["tag"] for row in await tx.fetch_all(sql["tags"])]


async def _stored(database: Database, tenant: UUID, sql: Statements) -> list[str]:
    async with database.transaction(tenant) as tx:
        return await _tags(tx, sql)


async def test_it_commits_as_the_tenant(
    opened: Database, tenant: UUID, other_tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant) as tx:
        assert tx.tenant_id == tenant
        assert await tx.execute(sql["add"], tag="a", run_id=run_id) == 1
        row = await tx.fetch_one(sql["who"])
        assert row is not None
        assert (row["role"], row["tenant"]) == ("tenantry_tenant", str(tenant))
        assert (row["rest"], row["text"]) == (2, "a%:b::c")
    assert await _stored(opened, tenant, sql) == ["a"]
    assert await _stored(opened, other_tenant, sql) == []


async def test_a_tenant_is_a_uuid_or_the_text_of_one(opened: Database, tenant: UUID) -> None:
    async with opened.transaction(str(tenant)) as tx:  # type: ignore[arg-type]
        assert tx.tenant_id == tenant
    for wrong in ("north", 7, None):
        with pytest.raises(ValueError):
            async with opened.transaction(wrong):  # type: ignore[arg-type]
                pass


async def test_nothing_outlives_the_transaction(opened: Database, tenant: UUID, sql: Statements) -> None:
    async with opened.transaction(tenant) as tx:
        await tx.fetch_all(sql["who"])
    async with opened._owned(None, []) as unbound:
        row = await unbound.fetch_one(sql["who"])
    assert row is not None
    assert row["role"].startswith("tenantry_")
    assert row["role"] != "tenantry_tenant"
    assert row["tenant"] is None


async def test_an_error_rolls_back(opened: Database, tenant: UUID, sql: Statements, run_id: UUID) -> None:
    with pytest.raises(LookupError):  # noqa: PT012 (the transaction is the statement)
        async with opened.transaction(tenant) as tx:
            await tx.execute(sql["add"], tag="a", run_id=run_id)
            await tx.send([(sql["add"], {"tag": "b", "run_id": run_id})])
            raise LookupError
    assert await _stored(opened, tenant, sql) == []


async def test_a_statement_that_fails_keeps_nothing(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    with pytest.raises(psycopg.Error) as failed:
        async with opened.transaction(tenant) as tx:
            await tx.fetch_batch(
                [
                    (sql["add"], {"tag": "a", "run_id": run_id}),
                    (sql["divide"], {"by": 0}),
                    (sql["add"], {"tag": "b", "run_id": run_id}),
                ]
            )
    assert _state(failed.value) == "22012"
    assert await _stored(opened, tenant, sql) == []


async def test_a_write_that_fails_on_its_way_with_commit_keeps_nothing(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    with pytest.raises(psycopg.Error):  # noqa: PT012 (the transaction is the statement)
        async with opened.transaction(tenant) as tx:
            await tx.execute(sql["add"], tag="a", run_id=run_id)
            await tx.send([(sql["add"], {"tag": "b", "run_id": run_id}), (sql["divide"], {"by": 0})])
    assert await _stored(opened, tenant, sql) == []


async def test_a_swallowed_error_is_told_at_the_end(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    with pytest.raises(TransactionAbortedError):  # noqa: PT012 (the transaction is the statement)
        async with opened.transaction(tenant) as tx:
            await tx.execute(sql["add"], tag="a", run_id=run_id)
            with pytest.raises(psycopg.Error):
                await tx.fetch_all(sql["divide"], by=0)
            with pytest.raises(TransactionAbortedError):
                await tx.execute(sql["add"], tag="b", run_id=run_id)
    assert await _stored(opened, tenant, sql) == []


async def test_a_swallowed_timeout_is_told_at_the_end_and_no_held_write_is_lost_in_silence(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    for begins_with_it in (True, False):
        with pytest.raises(TransactionAbortedError):  # noqa: PT012 (the transaction is the statement)
            async with opened.transaction(tenant) as tx:
                if not begins_with_it:
                    await tx.fetch_all(sql["who"])
                await tx.send([(sql["add"], {"tag": "a", "run_id": run_id})])
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await tx.fetch_all(sql["wait"], seconds=5)
    assert await _stored(opened, tenant, sql) == []


async def test_sent_writes_keep_their_order_and_come_before_what_follows(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant) as tx:
        await tx.send([(sql["add"], {"tag": "a", "run_id": run_id})])
        await tx.send([(sql["forget"], {}), (sql["add"], {"tag": "b", "run_id": run_id})])
        assert await _tags(tx, sql) == ["b"]
        await tx.send([(sql["add"], {"tag": "c", "run_id": run_id})])
        assert await tx.execute(sql["forget"]) == 2
        await tx.send([(sql["add"], {"tag": "d", "run_id": run_id})])
        assert [len(rows) for rows in await tx.fetch_batch([(sql["tags"], {}), (sql["who"], {})])] == [1, 1]
        await tx.send([(sql["add"], {"tag": "e", "run_id": run_id})])
    assert await _stored(opened, tenant, sql) == ["d", "e"]


async def test_a_transaction_of_sent_writes_alone_is_kept(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant) as tx:
        await tx.send([(sql["add"], {"tag": "a", "run_id": run_id})])
    assert await _stored(opened, tenant, sql) == ["a"]


async def test_one_message_is_all_that_such_a_transaction_sends(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant, in_one_message=True) as tx:
        await tx.send([(sql["add"], {"tag": "a", "run_id": run_id})])
        row = await tx.fetch_one(sql["who"])
        assert row is not None
        assert (row["role"], row["tenant"]) == ("tenantry_tenant", str(tenant))
        # Committed already, seen by others while it is still open here.
        assert await _stored(opened, tenant, sql) == ["a"]
        with pytest.raises(NoTransactionError):
            await tx.fetch_one(sql["who"])
    assert await _stored(opened, tenant, sql) == ["a"]


async def test_one_message_that_fails_keeps_nothing(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    for _ in range(20):
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with opened.transaction(tenant, in_one_message=True) as tx:
                await tx.fetch_batch([(sql["add"], {"tag": "a", "run_id": run_id}), (sql["divide"], {"by": 0})])
    assert await _stored(opened, tenant, sql) == []


async def test_a_foreseen_read_travels_with_the_first_message_and_answers_once(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant, foreseen=[(sql["tags"], {})]) as tx:
        await tx.fetch_one(sql["who"])
        # By another connection, after the message that the read travelled with.
        async with opened.transaction(tenant) as other:
            await other.execute(sql["add"], tag="a", run_id=run_id)
        assert await tx.fetch_all(sql["tags"]) == []
        assert [row["tag"] for row in await tx.fetch_all(sql["tags"])] == ["a"]


async def test_a_foreseen_read_does_not_hide_the_writes_of_its_own_transaction(
    opened: Database, tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant, foreseen=[(sql["tags"], {})]) as tx:
        await tx.fetch_one(sql["who"])
        await tx.send([(sql["add"], {"tag": "a", "run_id": run_id})])
        assert [row["tag"] for row in await tx.fetch_all(sql["tags"])] == ["a"]


async def test_empty_transactions_and_batches_are_fine(opened: Database, tenant: UUID, sql: Statements) -> None:
    async with opened.transaction(tenant):
        pass
    async with opened.transaction(tenant) as tx:
        await tx.send([])
        assert await tx.fetch_batch([]) == []
        assert await tx.fetch_one(sql["tags"]) is None


async def test_concurrent_tasks_take_turns(opened: Database, tenant: UUID, sql: Statements, run_id: UUID) -> None:
    async def work(number: int, tx: TenantTransaction) -> None:
        await tx.execute(sql["add"], tag=f"{number:02}", run_id=run_id)
        assert f"{number:02}" in await _tags(tx, sql)
        await tx.send([(sql["add"], {"tag": f"{number:02}+", "run_id": run_id})])

    async with opened.transaction(tenant) as tx, asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(work(number, tx))
    assert len(await _stored(opened, tenant, sql)) == 40


@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.usefixtures("failing")
async def test_serialisation_failures_pass_untouched(
    opened: Database, tenant: UUID, sql: Statements, state: str
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        async with opened.transaction(tenant) as tx:
            await tx.fetch_all(sql["raise_state"], state=state)
    assert _state(raised.value) == state
    with pytest.raises(psycopg.Error) as raised:
        async with opened.transaction(tenant) as tx:
            await tx.send([(sql["raise_state"], {"state": state})])
    assert _state(raised.value) == state


async def test_values_are_the_standard_librarys(opened: Database, tenant: UUID, sql: Statements) -> None:
    async with opened.transaction(tenant) as tx:
        await tx.fetch_all(sql["zone"], zone="Asia/Kathmandu")
        row = await tx.fetch_one(sql["types"], items='{"b":  1, "a": [1.0]}')
    assert row is not None
    assert type(row["id"]) is UUID
    assert [type(item) for item in row["ids"]] == [UUID]
    assert row["at"] == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert row["at"].tzinfo is UTC or row["at"].utcoffset().total_seconds() == 0
    assert row["items"] == '{"b":  1, "a": [1.0]}'


async def test_a_tenant_id_of_the_caller_does_not_override_the_bound_one(
    opened: Database, tenant: UUID, other_tenant: UUID, sql: Statements, run_id: UUID
) -> None:
    async with opened.transaction(tenant) as tx:
        await tx.execute(sql["add"], tag="a", run_id=run_id, tenant_id=other_tenant)
    assert await _stored(opened, tenant, sql) == ["a"]


@pytest.mark.parametrize(("login", "role"), [("dispatcher", "tenantry_scheduler"), ("admin", "tenantry_operator")])
async def test_roles_run_without_a_tenant(database_urls: DatabaseUrls, login: str, role: Any, sql: Statements) -> None:
    async with Database(DatabaseSettings(getattr(database_urls, login))) as database:
        tx: RoleTransaction
        async with database.role_transaction(role) as tx:
            row = await tx.fetch_one(sql["who"])
    assert row is not None
    assert (row["role"], row["tenant"]) == (role, None)


async def test_a_single_read_as_a_role_ends_its_transaction(
    database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection, sql: Statements
) -> None:
    # One connection: a second read finds it given back.
    settings = DatabaseSettings(database_urls.straight("tenantry_dispatcher"), pool_size=1)
    async with Database(settings) as database:
        (first,) = await database.read_as("tenantry_scheduler", sql["who"])
        (second,) = await database.read_as("tenantry_scheduler", sql["who"])
        cursor = await superuser.execute("select state from pg_stat_activity where pid = %s", (first["pid"],))
        assert await cursor.fetchone() == ("idle",)
        await superuser.execute("select pg_terminate_backend(%s, 5000)", (first["pid"],))
        (third,) = await database.read_as("tenantry_scheduler", sql["who"])
    assert first["pid"] == second["pid"] != third["pid"]
    assert (third["role"], third["tenant"]) == ("tenantry_scheduler", None)


async def test_a_login_cannot_become_what_it_is_no_member_of(opened: Database, sql: Statements) -> None:
    with pytest.raises(psycopg.Error) as refused:
        async with opened.role_transaction("tenantry_scheduler") as tx:
            await tx.fetch_all(sql["who"])
    assert _state(refused.value) == "42501"


async def test_the_revision_is_told(opened: Database, empty_database_urls: DatabaseUrls) -> None:
    assert await opened.schema_revision() is not None
    async with Database(DatabaseSettings(empty_database_urls.api)) as empty:
        assert await empty.schema_revision() is None


async def test_it_connects_late_opens_once_and_is_over_when_closed(
    database_urls: DatabaseUrls, tenant: UUID, sql: Statements
) -> None:
    database = Database(DatabaseSettings(database_urls.worker))
    assert await _stored(database, tenant, sql) == []
    await database.open()
    await database.close()
    await database.close()
    with pytest.raises(DatabaseUnavailableError):
        await _stored(database, tenant, sql)


async def test_encryption_asked_for_is_not_forgotten(
    database_urls: DatabaseUrls, tenant: UUID, sql: Statements
) -> None:
    url = f"{database_urls.straight('tenantry_api')}?sslmode=require"
    settings = DatabaseSettings(url, pool_timeout=1)
    async with Database(settings) as database:
        with pytest.raises(DatabaseUnavailableError):
            await _stored(database, tenant, sql)
