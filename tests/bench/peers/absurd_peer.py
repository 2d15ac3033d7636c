"""absurd: one task of three steps, or of ten; its schema comes with absurdctl."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import Absurd
from protocol import await_done, await_end, await_go, gaps, serve, share

QUEUE = "bench"
NAMES = {3: "three", 10: "ten"}
RESULTS = {3: lambda n: (n + 1) * 2 + 100, 10: lambda n: n + 10}


def connect(url: str) -> Absurd:
    """Return a client with a connection of its own that knows the tasks."""
    client = Absurd(url, queue_name=QUEUE)

    @client.register_task(NAMES[3])
    def three(params: Any, ctx: Any) -> Any:
        n = params["n"]
        n = ctx.step("add", lambda: n + 1)
        n = ctx.step("double", lambda: n * 2)
        n = ctx.step("shift", lambda: n + 100)
        return {"n": n}

    @client.register_task(NAMES[10])
    def ten(params: Any, ctx: Any) -> Any:
        n = params["n"]
        for number in range(10):
            n = ctx.step(f"add-{number}", lambda n=n: n + 1)
        return {"n": n}

    return client


def setup(url: str) -> str:
    """Create its schema and the queue."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    Absurd(url).create_queue(QUEUE)
    return "done"


def fill(url: str, count: int, steps: int = 3) -> str:
    """Spawn with the very function that its client calls, many in a statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        for start in range(1, count + 1, 1000):
            connection.execute(
                "select count(*) from generate_series(%s::int, %s::int) as made (n) cross join lateral"
                " absurd.spawn_task(%s, %s, jsonb_build_object('n', made.n), '{\"max_attempts\": 5}') as spawned",
                (start, min(start + 999, count), QUEUE, NAMES[steps]),
            )
    return "done"


def work(url: str, connections: int, batch: int, poll_s: float) -> str:
    """Claim and execute on so many connections, each in a thread of its own."""
    clients = [connect(url) for _ in range(connections)]
    await_go()
    for index, client in enumerate(clients):
        options = {"worker_id": f"{os.getpid()}-{index}", "batch_size": batch, "poll_interval": poll_s}
        Thread(target=client.start_worker, kwargs=options, daemon=True).start()
    await_end()
    os._exit(0)


def live(url: str, count: int, clients: int) -> str:
    """Spawn from so many threads, each with a connection of its own."""
    connected = [connect(url) for _ in range(clients)]
    await_go()
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(spawn_all, connected, share(range(1, count + 1), clients)))
    await_end()
    return "done"


def spawn_all(client: Absurd, numbers: range) -> None:
    for n in numbers:
        client.spawn(NAMES[3], {"n": n})


def idle(url: str, count: int) -> list[float]:
    """Spawn one at a time, at random moments; return the seconds until it is seen to be over."""
    client = connect(url)
    await_go()
    latencies = []
    with psycopg.connect(url, autocommit=True) as look:
        for gap in gaps(count):
            time.sleep(gap)
            began = time.time()
            task_id = str(client.spawn(NAMES[3], {"n": 1})["task_id"])
            latencies.append(await_done(lambda task=task_id: is_done(look, task), began))
    return latencies


def is_done(look: psycopg.Connection, task_id: str) -> bool:
    row = look.execute(f"select state from absurd.t_{QUEUE} where task_id = %s", (task_id,)).fetchone()
    return row is not None and row[0] == "completed"


def check(url: str, first: int, steps: int = 3) -> dict[str, Any]:
    """Return how the first so many runs went."""
    with psycopg.connect(url) as look:
        rows = look.execute(
            f"""
            select (task.params ->> 'n')::int, (task.completed_payload ->> 'n')::int, task.attempts,
              (select count(*) from absurd.c_{QUEUE} as step where step.task_id = task.task_id),
              extract(epoch from task.enqueue_at)::float8, extract(epoch from task.first_started_at)::float8,
              extract(epoch from run.completed_at)::float8
            from absurd.t_{QUEUE} as task
            join absurd.r_{QUEUE} as run on run.run_id = task.last_attempt_run
            where task.state = 'completed'
            order by run.completed_at limit %s
            """,
            (first,),
        ).fetchall()
    wrong = sum(result != RESULTS[steps](n) or attempts != 1 or kept != steps for n, result, attempts, kept, *_ in rows)
    return {
        "completed": len(rows),
        "wrong": wrong,
        "created_at": min(row[4] for row in rows),
        "started_at": min(row[5] for row in rows),
        "completed_at": max(row[6] for row in rows),
    }


if __name__ == "__main__":
    serve({"setup": setup, "fill": fill, "work": work, "live": live, "idle": idle, "check": check})
