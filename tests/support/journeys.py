"""Workflows whose traces are known: a run that waits and fails once, one that hangs, one that fails until it may not."""

import asyncio
from pathlib import Path

from opentelemetry import trace
from pydantic import BaseModel

from kernel import Registry, StageContext, Terminal, stage, workflow


class Task(BaseModel):
    """`diary` is written to by bodies that hang; what is `mended` exists once the run may succeed."""

    diary: str = ""
    mended: str = ""


@stage("prepare")
async def prepare(ctx: StageContext, task: Task) -> Task:
    with trace.get_tracer(__name__).start_as_current_span("look up", attributes={"order": 7}):
        pass
    await ctx.step.run("charge", lambda: 1)
    return task


@stage("approval")
async def approval(ctx: StageContext, task: Task) -> Task:
    await ctx.step.run("before", lambda: 1)
    await ctx.step.wait_for_signal("approve", timeout="1h")
    await ctx.step.run("after", lambda: 1)
    return task


@stage("flaky", max_attempts=2)
async def flaky(ctx: StageContext, task: Task) -> Task:
    if ctx.attempt == 1:
        raise LookupError("db-7.internal said no")
    return task


@stage("hang", max_attempts=3)
async def hang(ctx: StageContext, task: Task) -> Task:
    """Hang the first time."""
    if ctx.attempt == 1:
        with Path(task.diary).open("a") as diary:
            diary.write(f"hung {ctx.run_id}\n")
        await asyncio.Event().wait()
    return task


@stage("broken", max_attempts=1)
async def broken(ctx: StageContext, task: Task) -> Task:
    if not Path(task.mended).exists():
        raise Terminal("not mended")
    return task


REGISTRY = Registry(
    [
        workflow("journey", input=Task).pipe(prepare).pipe(approval).pipe(flaky).build(),
        workflow("hanging", input=Task).pipe(hang).build(),
        workflow("mendable", input=Task).pipe(prepare).pipe(broken).build(),
        workflow("short", input=Task).pipe(prepare).build(),
    ]
)
