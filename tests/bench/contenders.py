"""The peers as the bench sees them: processes of .venv-bench that speak peers/protocol.py, straight at the server.

Straight, because with their defaults none of them works through PgBouncer 1.18: they prepare statements.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg

from tenancy import load_sql
from tests.bench.meter import Meter
from tests.bench.report import Figure
from tests.bench.servers import BenchCluster
from tests.bench.spine import NotVerifiedError
from tests.support.environment import DatabaseUrls

SQL = load_sql(__file__)
HERE = Path(__file__).parent / "peers"
PYTHON = Path(__file__).resolve().parents[2] / ".venv-bench" / "bin" / "python"
DRAIN_LIMIT_S = 240.0
DEEP = 10_000


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and the settings that are tried; the best counts. `work` and `live` are options of its script."""

    name: str
    settings: tuple["PeerSetting", ...]
    live: tuple[Mapping[str, Any], ...]
    idle: tuple["PeerSetting", ...]


@dataclass(frozen=True, slots=True)
class PeerSetting:
    """How many worker processes, and with what options."""

    processes: int
    work: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.processes} x {told(self.work)}"


PEERS = (
    Peer(
        "dbos",
        settings=(
            PeerSetting(2, {"concurrency": 8, "poll_s": 0.05}),
            PeerSetting(2, {"concurrency": 16, "poll_s": 0.2}),
            PeerSetting(1, {"concurrency": 64, "poll_s": 0.5}),
        ),
        live=({"clients": 2},),
        idle=(PeerSetting(1, {"concurrency": 8, "poll_s": 0.01}), PeerSetting(1, {"concurrency": 8, "poll_s": 1.0})),
    ),
    Peer(
        "procrastinate",
        settings=(
            PeerSetting(2, {"concurrency": 10, "poll_s": 5}),
            PeerSetting(2, {"concurrency": 30, "poll_s": 5}),
            PeerSetting(1, {"concurrency": 10, "poll_s": 5}),
        ),
        live=({"clients": 1, "batch": 200}, {"clients": 8}),
        idle=(
            PeerSetting(1, {"concurrency": 10, "poll_s": 0.01, "listen": False}),
            PeerSetting(1, {"concurrency": 10, "poll_s": 5}),
        ),
    ),
    Peer(
        "absurd",
        settings=(
            PeerSetting(2, {"connections": 4, "batch": 10, "poll_s": 0.25}),
            PeerSetting(1, {"connections": 8, "batch": 4, "poll_s": 0.25}),
            PeerSetting(1, {"connections": 4, "batch": 10, "poll_s": 0.25}),
        ),
        live=({"clients": 2},),
        idle=(
            PeerSetting(1, {"connections": 1, "batch": 1, "poll_s": 0.01}),
            PeerSetting(1, {"connections": 1, "batch": 1, "poll_s": 0.25}),
        ),
    ),
)


def told(options: Mapping[str, Any]) -> str:
    """Return options as they stand in the table."""
    return ", ".join(f"{name} {value}" for name, value in options.items())


class PeerProcess:
    """One process of a peer's script; use as a context manager."""

    def __init__(self, peer: Peer, action: str, url: str, options: Mapping[str, Any]) -> None:
        command = [str(PYTHON), str(HERE / f"{peer.name}_peer.py"), action, url, json.dumps(dict(options))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> Any:
        """Wait for the next line that is JSON and return what it says; NotVerifiedError with stderr when there is none."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for line in self._process.stdout:
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
        raise NotVerifiedError(self._process.stderr.read()[-600:])

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(5)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def ask(peer: Peer, action: str, url: str, **options: Any) -> Any:
    """Run one action of a peer's script to its end and return its answer."""
    with PeerProcess(peer, action, url, options) as process:
        return process.answer()


@dataclass(frozen=True, slots=True)
class Load:
    """What a peer is given: `live` options (None: a backlog), `count` runs, of which the first so many are waited for."""

    work: str
    count: int
    first: int
    live: Mapping[str, Any] | None = None


def throughput(cluster: BenchCluster, peer: Peer, setting: PeerSetting, load: Load) -> Figure:
    """Measure a backlog, or runs enqueued while the workers poll."""
    with _database(cluster, peer) as urls, ExitStack() as stack:
        if load.live is None:
            ask(peer, "fill", urls.direct, count=load.count)
        processes = [
            stack.enter_context(PeerProcess(peer, "work", urls.direct, setting.work)) for _ in range(setting.processes)
        ]
        label = setting.label
        if load.live is not None:
            label = f"{label}, {told(load.live)}"
            options = {**load.live, "count": load.count}
            processes.append(stack.enter_context(PeerProcess(peer, "live", urls.direct, options)))
        for process in processes:
            process.answer()
        for process in processes[: setting.processes] if load.live is not None else []:
            process.go()
            time.sleep(0.5)
        meter = Meter(cluster, urls.database, [process.pid for process in processes])
        before = meter.read()
        for process in processes if load.live is None else processes[setting.processes :]:
            process.go()
        # Counting a deep backlog is work too.
        done = _await_done(peer, urls, load.first, look_again_s=0.5 if load.count > DEEP else 0.1)
        cost = before.until(meter.read())
        meter.close()
        span = ask(peer, "check", urls.direct, first=load.first)
    if span["completed"] < load.first or span["wrong"]:
        raise NotVerifiedError(f"{span['completed']} of {load.first} runs completed, {span['wrong']} wrong")
    since = "started_at" if load.live is None else "created_at"
    rate = load.first / (span["completed_at"] - span[since])
    return Figure(load.work, peer.name, label, rate, cost=cost, runs=done)


def idle(cluster: BenchCluster, peer: Peer, setting: PeerSetting, count: int) -> list[float]:
    """Return the latencies of single runs on an idle system, in seconds."""
    with _database(cluster, peer) as urls, ExitStack() as stack:
        worker = stack.enter_context(PeerProcess(peer, "work", urls.direct, setting.work))
        client = stack.enter_context(PeerProcess(peer, "idle", urls.direct, {"count": count}))
        for process in (worker, client):
            process.answer()
        worker.go()
        time.sleep(1.5)
        client.go()
        latencies: list[float] = client.answer()
        span = ask(peer, "check", urls.direct, first=count)
    if span["completed"] < count or span["wrong"]:
        raise NotVerifiedError(f"{span['completed']} of {count} runs completed, {span['wrong']} wrong")
    return latencies


def _await_done(peer: Peer, urls: DatabaseUrls, first: int, look_again_s: float) -> int:
    deadline = time.monotonic() + DRAIN_LIMIT_S
    done = SQL[f"{peer.name}_done"].pyformat.encode()
    with psycopg.connect(urls.direct, autocommit=True) as look:
        while True:
            row = look.execute(done).fetchone()
            assert row is not None
            count: int = row[0]
            if count >= first:
                return count
            if time.monotonic() > deadline:
                raise NotVerifiedError(f"{count} of {first} runs after {DRAIN_LIMIT_S:g} s")
            time.sleep(look_again_s)


@contextmanager
def _database(cluster: BenchCluster, peer: Peer) -> Iterator[DatabaseUrls]:
    urls = cluster.create_empty()
    try:
        ask(peer, "setup", urls.direct)
        with psycopg.connect(urls.direct, autocommit=True) as connection:
            connection.execute("checkpoint")
        yield urls
    finally:
        cluster.drop(urls)
