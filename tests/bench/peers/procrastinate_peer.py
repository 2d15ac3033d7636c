"""procrastinate: a run is a chain of three tasks, each of which defers the next."""

import asyncio
import sys
import time
from typing import Any

import procrastinate
import psycopg
from protocol import await_done, await_end, await_go, gaps, serve, share

POOL = 12
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[2], min_size=4, max_size=POOL))


@app.task(name="add")
async def add(run: int, n: int) -> int:
    await double.defer_async(run=run, n=n + 1)
    return n + 1


# What has begun goes before what waits: else the first run of a deep backlog would be over when all have begun.
@app.task(name="double", priority=1)
async def double(run: int, n: int) -> int:
    await shift.defer_async(run=run, n=n * 2)
    return n * 2


@app.task(name="shift", priority=2)
async def shift(run: int, n: int) -> int:
    return n + 100


def setup(_url: str) -> str:
    """Create its tables."""

    async def apply() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(apply())
    return "done"


async def defer(numbers: range, batch: int) -> None:
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        if batch == 1:
            await add.defer_async(run=part[0], n=part[0])
        else:
            await add.batch_defer_async(*({"run": n, "n": n} for n in part))


def fill(_url: str, count: int) -> str:
    """Defer the first tasks in batches."""

    async def run() -> None:
        async with app.open_async():
            await defer(range(1, count + 1), 500)

    asyncio.run(run())
    return "done"


def work(_url: str, concurrency: int, poll_s: float, listen: bool = True) -> str:
    """Fetch and execute, `concurrency` tasks at a time."""

    async def run() -> None:
        async with app.open_async():
            await asyncio.to_thread(await_go)
            worker = asyncio.create_task(
                app.run_worker_async(
                    concurrency=concurrency,
                    fetch_job_polling_interval=poll_s,
                    listen_notify=listen,
                    install_signal_handlers=False,
                )
            )
            await asyncio.to_thread(await_end)
            worker.cancel()
            await asyncio.wait([worker])

    asyncio.run(run())
    return "done"


def live(_url: str, count: int, clients: int, batch: int = 1) -> str:
    """Defer runs, so many at a time and `batch` in a call."""

    async def run() -> None:
        async with app.open_async():
            await asyncio.to_thread(await_go)
            await asyncio.gather(*(defer(numbers, batch) for numbers in share(range(1, count + 1), clients)))
            await asyncio.to_thread(await_end)

    asyncio.run(run())
    return "done"


def idle(url: str, count: int) -> list[float]:
    """Defer one at a time, at random moments; return the seconds until its third task is seen to be over."""
    latencies: list[float] = []

    async def run() -> None:
        async with app.open_async():
            await asyncio.to_thread(await_go)
            with psycopg.connect(url, autocommit=True) as look:
                for number, gap in enumerate(gaps(count), start=1):
                    await asyncio.sleep(gap)
                    began = time.time()
                    await add.defer_async(run=number, n=number)
                    latencies.append(await_done(lambda goal=number: done(look) >= goal, began))

    asyncio.run(run())
    return latencies


def done(look: psycopg.Connection) -> int:
    row = look.execute(
        "select count(*) from procrastinate_jobs where task_name = 'shift' and status = 'succeeded'"
    ).fetchone()
    return row[0] if row else 0


def check(url: str, first: int) -> dict[str, Any]:
    """Return how the first so many runs went; its tasks keep no result, so the last task's argument is looked at."""
    with psycopg.connect(url) as look:
        rows = look.execute(
            """
            select (third.args ->> 'run')::int, (third.args ->> 'n')::int, extract(epoch from finished.at)::float8
            from procrastinate_jobs as third
            join procrastinate_events as finished on finished.job_id = third.id and finished.type = 'succeeded'
            where third.task_name = 'shift' and third.status = 'succeeded'
            order by finished.at limit %s
            """,
            (first,),
        ).fetchall()
        (created_at, started_at) = look.execute(
            """
            select extract(epoch from min(at) filter (where type = 'deferred'))::float8,
              extract(epoch from min(at) filter (where type = 'started'))::float8
            from procrastinate_events
            """
        ).fetchone() or (0, 0)
    runs = {row[0] for row in rows}
    wrong = sum(n != (run + 1) * 2 for run, n, _ in rows) + len(rows) - len(runs)
    completed_at = max(row[2] for row in rows)
    return {
        "completed": len(rows),
        "wrong": wrong,
        "created_at": created_at,
        "started_at": started_at,
        "completed_at": completed_at,
    }


if __name__ == "__main__":
    serve({"setup": setup, "fill": fill, "work": work, "live": live, "idle": idle, "check": check})
