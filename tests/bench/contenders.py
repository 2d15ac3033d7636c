"""The peers as the bench sees them: processes of .venv-bench that speak peers/protocol.py, straight at the server.

Straight, because with their defaults none of them works through PgBouncer 1.18: they prepare statements.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
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
# A peer that stands still will not go on: nothing that it waits for lasts that long.
STALL_LIMIT_S = 30.0
ANSWER_LIMIT_S = 240.0
DEEP = 10_000


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and the settings that are tried; the best counts. `work` and `live` are options of its script.

    `has_steps`: its script can do any number of steps in a run, not only three.
    """

    name: str
    settings: tuple["PeerSetting", ...]
    live: tuple[Mapping[str, Any], ...]
    idle: tuple["PeerSetting", ...]
    has_steps: bool = True


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
        has_steps=False,
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
        # A file, because a full pipe would stop a peer that has much to complain of.
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        self._said.seek(0)
        return self._said.read()[-600:]

    def answer(self) -> Any:
        """Wait for the next line that is JSON and return what it says; NotVerifiedError with stderr when there is none."""
        assert self._process.stdout is not None
        watchdog = Timer(ANSWER_LIMIT_S, self._process.kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                try:
                    return json.loads(line)
                except json.JSONDecodeError:
                    continue
        finally:
            watchdog.cancel()
        raise NotVerifiedError(self.last_words or f"no answer within {ANSWER_LIMIT_S:g} s")

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
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()


def ask(peer: Peer, action: str, url: str, **options: Any) -> Any:
    """Run one action of a peer's script to its end and return its answer."""
    with PeerProcess(peer, action, url, options) as process:
        return process.answer()


@dataclass(frozen=True, slots=True)
class Load:
    """What a peer is given: `live` options (None: a backlog), `count` runs, of which the first so many are waited for.

    `task` are the options that say what a run is: by default, three durable units.
    """

    work: str
    count: int
    first: int
    live: Mapping[str, Any] | None = None
    task: Mapping[str, Any] = field(default_factory=dict[str, Any])


def throughput(cluster: BenchCluster, peer: Peer, setting: PeerSetting, load: Load) -> Figure:
    """Measure a backlog, or runs enqueued while the workers poll."""
    with _database(cluster, peer) as urls, ExitStack() as stack:
        if load.live is None:
            ask(peer, "fill", urls.direct, count=load.count, **load.task)
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
        done = _await_done(peer, urls, load.first, processes, look_again_s=0.5 if load.count > DEEP else 0.1)
        cost = before.until(meter.read())
        meter.close()
        span = ask(peer, "check", urls.direct, first=load.first, **load.task)
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


def _await_done(
    peer: Peer, urls: DatabaseUrls, first: int, processes: Sequence[PeerProcess], look_again_s: float
) -> int:
    """Wait until so many runs are over and return how many are; no longer than there is hope."""
    count, began, moved_at = 0, time.monotonic(), time.monotonic()
    done = SQL[f"{peer.name}_done"].pyformat.encode()
    with psycopg.connect(urls.direct, autocommit=True) as look:
        while True:
            row = look.execute(done).fetchone()
            assert row is not None
            now = time.monotonic()
            if row[0] > count:
                count, moved_at = row[0], now
            if count >= first:
                return count
            so_far = f"{count} of {first} runs after {now - began:.0f} s"
            if ended := [process for process in processes if not process.is_running]:
                raise NotVerifiedError(f"{so_far}, and a process has ended: {ended[0].last_words}")
            if now - moved_at > STALL_LIMIT_S:
                raise NotVerifiedError(f"{so_far}, none in the last {STALL_LIMIT_S:g}: {processes[0].last_words}")
            if now - began > DRAIN_LIMIT_S:
                raise NotVerifiedError(so_far)
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
