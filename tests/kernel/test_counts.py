"""Starts, ends and lost leases of runs are counted once each, by whichever command, and only where they are committed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import tenancy
from kernel import (
    JobExecute,
    Kernel,
    LeaseReapStale,
    RunCancel,
    RunClaimPending,
    RunCreate,
    RunReapStuck,
    RunRedrive,
    StageCompleted,
    StageFailed,
    WorkerTick,
)
from kernel.counts import COUNTS
from service.serverless import Serverless
from tenancy import DatabaseSettings, TenantTransaction
from tests.support.callers import ROLES, SHAPES
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.workflows import CLOCK, REGISTRY, HandWorker

Seen = Callable[[], dict[str, int]]
End = Callable[[HandWorker, TenantTransaction, UUID], Awaitable[None]]
LATER = timedelta(hours=2)
ENQUEUE = "select tenantry.enqueue(%s, 'single', %s) as run_id"
BIND = "select set_config('role', 'tenantry_tenant', true), set_config('tenantry.tenant_id', %s, true)"


class RegretError(Exception):
    """Rolls a transaction back."""


@asynccontextmanager
async def regretted(hand: HandWorker) -> AsyncIterator[TenantTransaction]:
    """Open a transaction that is rolled back at the end."""
    with suppress(RegretError):
        async with hand.transaction() as tx:
            yield tx
            raise RegretError


def figures() -> dict[str, int]:
    return {
        "started": COUNTS.runs_started,
        **COUNTS.runs_finished,
        "expired": COUNTS.leases_expired,
        "steps": COUNTS.step_attempts,
        **{f"job {outcome}": count for outcome, count in COUNTS.jobs_finished.items()},
        "executions": sum(COUNTS.execution.counts),
        "waits": sum(COUNTS.queue_wait.counts),
    }


@pytest.fixture
def counted() -> Iterator[Seen]:
    """Return what was counted since the last call, nothing that stayed."""
    before = figures()

    def since() -> dict[str, int]:
        nonlocal before
        now = figures()
        changed = {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name, 0)}
        before = now
        return changed

    return since  # type: ignore[return-value]


async def cancel(hand: HandWorker, tx: TenantTransaction, run_id: UUID) -> None:
    await hand.kernel.dispatch(RunCancel(run_id), tx)


async def reap_at_the_cap(hand: HandWorker, tx: TenantTransaction, run_id: UUID) -> None:
    await tx.fetch_all(CLOCK["advance"], offset=f"{LATER.total_seconds()} seconds")
    await hand.kernel.dispatch(LeaseReapStale(), tx)


async def give_up_what_is_stuck(hand: HandWorker, tx: TenantTransaction, run_id: UUID) -> None:
    await tx.fetch_all(CLOCK["advance"], offset=f"{LATER.total_seconds()} seconds")
    await hand.kernel.dispatch(RunReapStuck(), tx)


ENDS: dict[str, tuple[End, dict[str, int]]] = {
    "cancel": (cancel, {"cancelled": 1}),
    "reap": (reap_at_the_cap, {"failed": 1, "expired": 1}),
    "stuck": (give_up_what_is_stuck, {"failed": 1}),
}


@pytest.mark.parametrize("how", ENDS)
async def test_an_end_counts_once_and_not_when_it_is_rolled_back(
    hand: HandWorker, superuser: psycopg.AsyncConnection, counted: Seen, how: str
) -> None:
    end, expected = ENDS[how]
    run_id = await hand.create("single")
    await hand.tick()
    assert counted() == {"started": 1}
    if how == "stuck":
        await superuser.execute("delete from tenantry.job_queue where run_id = %s", [run_id])
    async with regretted(hand) as tx:
        await end(hand, tx, run_id)
    assert counted() == {}
    async with hand.transaction() as tx:
        await end(hand, tx, run_id)
        assert counted() == {}
    assert counted() == expected
    async with hand.transaction() as tx:
        await end(hand, tx, run_id)
    assert counted() == {}


@pytest.mark.parametrize(
    ("outcome", "ends"),
    [(StageCompleted('{"n": 1}'), {"completed": 1}), (StageFailed("x", retryable=False), {"failed": 1})],
    ids=["completed", "failed"],
)
async def test_a_settle_that_ends_its_run_counts_the_end(
    hand: HandWorker, counted: Seen, outcome: Any, ends: dict[str, int]
) -> None:
    await hand.create("single")
    (job,) = await hand.tick()
    counted()
    await hand.settle(job, outcome)
    assert counted() == ends


async def test_a_run_from_sql_that_is_refused_counts_as_failed_and_never_as_started(
    hand: HandWorker, database_urls: DatabaseUrls, counted: Seen
) -> None:
    async with await psycopg.AsyncConnection.connect(database_urls.straight("tenantry_worker")) as sql:
        await sql.execute(BIND, [str(hand.tenant_id)])
        await sql.execute(ENQUEUE, [str(uuid4()), '{"n": "no number"}'])
    async with regretted(hand) as tx:
        await hand.kernel.dispatch(WorkerTick("hand", 10), tx)
    assert counted() == {}
    await hand.tick()
    assert counted() == {"failed": 1}


async def test_a_redriven_run_starts_and_ends_once_more(hand: HandWorker, counted: Seen) -> None:
    run_id = await hand.create("single")
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(run_id), tx)
        await hand.kernel.dispatch(RunRedrive(run_id), tx)
    (job,) = await hand.tick()
    await hand.settle(job)
    assert counted() == {"cancelled": 1, "started": 1, "completed": 1}


async def test_what_runs_without_a_worker_counts_like_what_a_worker_runs(
    hand: HandWorker, database_urls: DatabaseUrls, counted: Seen
) -> None:
    run_id = await hand.create("single")
    entry = Serverless(REGISTRY, DatabaseSettings(database_urls.worker))
    await entry.process_available_jobs(hand.tenant_id)
    of_execution = {"job completed": 1, "executions": 1, "waits": 1}
    assert counted() == {"started": 1, "completed": 1, **of_execution}
    run_id = await hand.create("single")
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunClaimPending("hand"), tx)
        await hand.kernel.dispatch(JobExecute(run_id, "first"), tx)
    assert counted() == {"started": 1, "completed": 1, **of_execution}


async def test_the_first_stage_has_waited_for_as_long_as_its_run_was_due(
    hand: HandWorker, look: Look, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await hand.create("chain")
    await superuser.execute(
        "update tenantry.workflow_runs set available_at = available_at - interval '5 s' where run_id = %s", [run_id]
    )
    (job,) = await hand.tick()
    assert 5_000 <= job.queue_wait_ms < 15_000
    settled = await hand.settle(job, lease_ahead=1)
    assert [next_job.queue_wait_ms for next_job in settled.next_jobs] == [0]


# -- callers' transactions


@asynccontextmanager
async def bound(urls: DatabaseUrls, shape: str, tenant_id: UUID) -> AsyncIterator[tuple[Any, TenantTransaction]]:
    async with SHAPES[shape](urls.straight("app")) as caller:
        await caller.begin()
        yield caller, await tenancy.bind(caller.connection, tenant_id)


async def end_a_run(tx: TenantTransaction) -> None:
    kernel = Kernel(REGISTRY)
    run_id = (await kernel.dispatch(RunCreate("single", {"n": 1}), tx)).run_id
    await kernel.dispatch(RunCancel(run_id), tx)


@pytest.fixture
async def app(superuser: psycopg.AsyncConnection) -> None:
    await superuser.execute(ROLES)


@pytest.mark.parametrize("shape", [name for name in SHAPES if "alchemy" in name.lower() or "session" in name.lower()])
async def test_sqlalchemy_says_when_its_owner_commits(
    app: None, database_urls: DatabaseUrls, tenant: UUID, counted: Seen, shape: str
) -> None:
    async with bound(database_urls, shape, tenant) as (caller, tx):
        await end_a_run(tx)
        await caller.rollback()
        assert counted() == {}
    async with bound(database_urls, shape, tenant) as (caller, tx):
        await end_a_run(tx)
        nested = await caller.connection.begin_nested()
        # A session sets its savepoint with its next statement.
        await caller.run("select 1")
        await end_a_run(tx)
        await nested.rollback()
        await end_a_run(tx)
        assert counted() == {}
        await caller.commit()
        assert counted() == {"cancelled": 2}
        await caller.begin()
        await end_a_run(await tenancy.bind(caller.connection, tenant))
        await caller.commit()
    assert counted() == {"cancelled": 1}


@pytest.mark.parametrize(
    "shape", [name for name in SHAPES if "alchemy" not in name.lower() and "session" not in name.lower()]
)
async def test_the_end_of_a_drivers_own_transaction_is_out_of_sight(
    app: None, database_urls: DatabaseUrls, tenant: UUID, counted: Seen, shape: str
) -> None:
    async with bound(database_urls, shape, tenant) as (caller, tx):
        await end_a_run(tx)
        assert counted() == {"cancelled": 1}
        await caller.commit()
    assert counted() == {}
