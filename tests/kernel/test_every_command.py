"""Every command that the kernel has becomes durable, or vanishes, with the transaction of whoever called it.

A command without a case here fails the first test: add a scene in which it has something to do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import tenancy
from kernel import (
    Command,
    DuePromote,
    IdempotencyExpire,
    JobBegin,
    JobClaim,
    JobExecute,
    JobHeartbeat,
    JobRelease,
    JobReport,
    JobSettle,
    JobSettleExpected,
    Kernel,
    LeaseReapStale,
    Registry,
    RunCancel,
    RunClaimPending,
    RunCreate,
    RunListVersions,
    RunPurge,
    RunReapStuck,
    RunRedrive,
    RunTransition,
    Settlement,
    StageCompleted,
    StageContext,
    StagePollSuspended,
    StepOp,
    StepSignal,
    StepWrite,
    WorkerTick,
    log_rows,
    stage,
    workflow,
)
from kernel.command import command_types
from kernel.execution.journal import LogRecord
from tenancy import Database
from tests.support.callers import ROLES, SHAPES
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.workflows import ALL, HandWorker, Number


@stage("step")
async def step(ctx: StageContext, number: Number) -> Number:
    first = await ctx.step.run("first", lambda: number.n + 1)
    rest = await asyncio.gather(*(ctx.step.run(f"side-{side}", lambda side=side: side) for side in range(3)))
    return Number(n=first + sum(rest))


@stage("poll")
async def poll(ctx: StageContext, number: Number) -> Number:
    await ctx.step.wait_for("come", poll=lambda: False, ready=bool, every="1s", timeout="1h")
    return number


STEPPING = workflow("stepping", input=Number).pipe(step).build()
POLLING = workflow("polling", input=Number).pipe(poll).build()
REGISTRY = Registry([*ALL, STEPPING, POLLING])
KERNEL = Kernel(REGISTRY)


@dataclass(frozen=True, slots=True)
class Scene:
    """A tenant in which a command finds something to do; `sql` is the superuser's, who makes time pass."""

    hand: HandWorker
    superuser: psycopg.AsyncConnection

    async def sql(self, statement: str) -> None:
        await self.superuser.execute(statement.encode(), {"tenant": self.hand.tenant_id})

    async def dispatch(self, command: Command[Any]) -> Any:
        async with self.hand.transaction() as tx:
            return await self.hand.kernel.dispatch(command, tx)

    async def started(self, workflow_id: str) -> UUID:
        """Start a run whose job is queued."""
        run_id = await self.hand.create(workflow_id)
        await self.dispatch(RunClaimPending("hand"))
        return run_id


async def run_create(_: Scene) -> Command[Any]:
    return RunCreate("chain", {"n": 1}, tags=["a"], idempotency_key="k")


async def run_cancel(scene: Scene) -> Command[Any]:
    return RunCancel(await scene.started("fan"), "enough")


async def run_claim_pending(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    return RunClaimPending("caller")


async def run_transition(scene: Scene) -> Command[Any]:
    run_id = await scene.started("chain")
    await scene.sql(
        "update tenantry.workflow_stages set status = 'COMPLETED', output = '{\"n\": 2}' where tenant_id = %(tenant)s"
    )
    await scene.sql("delete from tenantry.job_queue where tenant_id = %(tenant)s")
    return RunTransition(run_id)


async def run_reap_stuck(scene: Scene) -> Command[Any]:
    await scene.started("chain")
    for table in ("workflow_runs", "workflow_stages"):
        await scene.sql(
            f"update tenantry.{table} set updated_at = now() - interval '1 day' where tenant_id = %(tenant)s"
        )
    await scene.sql("delete from tenantry.job_queue where tenant_id = %(tenant)s")
    return RunReapStuck()


async def run_redrive(scene: Scene) -> Command[Any]:
    run_id = await scene.started("fan")
    await scene.dispatch(RunCancel(run_id))
    return RunRedrive(run_id)


async def run_purge(scene: Scene) -> Command[Any]:
    await scene.dispatch(RunCancel(await scene.started("fan")))
    return RunPurge(datetime.now(UTC) + timedelta(days=1))


async def run_list_versions(_: Scene) -> Command[Any]:
    return RunListVersions()


async def job_claim(scene: Scene) -> Command[Any]:
    await scene.started("fan")
    return JobClaim("caller")


async def job_begin(scene: Scene) -> Command[Any]:
    await scene.hand.create("optional", 2)
    return JobBegin(await scene.hand.tick())


async def job_execute(scene: Scene) -> Command[Any]:
    return JobExecute(await scene.started("stepping"), "step")


async def job_heartbeat(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    return JobHeartbeat([job.fence for job in await scene.hand.tick()])


async def job_release(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    await scene.hand.tick()
    return JobRelease("hand")


async def job_report(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    (job,) = await scene.hand.tick()
    return JobReport(log_rows(job, [LogRecord("info", "here", "{}", datetime.now(UTC))]))


async def job_settle(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    (job,) = await scene.hand.tick()
    return JobSettle("hand", [Settlement(job, StageCompleted('{"n": 2}'))], wait=True)


async def job_settle_expected(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    (job,) = await scene.hand.tick()
    return JobSettleExpected("hand", [Settlement(job, StageCompleted('{"n": 2}'))], datetime.now(UTC))


async def lease_reap_stale(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    await scene.hand.tick()
    await scene.sql("update tenantry.job_queue set locked_at = now() - interval '1 hour' where tenant_id = %(tenant)s")
    return LeaseReapStale()


async def stage_poll_suspended(scene: Scene) -> Command[Any]:
    run_id = await scene.hand.create("polling")
    async with scene.hand.transaction() as tx:
        assert (await KERNEL.bound_to(tx).run_to_completion(run_id)).outcome == "suspended"
    await scene.sql(
        "update tenantry.job_queue set ready = true, available_at = now(), rank = now() where tenant_id = %(tenant)s"
    )
    await scene.sql("update tenantry.workflow_stages set next_poll_at = now() where tenant_id = %(tenant)s")
    return StagePollSuspended("caller")


async def step_signal(scene: Scene) -> Command[Any]:
    return StepSignal(await scene.started("chain"), "first", "go", {"by": "ada"})


async def step_write(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    (job,) = await scene.hand.tick()
    claim = {
        "kind": "run", "seq": 1, "claim_id": uuid4(), "lease_s": 60.0, "external_key": "tny-0", "on_reclaim": "rerun",
        "stage_attempt": 1,
    }  # fmt: skip
    return StepWrite([StepOp("claim", job.fence, "first", claim)], wait=True)


async def worker_tick(scene: Scene) -> Command[Any]:
    await scene.hand.create()
    return WorkerTick("caller", 10)


async def due_promote(scene: Scene) -> Command[Any]:
    await scene.hand.create("chain", run_at=datetime.now(UTC) + timedelta(hours=1))
    await scene.sql("update tenantry.workflow_runs set available_at = now() where tenant_id = %(tenant)s")
    return DuePromote()


async def idempotency_expire(scene: Scene) -> Command[Any]:
    await scene.dispatch(RunCancel(await scene.hand.create("chain", idempotency_key="k")))
    await scene.sql("update tenantry.idempotency_keys set expires_at = now() where tenant_id = %(tenant)s")
    return IdempotencyExpire()


CASES: Mapping[type[Any], Callable[[Scene], Awaitable[Command[Any]]]] = {
    DuePromote: due_promote,
    IdempotencyExpire: idempotency_expire,
    JobBegin: job_begin,
    JobClaim: job_claim,
    JobExecute: job_execute,
    JobHeartbeat: job_heartbeat,
    JobRelease: job_release,
    JobReport: job_report,
    JobSettle: job_settle,
    JobSettleExpected: job_settle_expected,
    LeaseReapStale: lease_reap_stale,
    RunCancel: run_cancel,
    RunClaimPending: run_claim_pending,
    RunCreate: run_create,
    RunListVersions: run_list_versions,
    RunPurge: run_purge,
    RunReapStuck: run_reap_stuck,
    RunRedrive: run_redrive,
    RunTransition: run_transition,
    StagePollSuspended: stage_poll_suspended,
    StepSignal: step_signal,
    StepWrite: step_write,
    WorkerTick: worker_tick,
}
# The adapters are tested with each of these; the others show that every command keeps to the transaction it is given.
ON_EVERY_SHAPE = {RunCreate, RunCancel, StepSignal, JobExecute, WorkerTick}
ONE_A_DRIVER = ("session-asyncpg", "asyncpg", "psycopg")


def test_every_command_of_the_kernel_has_its_case() -> None:
    assert {kind.__name__ for kind in command_types()} == {kind.__name__ for kind in CASES}


@pytest.fixture
async def app_url(database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection) -> str:
    await superuser.execute(ROLES)
    return database_urls.straight("app")


@pytest.fixture
def scene(database: Database, tenant: UUID, superuser: psycopg.AsyncConnection) -> Scene:
    return Scene(HandWorker(database, tenant, REGISTRY), superuser)


async def _everything(look: Look, tenant: UUID) -> dict[str, Any]:
    """Return every row that a tenant has, by table, as others see it."""
    tables = await look(
        "select table_name as name from information_schema.columns where table_schema = 'tenantry'"
        " and column_name = 'tenant_id' order by 1"
    )
    rows = (
        "(select json_agg(to_jsonb(t) order by to_jsonb(t)::text) from tenantry.{0} as t where tenant_id = %s) as {0}"
    )
    columns = ", ".join(rows.format(table["name"]) for table in tables)
    (found,) = await look(f"select {columns}", *[tenant] * len(tables))
    return found


def _timely(command: Command[Any]) -> Command[Any]:
    """Return a command that was made just now, for those that are refused soon."""
    return replace(command, at=datetime.now(UTC)) if isinstance(command, JobSettleExpected) else command


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, id=f"{kind.name}-{name}")
        for kind in CASES
        for name in (SHAPES if kind in ON_EVERY_SHAPE else ONE_A_DRIVER)
    ],
)
async def test_it_becomes_durable_or_vanishes_with_its_caller(
    kind: type[Command[Any]], name: str, scene: Scene, app_url: str, look: Look
) -> None:
    tenant, note = scene.hand.tenant_id, str(uuid4())
    command = await CASES[kind](scene)
    before = await _everything(look, tenant)
    async with SHAPES[name](app_url) as caller:
        await caller.begin()
        tx = await tenancy.bind(caller.connection, tenant)
        await caller.note(note)
        await KERNEL.dispatch(_timely(command), tx)
        assert await _everything(look, tenant) == before
        await caller.rollback()
        assert await _everything(look, tenant) == before

        await caller.begin()
        tx = await tenancy.bind(caller.connection, tenant)
        await caller.note(note)
        await caller.run("savepoint before")
        await KERNEL.dispatch(_timely(command), tx)
        await caller.run("rollback to savepoint before")
        await KERNEL.dispatch(_timely(command), tx)
        assert await _everything(look, tenant) == before
        await caller.commit()
    after = await _everything(look, tenant)
    assert (after == before) is kind.is_read
    assert len(await look("select 1 from public.app_notes where note = %s", note)) == 1
