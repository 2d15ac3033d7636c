"""`tenantry demo`: two tenants import and pay invoices side by side, on a database, an API and a worker made for it."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.live import Live

from service import tenants
from service.cli import run_tree, watching
from service.cli.client import ApiClient, ApiError
from service.cli.output import console
from service.cli.refusals import CommandError
from service.demo.invoices import APPROVAL, COOLING_OFF, RATES
from service.demo.report import render_report
from service.demo.stack import Stack, running_stack
from tenancy import Database, DatabaseSettings

ONCE_TIMEOUT: Final = 180.0
APPROVAL_PAUSE: Final = 1.5
NOT_FOUND: Final = 404
WAITS: Final = {
    RATES: "the rate service does not answer; that step is tried again in a second.",
    APPROVAL: "the payment is above the limit and waits for an approval; no worker is busy with it meanwhile.",
    COOLING_OFF: "the payment is approved and sleeps for a second in which it can still be cancelled.",
}


@dataclass(slots=True)
class Actor:
    """A tenant of the demonstration, its file, who approves its payments and, once it is started, its run.

    `key` may read and start runs, `approver_key` may only send signals. `waits` are the steps it was seen to wait for.
    """

    slug: str
    name: str
    filename: str
    approver: str
    key: str = ""
    approver_key: str = ""
    run: dict[str, Any] | None = None
    waits: set[str] = field(default_factory=set[str])


ACTORS: Final = (
    ("northwind", "Northwind Stationery", "northwind-stationery.csv", "Nora Quill"),
    ("bergwerk", "Bergwerk Technik", "bergwerk-technik.csv", "Bernd Stollen"),
)


def run_demo(*, once: bool, slow: bool) -> int:
    """Run the demonstration and return the exit status: 0 when both runs completed and no tenant saw the other's."""
    try:
        return asyncio.run(_demonstrate(once=once, slow=slow))
    except asyncio.CancelledError:
        return 1 if once else 0


async def _demonstrate(*, once: bool, slow: bool) -> int:
    screen = console()
    async with AsyncExitStack() as stack:
        _cancel_on_signals(stack)
        screen.print("[bold]Tenantry[/bold]: two tenants import their invoices.\n")
        running = await stack.enter_async_context(
            running_stack(slow=slow, say=lambda line: screen.print(line, markup=False))
        )
        actors = await _make_tenants(running)
        _print_environment(screen, running)
        _print_console(screen, running, actors)
        clients = [await stack.enter_async_context(ApiClient(running.url, actor.key)) for actor in actors]
        await _start_runs(actors, clients)
        try:
            async with asyncio.timeout(ONCE_TIMEOUT if once else None):
                await _watch(screen, running, actors, clients)
        except TimeoutError:
            message = f"The runs did not end within {ONCE_TIMEOUT:.0f} s. The worker said last: "
            raise CommandError(message + running.last_lines("worker")) from None
        completed = all(actor.run is not None and actor.run["status"] == "COMPLETED" for actor in actors)
        for actor, client in zip(actors, clients, strict=True):
            run = actor.run or {}
            steps = await client.get(f"/v1/runs/{run['id']}/steps")
            screen.print(render_report(actor.name, run, steps["data"]))
        isolated = await _show_isolation(screen, actors, clients)
        if not once:
            await _stay(screen, running, actors)
        return int(not (completed and isolated))


async def _make_tenants(running: Stack) -> list[Actor]:
    actors = [Actor(*words) for words in ACTORS]
    async with Database(DatabaseSettings(running.urls.operator, pool_size=1)) as database:
        for actor in actors:
            tenant = await tenants.create_tenant(database, actor.slug, actor.name)
            async with database.transaction(tenant["id"]) as tx:
                made = await tenants.create_key(tx, name="demo", scopes=["runs:read", "runs:write"])
                actor.key = made["key"]
                made = await tenants.create_key(tx, name="approver", scopes=["signals:write"])
                actor.approver_key = made["key"]
    return actors


def _print_environment(screen: Console, running: Stack) -> None:
    screen.print("\n[bold]Processes[/bold]")
    for name, pid in running.pids().items():
        screen.print(f"  {name:<10} pid {pid}", markup=False)
    screen.print("\n[bold]Another worker[/bold], in a second shell (kill -9 the first one and see this one carry on):")
    for key, value in running.worker_environment().items():
        screen.print(f"  export {key}={value}", markup=False, soft_wrap=True)
    screen.print(f"  {_command()} worker\n", markup=False)


def _print_console(screen: Console, running: Stack, actors: list[Actor]) -> None:
    where = f"[bold]The console[/bold] is at {running.url}/console. Sign in with a key; you see what it may see:"
    screen.print(where, soft_wrap=True)
    for actor in actors:
        screen.print(f"  {actor.name:<22} {actor.key}", markup=False, soft_wrap=True)
    screen.print()


async def _start_runs(actors: list[Actor], clients: list[ApiClient]) -> None:
    for actor, client in zip(actors, clients, strict=True):
        # As an uploading client does: undecodable bytes are replaced, and their lines come back as rejects.
        text = files("service.demo").joinpath(actor.filename).read_bytes().decode("utf-8", errors="replace")
        body = {
            "workflow": "invoice-import",
            "input": {"csv": text, "filename": actor.filename},
            "tags": ["demo"],
        }
        actor.run = await client.start_run(body, idempotency_key=f"demo-{actor.slug}")


async def _watch(screen: Console, running: Stack, actors: list[Actor], clients: list[ApiClient]) -> None:
    current: dict[str, run_tree.Watched] = {}
    told: dict[str, dict[str, str]] = {actor.slug: {} for actor in actors}

    def picture() -> RenderableType:
        return run_tree.render([current[slug] for slug in told if slug in current])

    live = Live(console=screen, refresh_per_second=4, get_renderable=picture) if screen.is_terminal else None

    async def follow(actor: Actor, client: ApiClient, tasks: asyncio.TaskGroup) -> None:
        def show(watched: run_tree.Watched) -> None:
            actor.run = watched.run
            current[actor.slug] = watched
            if live is None:
                for line in watching.changes(watched, told[actor.slug]):
                    screen.print(line, markup=False)
            for stage_id in _tell_waits(screen, actor):
                tasks.create_task(_approve(screen, running, actor, stage_id))

        await watching.follow(client, (actor.run or {})["id"], show, title=actor.name)

    async def mind_the_worker() -> None:
        status = await asyncio.to_thread(running.worker.wait)
        if status >= 0:
            raise CommandError(running.last_words("worker"))
        screen.print(f"The worker (pid {running.worker.pid}) has ended; another takes over when its leases lapse.")

    with live or contextlib.nullcontext():
        async with asyncio.TaskGroup() as minding:
            minder = minding.create_task(mind_the_worker())
            async with asyncio.TaskGroup() as following:
                for actor, client in zip(actors, clients, strict=True):
                    following.create_task(follow(actor, client, following))
            minder.cancel()


def _new_waits(actor: Actor) -> Iterator[tuple[str, str]]:
    """Yield stage and step of each wait that is seen for the first time."""
    for stage in (actor.run or {}).get("stages") or []:
        wait = stage.get("waiting_for")
        if stage["status"] == "SUSPENDED" and wait is not None and wait["step_id"] not in actor.waits:
            actor.waits.add(wait["step_id"])
            yield stage["id"], wait["step_id"]


def _tell_waits(screen: Console, actor: Actor) -> list[str]:
    """Tell what the run waits for, once, and return the stages that wait for an approval since then."""
    waits = list(_new_waits(actor))
    for _, step_id in waits:
        screen.print(f"{actor.name}: {WAITS.get(step_id, f'waits for {step_id}')}", markup=False)
    return [stage_id for stage_id, step_id in waits if step_id == APPROVAL]


async def _approve(screen: Console, running: Stack, actor: Actor, stage_id: str) -> None:
    """Send the signal as the tenant's approver, after a moment in which one sees the run wait."""
    await asyncio.sleep(APPROVAL_PAUSE)
    path = f"/v1/runs/{(actor.run or {})['id']}/signals"
    payload = {"approved": True, "by": actor.approver}
    async with ApiClient(running.url, actor.approver_key) as client:
        answer = await client.post(path, {"stage_id": stage_id, "step_id": APPROVAL, "payload": payload})
    signal_sent = f"{actor.name}: {actor.approver} approves: POST {path} -> {json.dumps(answer)}"
    screen.print(signal_sent, markup=False, soft_wrap=True)


async def _show_isolation(screen: Console, actors: list[Actor], clients: list[ApiClient]) -> bool:
    screen.print("[bold]Isolation[/bold]: each tenant asks for the other's run.")
    isolated = True
    for asking, client, other in zip(actors, clients, reversed(actors), strict=True):
        run_id = (other.run or {})["id"]
        try:
            await client.get_run(run_id)
        except ApiError as error:
            answer = str(error.status)
        else:
            answer = "200"
        isolated = isolated and answer == str(NOT_FOUND)
        screen.print(f"  {asking.name}: GET /v1/runs/{run_id} of {other.name} -> {answer}", markup=False)
    screen.print()
    return isolated


async def _stay(screen: Console, running: Stack, actors: list[Actor]) -> None:
    screen.print(
        f"[bold]The API and the console stay up.[/bold] The console is at {running.url}/console; the keys once more:",
        soft_wrap=True,
    )
    for actor in actors:
        screen.print(
            f"  TENANTRY_API_URL={running.url} TENANTRY_API_KEY={actor.key} {_command()} run list",
            markup=False,
            soft_wrap=True,
        )
    screen.print(
        "`run watch`, `run steps`, `run logs` and `run trace` take the id of a run, and show what became of it."
    )
    screen.print("\nCtrl-C ends everything.")
    await asyncio.to_thread(running.api.wait)
    raise CommandError(running.last_words("api"))


def _command() -> str:
    """Return how this very command is called in another shell, where no environment may be active."""
    beside = Path(sys.executable).with_name("tenantry")
    return str(beside) if beside.exists() else "tenantry"


def _cancel_on_signals(stack: AsyncExitStack) -> None:
    """Let SIGINT and SIGTERM end the demonstration like any other error: everything is stopped on the way out."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        if main is not None:
            loop.add_signal_handler(number, main.cancel)
            stack.callback(loop.remove_signal_handler, number)
