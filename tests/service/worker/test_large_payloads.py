"""A worker among large payloads: many at once, results that were there before, and neighbours that have none."""

import asyncio
import json
from collections import Counter
from typing import Any
from uuid import UUID

import psycopg

from kernel import Kernel, Registry, RunCreate, StageContext, StepSignal, stage, workflow
from kernel.queries.run_get import run_get
from service.worker.ledger_writer import LedgerWriter, WriterHooks
from tests.support import hosts
from tests.support.arena import Arena
from tests.support.blobs import Shelf, lose
from tests.support.looking import Look
from tests.support.stagehand import Stagehand
from tests.support.workflows import HandWorker


@stage("grow")
async def grow(ctx: StageContext, n: int) -> list[str]:
    return [f"{n:08}" * (5 * 1024 * 1024 // 8)]


async def test_many_large_results_at_once_are_all_written(ring: Arena, look: Look, tenant: UUID) -> None:
    registry = Registry([workflow("grow", input=int).pipe(grow).build()])
    hand = HandWorker(ring.database, tenant, registry)
    run_ids = [await _create(hand, number) for number in range(16)]
    async with hosts.running(hosts.settings(ring.urls), registry):
        assert await ring.all_over(60) == {"COMPLETED": len(run_ids)}
    rows = await look("select run_id, content from tenantry.workflow_blobs where tenant_id = %s", tenant)
    assert {row["run_id"]: json.loads(row["content"])[0][:8] for row in rows} == {
        run_id: f"{number:08}" for number, run_id in enumerate(run_ids)
    }
    await ring.assert_settled_once()


async def test_a_replay_reads_where_its_workers_kernel_keeps(ring: Arena, tenant: UUID) -> None:
    """What is not in the row was taken for lost, and failed its stage."""

    async def body(ctx: StageContext[Any]) -> Any:
        quoted = await ctx.step.run("quote", lambda: "more than ten")
        await ctx.step.sleep("rest", "1m")
        return quoted

    hand = Stagehand(ring.database, tenant, body)
    hand.kernel = Kernel(hand.registry, blobs=Shelf())
    await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    hand.clock.advance(minutes=2)
    job = await hand.lease()
    async with asyncio.TaskGroup() as tasks:
        hooks = WriterHooks(lambda _tenant_id, _count: 0, lambda _tenant_id: None)
        writer = LedgerWriter(hand.kernel, ring.database, hand.worker_id, hooks, tasks)
        steps = {step.step_id: step for step in await writer.read_steps(tenant, job)}
    assert (steps["quote"].result, steps["quote"].is_lost) == ('"more than ten"', False)


async def _create(hand: HandWorker, number: int) -> UUID:
    async with hand.transaction() as tx:
        return (await hand.kernel.dispatch(RunCreate("grow", number), tx)).run_id


TOLD = ["t" * (5 * 1024 * 1024)]


@stage("hear")
async def hear(ctx: StageContext) -> Any:
    return await ctx.step.wait_for_signal("told", timeout="1h")


async def test_a_large_signal_that_came_before_its_stage_is_heard(ring: Arena, tenant: UUID) -> None:
    registry = Registry([workflow("hear", input=int).pipe(hear).build()])
    hand = HandWorker(ring.database, tenant, registry)
    async with hand.transaction() as tx:
        run_id = (await hand.kernel.dispatch(RunCreate("hear", 1), tx)).run_id
        await hand.kernel.dispatch(StepSignal(run_id, "hear", "told", TOLD), tx)
    async with hosts.running(hosts.settings(ring.urls), registry):
        assert await ring.all_over(30) == {"COMPLETED": 1}
    async with hand.transaction() as tx:
        view = await run_get(tx, run_id)
    assert view is not None
    assert json.loads(view.output or "") == TOLD
    # What the step, the stage and the run have in common is there once.
    assert len(await ring.rows("select digest from tenantry.workflow_blobs where tenant_id = %(tenant)s")) == 1
    assert (await ring.events())["stage:suspended"] == 0


@stage("pick")
async def pick(ctx: StageContext, size: int) -> str:
    return await ctx.step.run("picked", lambda: "x" * size)


async def test_large_and_small_ones_share_a_worker(ring: Arena, tenant: UUID) -> None:
    registry = Registry([workflow("pick", input=int).pipe(pick).build()])
    hand = HandWorker(ring.database, tenant, registry)
    sizes = [10, 400_000] * 10
    async with hand.transaction() as tx:
        ids = [(await hand.kernel.dispatch(RunCreate("pick", size), tx)).run_id for size in sizes]
    async with hosts.running(hosts.settings(ring.urls), registry):
        assert await ring.all_over(30) == {"COMPLETED": len(sizes)}
    found: Counter[int] = Counter()
    async with hand.transaction() as tx:
        for run_id in ids:
            view = await run_get(tx, run_id)
            assert view is not None
            found[len(json.loads(view.output or ""))] += 1
    assert found == {10: 10, 400_000: 10}
    await ring.assert_settled_once()


@stage("measure")
async def measure(ctx: StageContext, given: str) -> int:
    return len(given)


@stage("ask")
async def ask(ctx: StageContext, size: int) -> int:
    return len(await ctx.step.wait_for_signal("told", timeout="1h"))


async def test_what_is_lost_of_some_runs_delays_no_other_run_of_their_tenant(
    ring: Arena, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    """Of the one its input, of the next a result that it asks for in the same moment as all the others ask for theirs."""
    registry = Registry(
        [workflow("take", input=str).pipe(measure).build(), workflow("ask", input=int).pipe(ask).build()]
    )
    hand = HandWorker(ring.database, tenant, registry)
    async with hand.transaction() as tx:
        takes = [(await hand.kernel.dispatch(RunCreate("take", "x" * 300_000), tx)).run_id for _ in range(5)]
        asks = [(await hand.kernel.dispatch(RunCreate("ask", 1), tx)).run_id for _ in range(5)]
        for run_id in asks:
            await hand.kernel.dispatch(StepSignal(run_id, "ask", "told", TOLD[0]), tx)
    for run_id in (takes[2], asks[2]):
        await lose(superuser, run_id)
    async with hosts.running(hosts.settings(ring.urls), registry):
        assert await ring.all_over(30) == {"COMPLETED": 8, "FAILED": 2}
    rows = await ring.rows(
        "select run_id, error ->> 'code' as code from tenantry.workflow_runs"
        " where tenant_id = %(tenant)s and status = 'FAILED'"
    )
    assert {row["run_id"]: row["code"] for row in rows} == {takes[2]: "PAYLOAD_LOST", asks[2]: "STAGE_FAILED"}
    # Each body was begun once: nobody's outcome was refused because of a neighbour's.
    assert (await ring.events())["stage:retrying"] == 0
