"""What a measurement cost: CPU of clients, server and pooler, writing transactions, statements, and who else was busy."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

import psutil
import psycopg

from tenancy import load_sql
from tests.bench.servers import BenchCluster
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import Postgres

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; CPU in seconds since the processes began."""

    at: float
    client: float
    postgres: float
    pgbouncer: float
    machine: float
    writing: int
    statements: int

    def until(self, later: "Reading") -> "Cost":
        """Return what was spent between this reading and a later one."""
        spent = later.client - self.client, later.postgres - self.postgres, later.pgbouncer - self.pgbouncer
        seconds = later.at - self.at
        foreign = (later.machine - self.machine - sum(spent)) / seconds / (os.cpu_count() or 1)
        return Cost(seconds, *spent, later.writing - self.writing, later.statements - self.statements, max(foreign, 0))


@dataclass(frozen=True, slots=True)
class Cost:
    """The difference of two readings. `foreign` is the share of the machine that others used, steal included."""

    seconds: float
    client: float
    postgres: float
    pgbouncer: float
    writing: int
    statements: int
    foreign: float


class Meter:
    """Reads the counters of one database's measurement.

    `clients` are pids, counted with their children; the measuring process, whose children are everybody, without them.
    """

    def __init__(self, cluster: BenchCluster, database: str, clients: Iterable[int] = ()) -> None:
        self._clients = list(clients)
        self._servers = (server_pid(cluster.postgres), server_pid(cluster.pgbouncer))
        self._database = database
        self._connection = psycopg.connect(cluster.postgres.url(), autocommit=True)
        self._connection.execute(SQL["keep_statistics"].pyformat.encode())

    def read(self, client_s: float = 0.0) -> Reading:
        """Read now; `client_s` is CPU of clients that have ended already."""
        row = self._connection.execute(SQL["counters"].pyformat.encode(), {"database": self._database}).fetchone()
        assert row is not None
        times = psutil.cpu_times()
        machine = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return Reading(
            at=monotonic(),
            client=client_s + sum(cpu_of(pid) for pid in self._clients),
            postgres=cpu_of(self._servers[0]),
            pgbouncer=cpu_of(self._servers[1]),
            machine=machine,
            writing=row[0],
            statements=row[1],
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def server_pid(server: Postgres | PgBouncer) -> int:
    """Return the pid of a server that runs."""
    assert server._process is not None
    return server._process.pid


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, its living children and those it has waited for."""
    try:
        process = psutil.Process(pid)
        own = process.cpu_times()
        children = process.children() if pid != os.getpid() else []
    except psutil.NoSuchProcess:
        return 0.0
    total = own.user + own.system
    if pid != os.getpid():
        total += getattr(own, "children_user", 0.0) + getattr(own, "children_system", 0.0)
    return total + sum(cpu_of(child.pid) for child in children)
