"""The hand-made limit: the same rows and events, under row-level security and through PgBouncer, without an engine."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import psycopg
import uvloop
from psycopg.rows import tuple_row

from tenancy import load_sql
from tests.bench.meter import Meter
from tests.bench.ours import fresh_database
from tests.bench.report import Figure
from tests.bench.servers import BenchCluster
from tests.bench.workflows import three

SQL = load_sql(__file__)
NAME = "by hand"
STAGE_IDS = [placed.stage.id for placed in three.stages]


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that move in step, and what all their statements share."""

    connection: psycopg.AsyncConnection[tuple[Any, ...]]
    shared: dict[str, object]

    async def send(self, name: str, **params: object) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        return await self.connection.execute(SQL[name].pyformat.encode(), {**self.shared, **params})


def limit(cluster: BenchCluster, connections: int, size: int, count: int) -> Figure:
    """Drain a backlog with so many connections, `size` runs at a time."""
    with fresh_database(cluster) as (urls, spine):
        owners = spine.add_tenants()
        spine.add_runs(owners, count)
        meter = Meter(cluster, urls.database, [os.getpid()])
        before = meter.read()
        uvloop.run(_drain(urls.worker, owners[0], connections, size))
        cost = before.until(meter.read())
        meter.close()
        spine.verify(owners, count)
        rate = count / spine.seconds(owners, count, since="started_at")
    in_flight = connections * size
    label = f"{connections} connections x {size} runs at once"
    return Figure("W1 backlog", f"{NAME} {in_flight}", label, rate, cost=cost, runs=count)


async def _drain(url: str, tenant_id: UUID, connections: int, size: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(_work(url, tenant_id, size))


async def _work(url: str, tenant_id: UUID, size: int) -> None:
    connection = await psycopg.AsyncConnection.connect(
        url, autocommit=True, prepare_threshold=None, row_factory=tuple_row
    )
    shared: dict[str, object] = {
        "tenant_id": tenant_id,
        "workflow": three.id,
        "version": three.definition_version,
        "limit": size,
    }
    batch = Batch(connection, shared)
    async with connection:
        while True:
            async with connection.pipeline():
                await connection.execute("begin")
                await batch.send("bind")
                claimed = await batch.send("claim")
            numbers = dict(await claimed.fetchall())
            if not numbers:
                await connection.execute("commit")
                return
            await _open(batch, sorted(numbers))
            await _settle(batch, numbers)


async def _open(batch: Batch, run_ids: Sequence[UUID]) -> None:
    items = orjson.dumps([{"run_id": run_id} for run_id in run_ids]).decode()
    events = [
        {
            "sequence": 2,
            "type": "workflow:started",
            "payload": {"workflow": three.id, "definition_version": three.definition_version},
        },
        _event(3, "stage:started", STAGE_IDS[0]),
    ]
    async with batch.connection.pipeline():
        await _open_stage(batch, items, 1)
        await batch.send("add_events", items=items, events=orjson.dumps(events).decode())
        await batch.connection.execute("commit")


async def _open_stage(batch: Batch, items: str, number: int) -> None:
    stage_id = STAGE_IDS[number - 1]
    await batch.send("open_stages", items=items, stage_id=stage_id, number=number)
    await batch.send("open_jobs", items=items, stage_id=stage_id)


async def _settle(batch: Batch, numbers: dict[UUID, int]) -> None:
    """Execute the stages one after the other, each in one transaction and one message for the whole batch."""
    bodies = (lambda n: n + 1, lambda n: n * 2, lambda n: n + 100)
    for number, (stage_id, body) in enumerate(zip(STAGE_IDS, bodies, strict=True), start=1):
        numbers = {run_id: body(n) for run_id, n in numbers.items()}
        results = [{"run_id": run_id, "output": f'{{"n":{numbers[run_id]}}}'} for run_id in sorted(numbers)]
        items = orjson.dumps(results).decode()
        sequence = 3 + 2 * number
        is_last = number == len(STAGE_IDS)
        events = [_event(sequence - 1, "stage:completed", stage_id)]
        if is_last:
            events.append({"sequence": sequence, "type": "workflow:completed", "payload": {}})
        else:
            events.append(_event(sequence, "stage:started", STAGE_IDS[number]))
        async with batch.connection.pipeline():
            await batch.connection.execute("begin")
            await batch.send("bind")
            await batch.send("complete_runs" if is_last else "advance_runs", items=items, sequence=sequence)
            await batch.send("complete_stages", items=items, stage_id=stage_id)
            await batch.send("delete_jobs", items=items, stage_id=stage_id)
            if not is_last:
                await _open_stage(batch, items, number + 1)
            await batch.send("add_events", items=items, events=orjson.dumps(events).decode())
            await batch.connection.execute("commit")


def _event(sequence: int, kind: str, stage_id: str) -> dict[str, object]:
    return {"sequence": sequence, "type": kind, "stage_id": stage_id, "payload": {"attempt": 1}}
