"""`tenantry dev` as a real process, with workflows that do what the tests of the command line need."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.command_line import CommandLine
from tests.support.processes import Process, answers
from tests.support.system import free_port

WORKFLOWS = """
import asyncio

from kernel import Registry, StageContext, Terminal, stage, workflow


@stage("double")
async def double(ctx: StageContext, number: int) -> int:
    if number < 0:
        raise Terminal("negative \\x1b[2J")
    return number * 2


@stage("nap", max_attempts=1)
async def nap(ctx: StageContext, number: int) -> int:
    await asyncio.sleep(number)
    return number


@stage("write")
async def write(ctx: StageContext, length: int) -> str:
    return "\\x9b" + "x" * length


@stage("ask")
async def ask(ctx: StageContext) -> dict:
    await ctx.step.run("prepare", lambda: "prepared")
    return await ctx.step.wait_for_signal("approve", timeout="1d")


@stage("first")
async def first(ctx: StageContext, length: int) -> int:
    ctx.log("info", "begun \\x1b[2J", length=length, note="a b")
    ctx.log("warning", "one\\ntwo")
    await ctx.step.wait_for_signal("go", timeout="1d")
    return length


@stage("second")
async def second(ctx: StageContext, length: int) -> int:
    for number in range(length):
        ctx.log("debug", f"line {number}")
    return length


registry = Registry([
    workflow("doubling", input=int).pipe(double).build(),
    workflow("napping", input=int).pipe(nap).build(),
    workflow("writing", input=int).pipe(write).build(),
    workflow("approving", input=dict).pipe(ask).build(),
    workflow("talking", input=int).pipe(first).pipe(second).build(),
])
"""


@dataclass(frozen=True, slots=True)
class Development:
    """A running `tenantry dev`, the folder of its workflows, and the settings that it printed."""

    process: Process
    project: Path
    settings: dict[str, str]

    @property
    def tenantry(self) -> CommandLine:
        """The command as its tenant has it."""
        return CommandLine({"API_URL": self.settings["API_URL"], "API_KEY": self.settings["API_KEY"]})

    def await_ready(self) -> None:
        """Wait until its API is ready."""
        self.process.until(lambda: answers(f"{self.settings['API_URL']}/readyz"))


def start(state: Path, project: Path) -> Development:
    """Start `tenantry dev` with its data in `state`, and wait until it is ready."""
    environment = {
        "XDG_STATE_HOME": str(state),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH")])),
        "TENANTRY_WORKFLOWS": "flows:registry",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = Process("dev", "--port", str(free_port()), environment={**os.environ, **environment})

    def printed() -> dict[str, str]:
        return dict(re.findall(r"export TENANTRY_(\w+)=(\S+)$", process.output, re.MULTILINE))

    # The last of those that it prints.
    process.until(lambda: "DATABASE_URL" in printed())
    development = Development(process, project, printed())
    development.await_ready()
    return development
