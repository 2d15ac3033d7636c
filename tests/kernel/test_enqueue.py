"""`tenantry.enqueue()`: what SQL starts is what `run.create` starts, from any driver and under the bound tenant."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from kernel import RunCancel, RunClaimPending, RunCreate, RunStatus
from kernel.blobs import INLINE_BYTES
from kernel.queries.run_get import run_get
from tenancy import Database
from tests.support import factories
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.workflows import HandWorker, chain

BIND = "select set_config('role', 'tenantry_tenant', true), set_config('tenantry.tenant_id', %s, true)"
# What is each run's own: ids, times and the trace.
OWN = {"run_id", "created_at", "updated_at", "available_at", "rank", "occurred_at", "expires_at", "key", "traceparent"}

Session = psycopg.AsyncConnection[dict[str, Any]]
Open = Callable[[], Any]


@pytest.fixture
def session(database_urls: DatabaseUrls, tenant: UUID) -> Open:
    """Open a transaction as an application's worker does, with the tenant bound."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Session]:
        connection = await psycopg.AsyncConnection.connect(
            database_urls.straight("tenantry_worker"), row_factory=dict_row
        )
        async with connection:
            await connection.execute(BIND, [str(tenant)])
            yield connection

    return opened


async def enqueue(session: Session, *arguments: object, **named: object) -> UUID:
    places = ["%s"] * len(arguments) + [f"{name} => %s" for name in named]
    statement = f"select tenantry.enqueue({', '.join(places)}) as run_id"
    row = await (await session.execute(statement.encode(), [*arguments, *named.values()])).fetchone()
    assert row is not None
    run_id: UUID = row["run_id"]
    return run_id


@pytest.mark.parametrize("version", [None, chain.definition_version])
async def test_it_writes_what_run_create_writes(
    session: Open, hand: HandWorker, look: Look, version: str | None
) -> None:
    payload = '{"n": 1, "text": "ä", "big": 12345678901234567890, "list": [1.5, null]}'
    async with hand.transaction() as tx:
        made = await hand.kernel.dispatch(
            RunCreate(
                "chain",
                {"n": 1, "text": "ä", "big": 12345678901234567890, "list": [1.5, None]},
                priority=7,
                idempotency_key="python",
                definition_version=version,
            ),
            tx,
        )
    async with session() as sql:
        run_id = await enqueue(sql, "sql", "chain", payload, priority=7, definition_version=version)

    for table in ("workflow_runs", "outbox_events", "idempotency_keys"):
        (theirs,) = await look(f"select * from tenantry.{table} where run_id = %s", made.run_id)
        (ours,) = await look(f"select * from tenantry.{table} where run_id = %s", run_id)
        own = OWN | ({"version"} if version is None else set())
        assert {k: v for k, v in ours.items() if k not in own} == {k: v for k, v in theirs.items() if k not in own}
        assert {k for k, v in ours.items() if v is None} == {k for k, v in theirs.items() if v is None}
    (run,) = await look("select * from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["version"] == (version or "")
    assert run["rank"] == run["available_at"] - timedelta(minutes=7)


async def test_keys_are_shared_with_python_in_both_directions(session: Open, hand: HandWorker) -> None:
    async with session() as sql:
        first = await enqueue(sql, "k-1", "chain", '{"n": 1.0, "b": 2}')
        assert await enqueue(sql, "k-1", "chain", '{"b": 2, "n": 1.0}') == first
    async with hand.transaction() as tx:
        again = await hand.kernel.dispatch(RunCreate("chain", {"b": 2, "n": 1.0}, idempotency_key="k-1"), tx)
        other = await hand.kernel.dispatch(RunCreate("chain", {"n": 2}, idempotency_key="k-2"), tx)
    # Not pinned before it is claimed.
    assert (again.run_id, again.replayed, again.definition_version) == (first, True, None)
    async with session() as sql:
        assert await enqueue(sql, "k-2", "chain", '{"n": 2}') == other.run_id
        with pytest.raises(psycopg.Error) as refused:
            await enqueue(sql, "k-2", "chain", '{"n": 3}')
    assert refused.value.sqlstate == "TN001"


async def test_a_concurrent_repeat_waits_and_gets_the_first_run(session: Open) -> None:
    async with session() as one, session() as two:
        first = await enqueue(one, "same", "chain", '{"n": 1}')
        second = asyncio.create_task(enqueue(two, "same", "chain", '{"n": 1}'))
        await _until_waiting(one, two.info.backend_pid)
        await one.commit()
        assert await second == first


async def test_after_a_rollback_the_key_is_the_waiters(session: Open, look: Look) -> None:
    async with session() as one, session() as two:
        first = await enqueue(one, "rolled", "chain", '{"n": 1}')
        second = asyncio.create_task(enqueue(two, "rolled", "chain", '{"n": 2}'))
        await _until_waiting(one, two.info.backend_pid)
        await one.rollback()
        run_id = await second
    assert run_id != first
    rows = await look("select run_id from tenantry.workflow_runs where run_id in (%s, %s)", first, run_id)
    assert [row["run_id"] for row in rows] == [run_id]


async def _until_waiting(session: Session, pid: int) -> None:
    async with asyncio.timeout(10):
        while True:
            row = await (await session.execute("select cardinality(pg_blocking_pids(%s)) as waits", [pid])).fetchone()
            if row is not None and row["waits"]:
                return
            await asyncio.sleep(0.01)


async def test_an_unpinned_run_is_pinned_when_it_is_claimed(session: Open, hand: HandWorker, look: Look) -> None:
    async with session() as sql:
        good = await enqueue(sql, "good", "chain", '{"n": 1}')
        bad = await enqueue(sql, "bad", "chain", '{"n": "x"}')
        wrong = await enqueue(sql, "wrong", "chain", '{"n": 1}', '{"nobody": {}}')
        unknown = await enqueue(sql, "unknown", "nowhere", "{}")
    leased = await hand.tick()
    assert [job.run_id for job in leased] == [good]
    rows = await look("select run_id, status, version, error->>'code' as code from tenantry.workflow_runs")
    stands = {row["run_id"]: (row["status"], row["version"], row["code"]) for row in rows}
    assert stands[good] == (RunStatus.RUNNING, chain.definition_version, None)
    assert stands[bad][::2] == (RunStatus.FAILED, "INVALID_INPUT")
    assert stands[wrong][::2] == (RunStatus.FAILED, "INVALID_CONFIG")
    assert stands[unknown] == (RunStatus.PENDING, "", None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"idempotency_key": None},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 256},
        {"workflow_id": None},
        {"workflow_id": ""},
        {"input": None},
        {"config": "[]"},
        {"config": None},
        {"priority": 10},
        {"priority": -1},
        {"priority": None},
        {"definition_version": ""},
        {"definition_version": "sha256-xyz"},
    ],
)
async def test_a_bad_argument_is_22023_and_writes_nothing(
    session: Open, look: Look, tenant: UUID, arguments: dict[str, object]
) -> None:
    given = {"idempotency_key": "k", "workflow_id": "chain", "input": "{}", **arguments}
    async with session() as sql:
        with pytest.raises(psycopg.Error) as refused:
            await enqueue(sql, **given)
    assert refused.value.sqlstate == "22023"
    assert await look("select 1 from tenantry.idempotency_keys where tenant_id = %s", tenant) == []


async def test_sql_and_python_keep_payloads_in_rows_up_to_the_same_size(look: Look) -> None:
    assert await look("select tenantry.inline_payload_bytes() as bytes") == [{"bytes": INLINE_BYTES}]


async def test_a_large_input_and_config_are_kept_as_run_create_keeps_them(
    session: Open, hand: HandWorker, look: Look
) -> None:
    given, config = ["ä" * 131_073], {"first": {"table": "x" * 300_000}}
    async with session() as sql:
        run_id = await enqueue(sql, "large", "chain", json.dumps(given), config=json.dumps(config))
        small_id = await enqueue(sql, "small", "chain", json.dumps(["ä" * 131_070]))
    rows = await look("select * from tenantry.workflow_blobs where run_id = any(%s)", [run_id, small_id])
    assert {row["run_id"] for row in rows} == {run_id}
    assert {sha256(row["content"].encode()).digest(): json.loads(row["content"]) for row in rows} == {
        row["digest"]: given if row["content"].startswith("[") else config for row in rows
    }
    (run,) = await look("select * from tenantry.workflow_runs where run_id = %s", run_id)
    assert (run["input"], run["config"]) == (None, None)
    assert {run["input_digest"], run["config_digest"]} == {row["digest"] for row in rows}
    async with hand.transaction() as tx:
        view = await run_get(tx, run_id)
        claimed = await hand.kernel.dispatch(RunClaimPending("hand"), tx)
    assert view is not None
    assert (json.loads(view.input), json.loads(view.config)) == (given, config)
    # Looked at whole when it is claimed: no number, so refused.
    assert set(claimed.refused) == {run_id, small_id}


async def test_without_a_tenant_it_is_refused(database_urls: DatabaseUrls) -> None:
    async with await psycopg.AsyncConnection.connect(
        database_urls.straight("tenantry_worker"), row_factory=dict_row
    ) as connection:
        await connection.execute("set local role tenantry_tenant")
        with pytest.raises(psycopg.Error) as refused:
            await enqueue(connection, "k", "chain", "{}")
    assert refused.value.sqlstate == "42501"


async def test_limits_and_standing_hold_for_sql_too(
    session: Open, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    await factories.limit_tenant(superuser, tenant, pending_runs=1)
    async with session() as sql:
        await enqueue(sql, "one", "chain", "{}")
        with pytest.raises(psycopg.Error) as refused:
            await enqueue(sql, "two", "chain", "{}")
    assert refused.value.sqlstate == "53400"


async def test_a_trigger_of_the_products_own_starts_runs_under_its_policies(
    session: Open, superuser: psycopg.AsyncConnection, look: Look, tenant: UUID
) -> None:
    name = f"orders_{uuid4().hex[:8]}"
    for statement in (
        f"create table public.{name} (order_id int)",
        f"grant insert on public.{name} to tenantry_tenant",
        f"""create function public.{name}_start() returns trigger language plpgsql as $$
            begin
              perform tenantry.enqueue('order-' || new.order_id, 'chain', jsonb_build_object('n', new.order_id));
              return new;
            end $$""",
        f"create trigger start after insert on public.{name} for each row execute function public.{name}_start()",
    ):
        await superuser.execute(statement.encode())
    async with session() as sql:
        await sql.execute(f"insert into public.{name} values (1), (2)".encode())
    async with session() as sql:
        await sql.execute(f"insert into public.{name} values (3)".encode())
        await sql.rollback()
    rows = await look("select input from tenantry.workflow_runs where tenant_id = %s order by run_id", tenant)
    assert [row["input"] for row in rows] == [{"n": 1}, {"n": 2}]


async def test_one_setting_of_the_database_says_how_long_keys_are_kept_whatever_the_door(
    session: Open, hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    lifetimes = "select key, expires_at - created_at as kept from tenantry.idempotency_keys where tenant_id = %s"

    async def start(name: str) -> None:
        async with session() as sql:
            await enqueue(sql, f"sql-{name}", "chain", '{"n": 1}')
        async with hand.transaction() as tx:
            await hand.kernel.dispatch(RunCreate("chain", {"n": 1}, idempotency_key=f"python-{name}"), tx)

    await start("by default")
    ((name,),) = await (await superuser.execute("select current_database()")).fetchall()
    await superuser.execute(f"alter database {name} set tenantry.idempotency_ttl = '3 days'".encode())
    # Sessions read it when they begin.
    await hand.database.close()
    hand.database = Database(hand.database.settings)
    await superuser.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and usename = 'tenantry_worker'"
    )
    try:
        async with hand.database:
            await start("by setting")
    finally:
        await superuser.execute(f"alter database {name} reset tenantry.idempotency_ttl".encode())
    kept = {row["key"]: row["kept"] for row in await look(lifetimes, hand.tenant_id)}
    assert {name: round(lasting / timedelta(hours=1)) for name, lasting in kept.items()} == {
        "sql-by default": 24,
        "python-by default": 24,
        "sql-by setting": 72,
        "python-by setting": 72,
    }


async def test_an_expired_key_is_taken_over_with_a_new_lifetime(
    session: Open, superuser: psycopg.AsyncConnection, hand: HandWorker, look: Look
) -> None:
    async with session() as sql:
        first = await enqueue(sql, "old", "chain", '{"n": 1}')
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(first), tx)
    await superuser.execute(
        "update tenantry.idempotency_keys set expires_at = now() - interval '1 s' where tenant_id = %s",
        [hand.tenant_id],
    )
    async with session() as sql:
        await sql.execute("set local tenantry.idempotency_ttl = '1 hour'")
        second = await enqueue(sql, "old", "chain", '{"n": 2}')
    assert second != first
    (key,) = await look(
        "select run_id, expires_at - created_at as kept from tenantry.idempotency_keys where tenant_id = %s",
        hand.tenant_id,
    )
    assert (key["run_id"], round(key["kept"] / timedelta(minutes=1))) == (second, 60)


async def test_a_tenant_that_is_not_active_starts_nothing_from_sql(
    session: Open, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    await factories.set_tenant_status(superuser, tenant, "suspended")
    async with session() as sql:
        with pytest.raises(psycopg.Error) as refused:
            await enqueue(sql, "k", "chain", "{}")
    assert refused.value.sqlstate == "55000"
