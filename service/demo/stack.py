"""What the demonstration stands on: a throw-away database, an API and a worker as child processes."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from service.cli import processes
from service.cli.refusals import CommandError
from service.demo.invoices import STAGE_SECONDS
from service.embedded import DatabaseUrls, EmbeddedDatabase, temporary_directory
from service.embedded.entering import entered
from service.embedded.processes import free_port
from service.embedded.server import NO_PGBOUNCER
from service.environment import variables_of

SLOW_STAGE_SECONDS: Final = "10"
WORKFLOWS: Final = "service.demo.invoices:registry"
READY_TIMEOUT: Final = 60.0
STOP_GRACE: Final = 15.0
_POLL: Final = 0.1
_OK: Final = 200
# What the demonstration decides itself; every other setting of ours comes through, a short lease threshold for example.
_OWN: Final = (
    "DATABASE_URL",
    "DISPATCHER_DATABASE_URL",
    "DIRECT_DATABASE_URL",
    "OPERATOR_DATABASE_URL",
    "WORKFLOWS",
    "HOST",
    "PORT",
)
_DEFAULTS: Final = {"TENANTRY_SHUTDOWN_GRACE": "5s", "TENANTRY_ABORT_GRACE": "2s"}


@dataclass(slots=True)
class Stack:
    """The running processes and how to reach them."""

    urls: DatabaseUrls
    url: str
    api: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]
    postgres_pid: int
    pgbouncer_pid: int | None
    directory: Path
    slow: bool

    def pids(self) -> dict[str, int]:
        """Return each process with its pid."""
        found = {
            "postgres": self.postgres_pid,
            "pgbouncer": self.pgbouncer_pid,
            "api": self.api.pid,
            "worker": self.worker.pid,
        }
        return {name: pid for name, pid in found.items() if pid is not None}

    def last_words(self, name: str) -> str:
        """Return a line on how `api` or `worker` ended."""
        return _ended(name, (self.api if name == "api" else self.worker).returncode, self.directory)

    def last_lines(self, name: str) -> str:
        """Return what `api` or `worker` said last."""
        return _last_lines(name, self.directory)

    def worker_environment(self) -> dict[str, str]:
        """Return the variables with which `tenantry worker` becomes a further worker of this stack."""
        return worker_environment(self.urls, slow=self.slow)


@asynccontextmanager
async def running_stack(*, slow: bool, say: Callable[[str], None]) -> AsyncIterator[Stack]:
    """Start everything, and end everything in the opposite order, by pid.

    Raises:
        EmbeddedError, CommandError: something does not start.
    """
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(temporary_directory())
        say("Starting Postgres ...")
        database = await entered(stack, EmbeddedDatabase(directory))
        servers = stack.enter_context(ExitStack())
        say(NO_PGBOUNCER if database.pgbouncer_pid is None else "PgBouncer stands in front, in transaction mode.")
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        api = _start(servers, directory, ["api", "--port", str(port)], api_environment(database.urls))
        worker = _start(servers, directory, ["worker"], worker_environment(database.urls, slow=slow))
        await _await_ready(url, api, directory)
        if worker.poll() is not None:
            raise CommandError(_ended("worker", worker.returncode, directory))
        say(f"The API answers at {url}.")
        yield Stack(database.urls, url, api, worker, database.postgres_pid, database.pgbouncer_pid, directory, slow)


def api_environment(urls: DatabaseUrls) -> dict[str, str]:
    """Return the API's own variables."""
    return {"TENANTRY_DATABASE_URL": urls.api, "TENANTRY_WORKFLOWS": WORKFLOWS}


def worker_environment(urls: DatabaseUrls, *, slow: bool) -> dict[str, str]:
    """Return a worker's own variables, and those settings of ours that this process was given."""
    given = {key: value for key, value in _given().items() if key != "TENANTRY_WORKER_HTTP_PORT"}
    return {
        **given,
        "TENANTRY_DATABASE_URL": urls.worker,
        "TENANTRY_DISPATCHER_DATABASE_URL": urls.dispatcher,
        "TENANTRY_WORKFLOWS": WORKFLOWS,
        **({STAGE_SECONDS: SLOW_STAGE_SECONDS} if slow else {}),
    }


def _start(servers: ExitStack, directory: Path, arguments: list[str], own: dict[str, str]) -> subprocess.Popen[bytes]:
    name = arguments[0]
    others = {key: value for key, value in os.environ.items() if not key.startswith("TENANTRY_")}
    with (directory / f"{name}.log").open("ab") as log:
        process = processes.start(arguments, {**others, **_DEFAULTS, **_given(), **own}, log)
    servers.callback(processes.stop, process, STOP_GRACE)
    return process


def _given() -> dict[str, str]:
    own = frozenset().union(*(variables_of(name.lower()) for name in _OWN))
    return {key: value for key, value in os.environ.items() if key.startswith("TENANTRY_") and key not in own}


async def _await_ready(url: str, api: subprocess.Popen[bytes], directory: Path) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5.0) as client, asyncio.timeout(READY_TIMEOUT):
        while True:
            if api.poll() is not None:
                raise CommandError(_ended("api", api.returncode, directory))
            try:
                if (await client.get("/readyz")).status_code == _OK:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(_POLL)


def _ended(name: str, status: int, directory: Path) -> str:
    return f"The {name} ended with status {status}: {_last_lines(name, directory)}"


def _last_lines(name: str, directory: Path) -> str:
    lines = [line for line in (directory / f"{name}.log").read_text(errors="replace").split("\n") if line.strip()]
    return " | ".join(line.strip() for line in lines[-2:]) or "it said nothing"
