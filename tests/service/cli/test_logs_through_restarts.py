"""`tenantry run logs --follow` while the API is away: it says so, waits, and shows every line once all the same."""

import asyncio
import signal
from uuid import UUID

from kernel import StageContext, stage, workflow
from kernel.testing import Harness
from tenancy import Database
from tests.service.cli.serving import key_of, serving
from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process
from tests.support.system import free_port


@stage("talk")
async def talk(ctx: StageContext) -> None:
    for word in ("alpha", "beta", "gamma"):
        await ctx.step.run(f"say-{word}", lambda word=word: ctx.log("info", word))
        await ctx.step.wait_for_signal(f"after-{word}", timeout="1d")


async def test_lines_are_followed_through_a_kill_and_a_stop_of_the_api(
    database: Database, database_urls: DatabaseUrls, tenant: UUID
) -> None:
    port, key = free_port(), await key_of(database, tenant)
    harness = Harness(workflow("talking", input=dict).pipe(talk).build(), database.transaction, tenant_id=tenant)
    run = await harness.start("talking", {})
    assert await run.go() == "suspended"
    settings = {"API_URL": f"http://127.0.0.1:{port}", "API_KEY": key}
    environment = {f"TENANTRY_{name}": value for name, value in settings.items()}
    command = ("run", "logs", str(run.run_id), "--follow")
    with serving(database_urls, port) as first, Process(*command, environment=environment) as follower:

        def told(word: str) -> None:
            follower.until(lambda: word in follower.output)

        await asyncio.to_thread(told, "alpha")
        first.kill()
        await asyncio.to_thread(told, "cannot be reached")
        await run.signal("talk", "after-alpha")
        assert await run.go() == "suspended"
        with serving(database_urls, port) as second:
            # What was logged while nobody answered comes with the next answer.
            await asyncio.to_thread(told, "beta")
            assert second.stop(signal.SIGTERM) == 0
            for word in ("beta", "gamma"):
                await run.signal("talk", f"after-{word}")
                await run.go()
        with serving(database_urls, port):
            assert await asyncio.to_thread(follower.wait) == 0
            again = await asyncio.to_thread(CommandLine(settings), *command)
        lines = [line for line in follower.output.splitlines() if " info " in line]
        assert [line.split()[-1] for line in lines] == ["alpha", "beta", "gamma"]
        assert (again.status, again.out.splitlines()) == (0, lines)
