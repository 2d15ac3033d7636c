"""DBOS: one workflow of three steps, or of ten, started through a queue."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
from dbos import DBOS, DBOSClient
from protocol import await_done, await_end, await_go, gaps, serve, share

QUEUE = "bench"
VERSION = "bench"
NAMES = {3: "three", 10: "ten"}
# So many are enqueued as its client does; the rest of a deep backlog, which would take minutes, is copied.
ENQUEUED = 2000


@DBOS.step()
def add(n: int) -> int:
    return n + 1


@DBOS.step()
def double(n: int) -> int:
    return n * 2


@DBOS.step()
def shift(n: int) -> int:
    return n + 100


@DBOS.workflow(name=NAMES[3])
def three(n: int) -> int:
    return shift(double(add(n)))


@DBOS.workflow(name=NAMES[10])
def ten(n: int) -> int:
    for _ in range(10):
        n = add(n)
    return n


RESULTS = {3: lambda n: (n + 1) * 2 + 100, 10: lambda n: n + 10}


def launch(url: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "application_version": VERSION,
            "executor_id": f"bench-{os.getpid()}",
            "log_level": "ERROR",
            "console_log_level": "ERROR",
        }
    )
    DBOS.launch()


def setup(url: str) -> str:
    """Create its tables; the queue is registered by the workers, so that a backlog waits for them."""
    launch(url)
    DBOS.destroy()
    return "done"


def enqueue(client: DBOSClient, name: str, n: int) -> str:
    handle = client.enqueue({"queue_name": QUEUE, "workflow_name": name, "app_version": VERSION}, n)
    workflow_id: str = handle.get_workflow_id()
    return workflow_id


def fill(url: str, count: int, steps: int = 3) -> str:
    """Enqueue as its client does; what goes beyond ENQUEUED is a copy of one of them, its input included."""
    client = DBOSClient(system_database_url=url)
    first = min(count, ENQUEUED)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: enqueue(client, NAMES[steps], n), range(1, first + 1)))
    client.destroy()
    if count > first:
        with psycopg.connect(url, autocommit=True) as connection:
            copy(connection, count - first)
    return "done"


def copy(connection: psycopg.Connection, count: int) -> None:
    """Copy a workflow that waits; DBOS keeps the input in a table of its own, and without it a workflow never ends."""
    columns = [
        row[0]
        for row in connection.execute(
            "select attname from pg_attribute where attrelid = 'dbos.workflow_status'::regclass and attnum > 0"
            " and not attisdropped and attgenerated = ''"
        )
    ]
    values = {"workflow_uuid": "made.id", "created_at": "kept.created_at + made.number"}
    chosen = ", ".join(values.get(column, f"kept.{column}") for column in columns)
    connection.execute(
        f"""
        with kept as materialized (select * from dbos.workflow_status limit 1),
        made as materialized (
          select gen_random_uuid()::text as id, series.number from generate_series(1, {count}) as series (number)
        ),
        copied as (
          insert into dbos.workflow_status ({", ".join(columns)}) select {chosen} from made cross join kept
        )
        insert into dbos.workflow_input (workflow_uuid, inputs, retention_timestamp)
        select made.id, source.inputs, source.retention_timestamp
        from made cross join kept join dbos.workflow_input as source on source.workflow_uuid = kept.workflow_uuid
        """
    )


def work(url: str, concurrency: int, poll_s: float) -> str:
    """Dequeue and execute, `concurrency` workflows at a time."""
    launch(url)
    await_go()
    DBOS.register_queue(QUEUE, worker_concurrency=concurrency, polling_interval_sec=poll_s)
    await_end()
    os._exit(0)


def live(url: str, count: int, clients: int) -> str:
    """Enqueue from so many threads."""
    client = DBOSClient(system_database_url=url)
    await_go()
    with ThreadPoolExecutor(clients) as threads:
        shares = share(range(1, count + 1), clients)
        list(threads.map(lambda numbers: [enqueue(client, NAMES[3], n) for n in numbers], shares))
    await_end()
    return "done"


def idle(url: str, count: int) -> list[float]:
    """Enqueue one at a time, at random moments; return the seconds until it is seen to be over."""
    client = DBOSClient(system_database_url=url)
    await_go()
    latencies = []
    with psycopg.connect(url, autocommit=True) as look:
        for gap in gaps(count):
            time.sleep(gap)
            began = time.time()
            workflow_id = enqueue(client, NAMES[3], 1)
            latencies.append(await_done(lambda run=workflow_id: is_done(look, run), began))
    return latencies


def is_done(look: psycopg.Connection, workflow_id: str) -> bool:
    row = look.execute("select status from dbos.workflow_status where workflow_uuid = %s", (workflow_id,)).fetchone()
    return row is not None and row[0] == "SUCCESS"


def check(url: str, first: int, steps: int = 3) -> dict[str, float]:
    """Return how the first so many runs went; outputs are read with its own client."""
    client = DBOSClient(system_database_url=url)
    with psycopg.connect(url) as look:
        rows = look.execute(
            "select workflow_uuid, created_at, started_at_epoch_ms, coalesce(completed_at, updated_at)"
            " from dbos.workflow_status where name = %s and status = 'SUCCESS' order by 4 limit %s",
            (NAMES[steps], first),
        ).fetchall()
        stray = look.execute(
            "select count(*) from (select 1 from dbos.workflow_status as run join dbos.operation_outputs as step"
            " using (workflow_uuid) where run.status = 'SUCCESS' group by workflow_uuid having count(*) <> %s) as odd",
            (steps,),
        ).fetchone()
    wrong = stray[0] if stray else 0
    for workflow_id in [row[0] for row in rows[:: max(len(rows) // 200, 1)]]:
        status = client.retrieve_workflow(workflow_id).get_status()
        n = status.input["args"][0]
        wrong += status.output != RESULTS[steps](n)
    client.destroy()
    return {
        "completed": len(rows),
        "wrong": wrong,
        "created_at": min(row[1] for row in rows) / 1000,
        "started_at": min(row[2] for row in rows) / 1000,
        "completed_at": max(row[3] for row in rows) / 1000,
    }


if __name__ == "__main__":
    serve({"setup": setup, "fill": fill, "work": work, "live": live, "idle": idle, "check": check})
