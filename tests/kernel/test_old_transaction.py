"""An old transaction keeps what claims leave dead in the ready indexes: floors pass it, looks without them walk over it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

import psycopg

from kernel.commands import job_claim, run_claim_pending
from kernel.lanes import Lane, Look, lane_items
from service.worker import dispatcher
from service.worker.floors import MARGIN
from tenancy import Call
from tests.support.environment import DatabaseUrls
from tests.support.workflows import REGISTRY, single

LANE = Lane("single", single.definition_version, 5)
DEAD = 20_000
FEW = 500


@asynccontextmanager
async def an_old_transaction(urls: DatabaseUrls) -> AsyncIterator[None]:
    """One that began before everything in the block: what dies meanwhile stays in the indexes."""
    async with await psycopg.AsyncConnection.connect(urls.direct) as old:
        await old.execute("set transaction isolation level repeatable read")
        await old.execute("select 1 from tenantry.tenants")
        yield
        await old.rollback()


async def pages(superuser: psycopg.AsyncConnection, tenant_id: UUID, call: Call) -> int:
    """Return how many pages a statement touches, as its role."""
    statement, params = call
    async with superuser.transaction(force_rollback=True):
        await superuser.execute(
            "select set_config('role', %s, true), set_config('tenantry.tenant_id', %s, true)",
            (statement.role, str(tenant_id)),
        )
        # Once before: what planning reads of the catalogs is not the statement's own, and functions keep their plans.
        await superuser.execute(statement.pyformat.encode(), {**params, "tenant_id": tenant_id})
        explain = f"explain (analyze, buffers, timing off, format json) {statement.pyformat}".encode()
        row = await (await superuser.execute(explain, {**params, "tenant_id": tenant_id})).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def claim_many(superuser: psycopg.AsyncConnection, tenant_id: UUID) -> datetime:
    """Leave the dead entries of many claimed runs and jobs at the head of a lane; returns the floor behind them."""
    run = {"tenant": tenant_id, "workflow": LANE.workflow_id, "version": LANE.version, "dead": DEAD}
    await superuser.execute(
        "insert into tenantry.workflow_runs (tenant_id, workflow_id, version, rank, ready, available_at, input)"
        " select %(tenant)s, %(workflow)s, %(version)s, due.at - interval '5 minutes', true, due.at, '{}'"
        " from generate_series(0, %(dead)s) as number"
        " cross join lateral (select now() - number * interval '1 second' as at) as due",
        run,
    )
    await superuser.execute(
        "insert into tenantry.job_queue"
        " (tenant_id, run_id, stage_id, workflow_id, version, priority, ready, rank, available_at, max_attempts)"
        " select tenant_id, run_id, 'first', workflow_id, version, priority, true, rank, available_at, 3"
        " from tenantry.workflow_runs where tenant_id = %(tenant)s",
        run,
    )
    for table in (b"workflow_runs", b"job_queue"):
        await superuser.execute(
            b"update tenantry." + table + b" set ready = false, status = 'RUNNING' where tenant_id = %(tenant)s"
            b" and rank < (select max(rank) from tenantry." + table + b" where tenant_id = %(tenant)s)",
            run,
        )
        await superuser.execute(b"analyze tenantry." + table)
    query = "select max(rank) from tenantry.job_queue where tenant_id = %(tenant)s"
    row = await (await superuser.execute(query, run)).fetchone()
    assert row is not None
    floor: datetime = row[0] - MARGIN
    return floor


async def test_a_claim_from_its_floor_touches_few_pages(
    database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    async with an_old_transaction(database_urls):
        floors = {LANE: await claim_many(superuser, tenant)}
        lane = {"tenant_id": str(tenant), "workflow_id": LANE.workflow_id, "version": LANE.version}
        lanes = [{**lane, "is_job": is_job, "floors": {"5": floors[LANE].isoformat()}} for is_job in (False, True)]

        for walking, floored in (
            (
                run_claim_pending.claim_call(REGISTRY, 64),
                run_claim_pending.claim_call(REGISTRY, 64, Look(None, floors)),
            ),
            (job_claim.claim_call(REGISTRY, 64), job_claim.claim_call(REGISTRY, 64, Look(None, floors))),
            (question([]), question(lanes)),
        ):
            touched = await pages(superuser, tenant, floored)
            # A probe of an empty lane is two or three pages; there are ten for each pair.
            walked = await pages(superuser, tenant, walking)
            assert touched * 3 < walked
            assert touched < FEW


def question(floors: list[dict[str, object]]) -> Call:
    """Who has work?"""
    where = {"served": lane_items(REGISTRY.served, {}), "after": dispatcher.FIRST, "page": dispatcher.PAGE}
    if not floors:
        return dispatcher.SQL["due"], where
    return dispatcher.SQL["due_from"], {**where, "floors": json.dumps(floors)}
