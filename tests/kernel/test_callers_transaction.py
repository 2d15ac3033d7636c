"""Bodies, retries and whole runs inside a caller's own transaction, on every connection a caller may bring."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

import tenancy
from kernel import (
    JobExecute,
    JobNotAvailableError,
    Kernel,
    Registry,
    RunCancel,
    RunClaimPending,
    RunCreate,
    RunNotFoundError,
    StageContext,
    TransactionRequiredError,
    stage,
    workflow,
)
from kernel.queries.run_events import run_events
from kernel.queries.run_get import run_get
from kernel.queries.run_logs import run_logs
from tenancy import TenantTransaction
from tests.support import factories
from tests.support.callers import ROLES, SHAPES, Shape
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.workflows import REGISTRY, HandWorker, Number

KERNEL = Kernel(REGISTRY)
Opener = Callable[[str], AbstractAsyncContextManager[Any]]


def _committed(shape: Shape) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        async with shape(url) as caller:
            await caller.begin()
            yield caller.connection
            await caller.commit()

    return opened


class CancelledOnPurposeError(Exception):
    """Rolls a caller's transaction back."""


@pytest.fixture(params=SHAPES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return _committed(SHAPES[request.param])


@pytest.fixture
async def app_url(database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection) -> str:
    await superuser.execute(ROLES)
    return database_urls.straight("app")


async def test_large_payloads_come_and_go_on_every_connection(
    app_url: str, opener: Opener, tenant: UUID, look: Look
) -> None:
    @stage("double")
    async def double(ctx: StageContext, given: str) -> Any:
        return await ctx.step.run("twice", lambda: [given, given])

    kernel = Kernel(Registry([workflow("double", input=str).pipe(double).build()]))
    given = "ä" * 200_000
    async with opener(app_url) as connection:
        tx = await tenancy.bind(connection, tenant)
        created = await kernel.dispatch(RunCreate("double", given), tx)
        assert (await kernel.bound_to(tx).run_to_completion(created.run_id)).outcome == "completed"
        view = await run_get(tx, created.run_id)
    assert view is not None
    assert (json.loads(view.input), json.loads(view.output or "")) == (given, [given, given])
    assert len(await look("select digest from tenantry.workflow_blobs where tenant_id = %s", tenant)) == 2


async def test_a_whole_run_happens_within_the_callers_transaction(
    app_url: str, opener: Opener, tenant: UUID, look: Look
) -> None:
    async with opener(app_url) as connection:
        tx = await tenancy.bind(connection, tenant)
        created = await KERNEL.dispatch(RunCreate(workflow_id="fan", input={"n": 3}), tx)
        assert await look("select 1 from tenantry.workflow_runs where run_id = %s", created.run_id) == []
        done = await KERNEL.bound_to(tx).run_to_completion(created.run_id, max_jobs=50)

    assert (done.outcome, done.jobs_processed) == ("completed", 3)
    (run,) = await look("select status, output from tenantry.workflow_runs where run_id = %s", created.run_id)
    assert run == {"status": "COMPLETED", "output": {"n": 0}}
    events = await look(
        "select sequence, type from tenantry.outbox_events where run_id = %s order by sequence", created.run_id
    )
    assert [event["sequence"] for event in events] == [*range(1, len(events) + 1)]
    assert events[-1]["type"] == "workflow:completed"
    assert await look("select 1 from tenantry.job_queue where run_id = %s", created.run_id) == []


async def test_a_rollback_takes_the_whole_run_with_it(app_url: str, opener: Opener, tenant: UUID, look: Look) -> None:
    async def complete_and_regret() -> None:
        async with opener(app_url) as connection:
            tx = await tenancy.bind(connection, tenant)
            created = await KERNEL.dispatch(RunCreate(workflow_id="chain", input={"n": 3}), tx)
            assert (await KERNEL.bound_to(tx).run_to_completion(created.run_id)).outcome == "completed"
            raise CancelledOnPurposeError

    with pytest.raises(CancelledOnPurposeError):
        await complete_and_regret()

    for table in ("workflow_runs", "workflow_stages", "job_queue", "outbox_events"):
        assert await look(f"select 1 from tenantry.{table} where tenant_id = %s", tenant) == []


async def test_job_execute_runs_body_and_settle_in_the_callers_transaction(
    app_url: str, opener: Opener, tenant: UUID, look: Look
) -> None:
    async with opener(app_url) as connection:
        tx = await tenancy.bind(connection, tenant)
        created = await KERNEL.dispatch(RunCreate(workflow_id="single", input={"n": 1}), tx)
        claimed = await KERNEL.dispatch(RunClaimPending(worker_id="app", limit=10), tx)
        executed = await KERNEL.dispatch(JobExecute(run_id=created.run_id, stage_id="first"), tx)

    assert [(run.run_id, run.workflow_id, run.definition_version) for run in claimed.claimed] == [
        (created.run_id, "single", created.definition_version)
    ]
    assert (executed.outcome, executed.output, executed.error) == ("completed", {"n": 2}, None)
    assert (executed.will_retry, executed.ghost, executed.next_poll_at) == (False, False, None)
    rows = await look(
        "select distinct xmin::text as xmin from tenantry.outbox_events where run_id = %s"
        " and type in ('stage:completed', 'workflow:completed')",
        created.run_id,
    )
    assert len(rows) == 1


async def test_a_failure_is_retried_later_and_not_slept_for(hand: HandWorker) -> None:
    run_id = await hand.create("failing")
    async with hand.transaction() as tx:
        done = await KERNEL.bound_to(tx).run_to_completion(run_id)
    assert (done.outcome, done.jobs_processed) == ("incomplete", 1)

    async with hand.transaction() as tx:
        executed = await KERNEL.dispatch(JobExecute(run_id, "fragile"), tx)
    assert (executed.outcome, executed.will_retry) == ("failed", False)
    assert executed.error == "RuntimeError: broken as asked"

    async with hand.transaction() as tx:
        done = await KERNEL.bound_to(tx).run_to_completion(run_id)
    assert (done.outcome, done.jobs_processed) == ("failed", 0)


async def test_what_a_body_says_is_kept_with_its_outcome(hand: HandWorker) -> None:
    def speaks(ctx: StageContext) -> bool:
        ctx.log("debug", "asked")
        return True

    @stage("talk", when=speaks)
    async def talk(ctx: StageContext, number: Number) -> Number:
        ctx.log("info", "told", n=number.n)
        ctx.progress(0.5, "half")
        return number

    kernel = Kernel(Registry([workflow("talk", input=Number).pipe(talk).build()]))
    async with hand.transaction() as tx:
        created = await kernel.dispatch(RunCreate("talk", {"n": 1}), tx)
        assert (await kernel.bound_to(tx).run_to_completion(created.run_id)).outcome == "completed"
        lines = await run_logs(tx, created.run_id, limit=10)
        events = await run_events(tx, created.run_id, limit=10)
    assert [(line.message, line.fields, line.attempt) for line in lines] == [("asked", "{}", 1), ("told", '{"n":1}', 1)]
    assert [event.type for event in events][2:5] == ["stage:started", "stage:progress", "stage:completed"]


async def test_a_skipped_stage_and_the_bound_on_jobs(hand: HandWorker) -> None:
    run_id = await hand.create("optional", 1)
    async with hand.transaction() as tx:
        bound = KERNEL.bound_to(tx)
        first = await bound.run_to_completion(run_id, max_jobs=1)
        second = await bound.run_to_completion(run_id, max_jobs=1)

    assert (first.outcome, first.jobs_processed) == ("incomplete", 1)
    assert (second.outcome, second.jobs_processed) == ("completed", 1)


async def test_what_may_not_start_stays_incomplete(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    later = await hand.create("chain", run_at=datetime.now(UTC) + timedelta(hours=1))
    cancelled = await hand.create("chain")
    waiting = await hand.create("chain")
    async with hand.transaction() as tx:
        await KERNEL.dispatch(RunCancel(cancelled), tx)
        bound = KERNEL.bound_to(tx)
        assert (await bound.run_to_completion(later)).outcome == "incomplete"
        assert (await bound.run_to_completion(cancelled)).outcome == "cancelled"
        with pytest.raises(RunNotFoundError):
            await bound.run_to_completion(uuid4())

    await factories.set_tenant_status(superuser, hand.tenant_id, "suspended")
    async with hand.transaction() as tx:
        assert (await KERNEL.bound_to(tx).run_to_completion(waiting)).outcome == "incomplete"
        assert (await KERNEL.dispatch(RunClaimPending(worker_id="w"), tx)).claimed == ()
    (run,) = await look("select status from tenantry.workflow_runs where run_id = %s", waiting)
    assert run["status"] == "PENDING"


async def test_ghosts_say_why_and_leased_jobs_are_refused(hand: HandWorker) -> None:
    pending, leased = await hand.create("chain"), await hand.create("single")
    async with hand.transaction() as tx:
        race = await KERNEL.dispatch(JobExecute(pending, "first"), tx)
        orphan = await KERNEL.dispatch(JobExecute(uuid4(), "first"), tx)
    assert (race.ghost, race.ghost_reason, race.outcome) == (True, "race", "failed")
    assert (orphan.ghost, orphan.ghost_reason) == (True, "orphan")

    await hand.tick()
    async with hand.transaction() as tx:
        with pytest.raises(JobNotAvailableError):
            await KERNEL.dispatch(JobExecute(leased, "first"), tx)
        assert (await KERNEL.bound_to(tx).run_to_completion(leased)).outcome == "incomplete"


async def test_without_interactive_transactions_a_command_needs_the_callers(hand: HandWorker) -> None:
    kernel = Kernel(REGISTRY, transactions=hand.database.transaction, skip_interactive_transactions=True)

    with pytest.raises(TransactionRequiredError):
        await kernel.dispatch(RunCreate("chain", {"n": 1}), tenant_id=hand.tenant_id)

    async with hand.transaction() as tx:
        created = await kernel.dispatch(RunCreate("chain", {"n": 1}), tx)
        assert (await kernel.bound_to(tx).run_to_completion(created.run_id)).outcome == "completed"


async def test_two_callers_bring_one_run_to_its_end_once(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain")

    async def complete() -> int:
        async with hand.transaction() as tx:
            return await _jobs(tx, run_id)

    assert sorted(await asyncio.gather(complete(), complete())) == [0, 3]
    rows = await look("select 1 from tenantry.outbox_events where run_id = %s and type = 'stage:started'", run_id)
    assert len(rows) == 3


async def _jobs(tx: TenantTransaction, run_id: UUID) -> int:
    done = await KERNEL.bound_to(tx).run_to_completion(run_id)
    assert done.outcome == "completed"
    return done.jobs_processed


def _side_by_side(own: list[Any], tenant: UUID) -> Registry:
    """A stage whose steps run at once: some only count, some use the caller's connection, some start runs with it."""

    async def count(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def ask(number: int) -> int:
        async with tenancy.turn(own[0]):
            await _ask(own[0])
        return number

    async def start(number: int) -> int:
        # Bound once more: another transaction object on the same connection.
        tx = await tenancy.bind(own[0], tenant)
        await KERNEL.dispatch(RunCreate("single", {"n": number}, idempotency_key=f"side-{number}"), tx)
        return number

    @stage("act")
    async def act(ctx: StageContext, number: Number) -> Number:
        jobs = [(kind, side) for side in range(4) for kind in (count, ask, start)]
        results = await asyncio.gather(
            *(ctx.step.run(f"{kind.__name__}-{side}", partial(kind, side)) for kind, side in jobs),
            *(ctx.step.run(f"thread-{side}", lambda side=side: side) for side in range(4)),
        )
        async with asyncio.TaskGroup() as group:
            for side in range(4):
                group.create_task(ctx.step.run(f"group-{side}", partial(count, side)))
        return Number(n=sum(results))

    return Registry([workflow("play", input=Number).pipe(act).build()])


async def _ask(connection: Any) -> None:
    if isinstance(connection, psycopg.AsyncConnection):
        await connection.execute("select pg_sleep(0.001)")
    elif isinstance(connection, AsyncSession | AsyncConnection):
        await connection.execute(text("select pg_sleep(0.001)"))
    else:
        await connection.execute("select pg_sleep(0.001)")


async def test_concurrent_steps_take_turns_on_one_connection(
    app_url: str, opener: Opener, tenant: UUID, look: Look
) -> None:
    own: list[Any] = []
    kernel = Kernel(_side_by_side(own, tenant))
    async with opener(app_url) as connection:
        own.append(connection)
        tx = await tenancy.bind(connection, tenant)
        run_id = (await kernel.dispatch(RunCreate("play", {"n": 1}), tx)).run_id
        assert (await kernel.bound_to(tx).run_to_completion(run_id)).outcome == "completed"
    steps = await look("select status, attempt from tenantry.workflow_steps where run_id = %s", run_id)
    assert [(row["status"], row["attempt"]) for row in steps] == [("completed", 1)] * 20
    (run,) = await look("select output from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["output"] == {"n": 24}
    assert len(await look("select 1 from tenantry.workflow_runs where tenant_id = %s", tenant)) == 5


async def test_concurrent_commands_take_turns_on_one_connection(
    app_url: str, opener: Opener, tenant: UUID, look: Look
) -> None:
    async with opener(app_url) as connection:
        bound = [await tenancy.bind(connection, tenant) for _ in range(3)]
        commands = [RunCreate("single", {"n": number}, idempotency_key=f"{number % 5}") for number in range(5)]
        created = await asyncio.gather(
            *(KERNEL.dispatch(command, tx) for command in commands for tx in bound),
            *(tenancy.adopt(connection, tenant) for _ in range(5)),
        )
    assert len(created) == 20
    assert len(await look("select 1 from tenantry.workflow_runs where tenant_id = %s", tenant)) == 5
