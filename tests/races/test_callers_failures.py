"""Deadlocks and serialization failures in callers' own transactions reach their owners as the driver raised them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import tenancy
from kernel import JobExecute, Kernel, Registry, RunCancel, RunCreate, StageContext, stage, workflow
from tenancy import TenancyError, TenantTransaction, TransactionAbortedError
from tenancy.errors import sqlstate_of
from tests.support.callers import ROLES, SHAPES, Caller, Shape
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.waiting import until_someone_blocked
from tests.support.workflows import ALL, HandWorker, Number

DEADLOCK, SERIALIZATION = "40P01", "40001"


@pytest.fixture
async def app_url(database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection) -> str:
    await superuser.execute(ROLES)
    return database_urls.straight("app")


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


@asynccontextmanager
async def bound(shape: Shape, url: str, tenant: UUID, first: str = "select 1") -> AsyncIterator[Any]:
    async with shape(url) as caller:
        await caller.begin()
        await caller.run(first)
        yield caller, await tenancy.bind(caller.connection, tenant)


def is_the_drivers(error: BaseException, state: str) -> bool:
    return not isinstance(error, TenancyError) and sqlstate_of(error) == state


async def _pids(superuser: psycopg.AsyncConnection) -> list[int]:
    cursor = await superuser.execute(
        "select pid from pg_stat_activity where usename = 'app' and datname = current_database() order by xact_start"
    )
    return [row[0] for row in await cursor.fetchall()]


async def test_of_two_that_cancel_crosswise_one_is_told_of_the_deadlock(
    shape: Shape, app_url: str, hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    kernel = hand.kernel
    one, two = await hand.create(), await hand.create()
    notes = {"one": str(uuid4()), "two": str(uuid4())}
    async with bound(shape, app_url, hand.tenant_id) as (a, tx_a), bound(shape, app_url, hand.tenant_id) as (b, tx_b):
        await a.note(notes["one"])
        await b.note(notes["two"])
        await kernel.dispatch(RunCancel(one), tx_a)
        await kernel.dispatch(RunCancel(two), tx_b)
        first, _second = await _pids(superuser)

        waiting = asyncio.create_task(kernel.dispatch(RunCancel(one), tx_b))
        await until_someone_blocked(superuser, by=first)
        answers = await asyncio.gather(kernel.dispatch(RunCancel(two), tx_a), waiting, return_exceptions=True)
        failed = [isinstance(answer, BaseException) for answer in answers]
        assert sorted(failed) == [False, True]
        (error,) = [answer for answer in answers if isinstance(answer, BaseException)]
        assert is_the_drivers(error, DEADLOCK)
        for caller, tx, has_failed in ((a, tx_a, failed[0]), (b, tx_b, failed[1])):
            if has_failed:
                with pytest.raises(TransactionAbortedError):
                    await kernel.dispatch(RunCancel(one), tx)
            await (caller.rollback() if has_failed else caller.commit())
    kept = await look("select note from public.app_notes where note in (%s, %s)", *notes.values())
    assert [row["note"] for row in kept] == [notes["two" if failed[0] else "one"]]
    rows = await look("select status from tenantry.workflow_runs where tenant_id = %s", hand.tenant_id)
    assert [row["status"] for row in rows] == ["CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_serialization_failure_is_the_callers_to_see(
    shape: Shape, isolation: str, app_url: str, hand: HandWorker
) -> None:
    run_id = await hand.create()
    level = f"set transaction isolation level {isolation}"
    async with bound(shape, app_url, hand.tenant_id, level) as (caller, tx):
        async with hand.transaction() as other:
            await hand.kernel.dispatch(RunCancel(run_id), other)
        with pytest.raises(Exception, match="could not serialize") as raised:
            await hand.kernel.dispatch(RunCancel(run_id), tx)
        assert is_the_drivers(raised.value, SERIALIZATION)
        await caller.rollback()
        # Its owner repeats the whole.
        await caller.begin()
        await caller.run(level)
        again = await tenancy.bind(caller.connection, hand.tenant_id)
        assert (await hand.kernel.dispatch(RunCancel(run_id), again)).cancelled is False
        await caller.commit()


async def test_of_two_that_use_one_key_at_a_higher_isolation_one_is_told_to_repeat(
    shape: Shape, app_url: str, hand: HandWorker
) -> None:
    command = RunCreate("chain", {"n": 1}, idempotency_key="once")
    level = "set transaction isolation level repeatable read"
    async with bound(shape, app_url, hand.tenant_id, level) as (caller, tx):
        async with hand.transaction() as other:
            first = await hand.kernel.dispatch(command, other)
        with pytest.raises(Exception, match="could not serialize") as raised:
            await hand.kernel.dispatch(command, tx)
        assert is_the_drivers(raised.value, SERIALIZATION)
        await caller.rollback()
        await caller.begin()
        again = await hand.kernel.dispatch(command, await tenancy.bind(caller.connection, hand.tenant_id))
        assert (again.run_id, again.replayed) == (first.run_id, True)


Spoil = Callable[[Caller, TenantTransaction, UUID], Awaitable[Any]]


async def by_a_command(_caller: Caller, tx: TenantTransaction, run_id: UUID) -> Any:
    return await Kernel(Registry([*ALL])).dispatch(RunCancel(run_id), tx)


async def by_a_statement(caller: Caller, _tx: TenantTransaction, run_id: UUID) -> Any:
    await caller.run(f"update tenantry.workflow_runs set priority = 1 where run_id = '{run_id}'")


@pytest.mark.parametrize("spoil", [by_a_command, by_a_statement])
@pytest.mark.parametrize("where", ["in a step", "in the body", "in a step, swallowed"])
async def test_what_a_body_meets_comes_out_of_job_execute(
    shape: Shape, where: str, spoil: Spoil, app_url: str, hand: HandWorker
) -> None:
    """The transaction cannot settle the stage any more: its owner must hear why, and not of the consequence."""
    contested = await hand.create()
    own: dict[str, Any] = {}

    @stage("act")
    async def act(ctx: StageContext, number: Number) -> Number:
        async def meet() -> None:
            await spoil(own["caller"], own["tx"], contested)

        if where == "in the body":
            await meet()
        else:
            try:
                await ctx.step.run("meet", meet)
            except Exception:
                if where == "in a step":
                    raise
        return number

    kernel = Kernel(Registry([workflow("play", input=Number).pipe(act).build()]))
    level = "set transaction isolation level repeatable read"
    async with bound(shape, app_url, hand.tenant_id, level) as (caller, tx):
        own.update(caller=caller, tx=tx)
        run_id = (await kernel.dispatch(RunCreate("play", {"n": 1}), tx)).run_id
        async with hand.transaction() as other:
            await hand.kernel.dispatch(RunCancel(contested), other)
        with pytest.raises(Exception, match="could not serialize") as raised:
            await kernel.bound_to(tx).run_to_completion(run_id)
        assert is_the_drivers(raised.value, SERIALIZATION)
        with pytest.raises(TransactionAbortedError):
            await kernel.dispatch(JobExecute(run_id, "act"), tx)


async def test_another_error_by_which_a_body_spoils_the_transaction_is_the_cause_of_what_is_told(
    shape: Shape, app_url: str, tenant: UUID
) -> None:
    own: dict[str, Any] = {}

    @stage("act")
    async def act(ctx: StageContext, number: Number) -> Number:
        await own["caller"].run("select 1 / 0")
        return number

    kernel = Kernel(Registry([workflow("play", input=Number).pipe(act).build()]))
    async with bound(shape, app_url, tenant) as (caller, tx):
        own["caller"] = caller
        run_id = (await kernel.dispatch(RunCreate("play", {"n": 1}), tx)).run_id
        with pytest.raises(TransactionAbortedError) as raised:
            await kernel.bound_to(tx).run_to_completion(run_id)
        assert "division by zero" in str(raised.value.__cause__)
