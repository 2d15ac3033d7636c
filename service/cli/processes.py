"""Child processes of ours: workers side by side, and servers that a command starts and stops."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from service.cli.output import tell
from service.environment import variables_of

_PAUSE = 1.0
_POLL = 0.2


def start(
    arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start `tenantry` with these arguments, in a session of its own: Ctrl-C reaches us alone, and we stop it."""
    return subprocess.Popen(  # noqa: S603 - this interpreter and arguments of ours
        [sys.executable, "-m", "service.cli", *arguments],
        env={**environment, "PYTHONPATH": search_path(environment)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], grace: float) -> int:
    """Ask the process to end, end it for good after `grace` seconds, and return its status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def run_workers(count: int, http_port: int | None) -> int:
    """Run workers side by side until SIGTERM or SIGINT; return 0 when all of them stopped gracefully.

    A worker that something killed is started again; one that gives up by itself (bad settings) ends the others too.
    """
    stopping = threading.Event()
    with _signals(stopping):
        workers = [start(["worker"], _environment(http_port, index)) for index in range(count)]
        failed = False
        while not stopping.wait(_POLL):
            for index, process in enumerate(workers):
                status = process.poll()
                if status is None:
                    continue
                if status >= 0:
                    failed = True
                    stopping.set()
                    break
                tell(f"tenantry: worker {process.pid} ended by signal {-status}: another one takes its place")
                time.sleep(_PAUSE)
                workers[index] = start(["worker"], _environment(http_port, index))
        for process in workers:
            if process.poll() is None:
                process.terminate()
        statuses = [process.wait() for process in workers]
    return int(failed or any(statuses))


def _environment(http_port: int | None, index: int) -> dict[str, str]:
    if not http_port:
        return dict(os.environ)
    others = {name: value for name, value in os.environ.items() if name not in variables_of("worker_http_port")}
    return {**others, "TENANTRY_WORKER_HTTP_PORT": str(http_port + index)}


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    def stop_all(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop_all) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def search_path(environment: Mapping[str, str]) -> str:
    """Return a PYTHONPATH with which the child finds this package, however we found it."""
    root = str(Path(__file__).resolve().parents[2])
    known = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(known if root in known else [*known, root])
