"""`tenantry dev`: the embedded database, and API and worker in one child that is replaced when the code changes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from typing import Final

from watchfiles import PythonFilter, awatch

from service import keys, tenants
from service.cli import processes
from service.cli.output import tell
from service.cli.refusals import CommandError
from service.cli.waits import await_answers
from service.embedded import DatabaseUrls, EmbeddedDatabase, state_directory
from service.embedded.entering import entered
from service.embedded.server import NO_PGBOUNCER
from service.environment import PREFIX, SettingsError, variables_of
from service.listening import listen
from service.settings import Settings
from tenancy import Database, DatabaseSettings

SLUG: Final = "dev"
DEFAULT_WORKFLOWS: Final = "service.demo.invoices:registry"
WORKER_URL: Final = "TENANTRY_DEV_WORKER_DATABASE_URL"
STOP_GRACE: Final = 20.0
READY_WITHIN_S: Final = 600.0
_DEFAULTS: Final = {"TENANTRY_SHUTDOWN_GRACE": "3s", "TENANTRY_ABORT_GRACE": "2s"}


@dataclass(frozen=True, slots=True)
class _Plan:
    workflows: str
    host: str
    port: int
    watched: Path
    is_package: bool


def run_dev(host: str | None, port: int | None) -> int:
    """Develop until SIGINT or SIGTERM; return 0, or the child's status when it cannot even start."""
    settings = Settings.from_environment(os.environ)
    workflows = settings.workflows or DEFAULT_WORKFLOWS
    watched, is_package = _sources(workflows)
    plan = _Plan(workflows, host or settings.host, settings.port if port is None else port, watched, is_package)
    return asyncio.run(_develop(plan))


async def _develop(plan: _Plan) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _refuse_taken(plan)
    directory = state_directory()
    tell(f"Starting Postgres in {directory} ...")
    async with AsyncExitStack() as stack:
        database = await entered(stack, EmbeddedDatabase(directory))
        if database.pgbouncer_pid is None:
            tell(NO_PGBOUNCER)
        for line in database.moved:
            tell(line)
        key_file = directory / "dev-key"
        key = await _dev_key(database.urls, _read(key_file))
        _write_private(key_file, key)
        tell("Starting API and worker ...")
        environment = _environment(plan, database.urls)
        return await _serve(plan, environment, stop, partial(_introduce, plan, database.urls, key))


def _refuse_taken(plan: _Plan) -> None:
    """Refuse an address that somebody listens on before anything is started: what answered there would not be ours."""
    try:
        listen(plan.host, plan.port).close()
    except OSError as error:
        raise SettingsError(f"{error}; --port takes another one") from error


async def _serve(
    plan: _Plan, environment: Mapping[str, str], stop: asyncio.Event, introduce: Callable[[], None]
) -> int:
    """Keep a child running, a new one after each change; one that cannot start waits for the next change.

    `introduce` tells where it is once the first one answers.
    """
    tellers: Iterator[Callable[[], None]] = chain([introduce], repeat(partial(tell, "tenantry: ready again.")))
    async with _changes(plan, stop) as changed:
        was_ready = False
        while not stop.is_set():
            changed.clear()
            child = _start(environment)
            try:
                async with _telling(plan, tellers):
                    await _first_of(changed.wait(), stop.wait(), asyncio.to_thread(_exit_of, child))
                if child.poll() is not None and not stop.is_set() and not changed.is_set():
                    if not was_ready:
                        return child.returncode or 1
                    tell("tenantry: API and worker ended; they start again when the code changes.")
                    await _first_of(changed.wait(), stop.wait())
                was_ready = True
            finally:
                await asyncio.to_thread(processes.stop, child, STOP_GRACE)
            if changed.is_set() and not stop.is_set():
                tell("tenantry: the code changed, starting again.")
    return 0


@asynccontextmanager
async def _telling(plan: _Plan, tellers: Iterator[Callable[[], None]]) -> AsyncIterator[None]:
    """Have the next teller tell, within the block, once what listens at the plan's address is ready."""

    async def tell_when_ready() -> None:
        try:
            await await_answers([f"{_address(plan)}/readyz"], READY_WITHIN_S)
        except CommandError as error:
            tell(f"tenantry: API and worker are not ready: {error}")
        else:
            next(tellers)()

    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(tell_when_ready())
        try:
            yield
        finally:
            telling.cancel()


@asynccontextmanager
async def _changes(plan: _Plan, stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Set the event that is yielded whenever a Python file of the registry's package changes."""
    changed = asyncio.Event()

    async def watch() -> None:
        async for _ in awatch(plan.watched, watch_filter=PythonFilter(), stop_event=stop, recursive=plan.is_package):
            changed.set()

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        try:
            yield changed
        finally:
            watching.cancel()


async def _first_of(*waits: object) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _exit_of(child: subprocess.Popen[bytes]) -> int:
    return child.wait()


def _start(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "service.dev"],
        env={**environment, "PYTHONPATH": processes.search_path(environment)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _environment(plan: _Plan, urls: DatabaseUrls) -> dict[str, str]:
    own = {
        "DATABASE_URL": urls.api,
        "DISPATCHER_DATABASE_URL": urls.dispatcher,
        "WORKFLOWS": plan.workflows,
        "HOST": plan.host,
        "PORT": str(plan.port),
    }
    decided = frozenset().union(*map(variables_of, map(str.lower, own)))
    others = {name: value for name, value in os.environ.items() if name not in decided}
    return {**_DEFAULTS, **others, **{PREFIX + name: value for name, value in own.items()}, WORKER_URL: urls.worker}


async def _dev_key(urls: DatabaseUrls, last: str) -> str:
    """Return a key of the tenant `dev`, the one of last time if it still opens; both are made when missing."""
    async with Database(DatabaseSettings(urls.operator, pool_size=1)) as database:
        try:
            tenant = await tenants.find_tenant(database, SLUG)
        except tenants.TenantNotFoundError:
            tenant = await tenants.create_tenant(database, SLUG, "Development")
        known = keys.parse(last)
        async with database.transaction(tenant["id"]) as tx:
            if known is not None and known.tenant_id == tenant["id"]:
                valid = [key for key in await tenants.list_keys(tx, limit=200) if key["revoked_at"] is None]
                if known.key_id in {key["id"] for key in valid}:
                    return last
            created: str = (await tenants.create_key(tx, name="tenantry dev"))["key"]
    return created


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text + "\n")


def _address(plan: _Plan) -> str:
    """Return where this machine reaches what the plan serves."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(plan.host, plan.host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{plan.port}" if ":" in host else f"http://{host}:{plan.port}"


def _introduce(plan: _Plan, urls: DatabaseUrls, key: str) -> None:
    address = _address(plan)
    tell(f"Serving {plan.workflows} at {address} (Ctrl-C ends everything, the data stays).\n")
    tell(f"The console: {address}/console, signed in to with the key below.\n")
    tell("In a second shell:")
    tell(f"  export TENANTRY_API_URL={address}")
    tell(f"  export TENANTRY_API_KEY={key}\n")
    tell("For `tenantry tenant`, `key`, `db` and `workflow check`, and for tests with `kernel.testing`:")
    tell(f"  export TENANTRY_OPERATOR_DATABASE_URL={urls.operator}")
    tell(f"  export TENANTRY_DIRECT_DATABASE_URL={urls.direct}")
    tell(f"  export TENANTRY_DISPATCHER_DATABASE_URL={urls.dispatcher}")
    tell(f"  export TENANTRY_DATABASE_URL={urls.worker}\n")


def _sources(workflows: str) -> tuple[Path, bool]:
    """Return the directory to watch, and whether all below it counts: so with a package, not with a lone module."""
    name = workflows.partition(":")[0].partition(".")[0]
    if (directory := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, directory)
    try:
        spec = find_spec(name) if name else None
    except ValueError:
        spec = None
    for location in (spec.submodule_search_locations or []) if spec else []:
        return Path(location), True
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        message = f"workflows: there is no module {name!r} here"
        raise SettingsError(message)
    return Path(spec.origin).parent, False
