"""Where the time goes: `make profile`. One worker in this very process drains a backlog, watched from both sides.

The client by cProfile (own time, so it slows Python down and not the server), the server by `pg_stat_statements` with
planning and the statements inside functions. Shares mean something, rates do not. With `--plans MS` the server's log of
plans (auto_explain, inside functions too) of what took longer follows; it costs the server a good deal itself.
"""

import argparse
import asyncio
import cProfile
import pstats
import sys
from contextlib import ExitStack

import psycopg
import uvloop
from psycopg.rows import dict_row

from service.settings import Settings
from service.worker.host import WorkerHost
from service.worker.process import worker_databases
from tenancy import Database, load_sql
from tests.bench.ours import fresh_database
from tests.bench.report import say
from tests.bench.servers import SETTINGS, BenchCluster
from tests.bench.spine import Spine
from tests.bench.workflows import REGISTRY, TEN, THREE, Work
from tests.support.environment import DatabaseUrls
from tests.support.system import sweep

SQL = load_sql(__file__)
WARM_UP = 200
TOP = 25
WORKS = {"w1": THREE, "w2": TEN}


async def drain(urls: DatabaseUrls, spine: Spine, work: Work, runs: int, concurrency: int) -> cProfile.Profile:
    """Run a backlog on a worker of this process and return what its loop did."""
    settings = Settings(
        database_url=urls.worker, dispatcher_database_url=urls.dispatcher, worker_concurrency=concurrency
    )
    working_database, dispatch = worker_databases(settings)
    watched = cProfile.Profile()
    async with Database(working_database) as database, Database(dispatch) as dispatch_database:
        host, stop = WorkerHost(settings, REGISTRY, database, dispatch_database), asyncio.Event()
        working = asyncio.create_task(host.run(stop))
        warm = await asyncio.to_thread(spine.add_tenants, prefix="warm-")
        await asyncio.to_thread(spine.add_runs, warm, WARM_UP, work)
        await asyncio.to_thread(spine.await_end, warm, 60)
        owners = await asyncio.to_thread(spine.add_tenants)
        _server(urls, reset=True)
        watched.enable()
        await asyncio.to_thread(spine.add_runs, owners, runs, work)
        await asyncio.to_thread(spine.await_end, owners, 600)
        watched.disable()
        stop.set()
        await working
    spine.verify(owners, runs, work)
    return watched


def _server(urls: DatabaseUrls, *, reset: bool = False) -> dict[str, list[dict[str, object]]]:
    with psycopg.connect(urls.direct, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("create extension if not exists pg_stat_statements")
        if reset:
            connection.execute(SQL["reset"].pyformat.encode())
            return {}
        params = {"database": urls.database, "top": TOP}
        return {
            name: connection.execute(SQL[name].pyformat.encode(), params).fetchall()
            for name in ("statements", "tables")
        }


def _settings(plans_over_ms: float | None) -> dict[str, str]:
    settings = {"pg_stat_statements.track": "all"}
    if plans_over_ms is None:
        return settings
    return settings | {
        "shared_preload_libraries": f"{SETTINGS['shared_preload_libraries']},auto_explain",
        "auto_explain.log_min_duration": str(plans_over_ms),
        "auto_explain.log_nested_statements": "on",
        "auto_explain.log_analyze": "on",
        "log_min_messages": "log",
    }


def main() -> int:
    """Profile and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.add_argument("--work", choices=WORKS, default="w1")
    parser.add_argument("--plans", type=float, metavar="MS", help="print the plans of what took longer")
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=128)
    options = parser.parse_args()
    sweep()
    with ExitStack() as stack:
        cluster = BenchCluster(_settings(options.plans))
        stack.callback(cluster.close)
        urls, spine = stack.enter_context(fresh_database(cluster))
        watched = uvloop.run(drain(urls, spine, WORKS[options.work], options.runs, options.concurrency))
        say(f"the client, by own time, {options.runs} runs of {options.work}:")
        pstats.Stats(watched, stream=sys.stdout).sort_stats("tottime").print_stats(TOP)
        seen = _server(urls)
        plans = cluster.postgres.log if options.plans is not None else ""
    say("the server, milliseconds a run (a function's time holds that of the statements inside it):")
    for row in seen["statements"]:
        per_run = {name: float(str(row[name])) / options.runs for name in ("exec_ms", "plan_ms", "wal_bytes")}
        say(
            f"{per_run['exec_ms']:8.3f} exec {per_run['plan_ms']:7.3f} plan {per_run['wal_bytes']:7.0f} B wal "
            f"{row['calls']:>7} calls  {str(row['text'])[:110]}"
        )
    say("the tables:")
    for row in seen["tables"]:
        say(
            f"{row['table']:24} {row['inserted']:>7} inserted {row['updated']:>7} updated ({row['hot']} hot) "
            f"{row['deleted']:>7} deleted, {row['indexes']} indexes"
        )
    if plans:
        say(plans)
    return 0


if __name__ == "__main__":
    sys.exit(main())
