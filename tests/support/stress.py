"""Workflows for tests that break workers: bodies sleep, block, ignore and raise as their input says."""

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from kernel import Registry, StageContext, Step, Terminal, stage, workflow


class Task(BaseModel):
    """What a body does: sleep `seconds`, and leave a line at its start and its end in the file `diary`."""

    seconds: float = 0
    diary: str = os.devnull
    fail: bool = False
    is_wanted: bool = True


class Ladder(BaseModel):
    """Ten steps, each adding its number to what the one before returned.

    The first execution hangs at a gap: 2k is before step k, 2k + 1 inside of it, 20 after the last; -1 is nowhere.
    """

    diary: str = os.devnull
    hang_at: int = -1
    seconds: float = 0
    lease: str = "3s"


class Total(BaseModel):
    """What the rungs of a ladder add up to."""

    total: int


class Oddity(BaseModel):
    """How a body misbehaves."""

    kind: Literal[
        "nul", "surrogate", "literal", "exit", "interrupt", "cancel", "generator", "nul_output", "lone_output"
    ]


class Text(BaseModel):
    """A text."""

    text: str


def write(ctx: StageContext[Any], task: Task, word: str) -> None:
    with Path(task.diary).open("a") as diary:
        diary.write(f"{word} {ctx.run_id} {ctx.stage_id} {ctx.attempt} {os.getpid()}\n")


async def nap(ctx: StageContext[Any], task: Task) -> Task:
    write(ctx, task, "start")
    await asyncio.sleep(task.seconds)
    write(ctx, task, "end")
    return task


@stage("one")
async def one(ctx: StageContext, task: Task) -> Task:
    return await nap(ctx, task)


@stage("two")
async def two(ctx: StageContext, task: Task) -> Task:
    return await nap(ctx, task)


@stage("three")
async def three(ctx: StageContext, task: Task) -> Task:
    return await nap(ctx, task)


@stage("heeding")
async def heeding(ctx: StageContext, task: Task) -> Task:
    write(ctx, task, "start")
    try:
        async with asyncio.timeout(task.seconds):
            await ctx.abort_signal.wait()
    except TimeoutError:
        return task
    write(ctx, task, f"told-{ctx.abort_signal.reason}")
    try:
        await asyncio.sleep(task.seconds)
    except asyncio.CancelledError:
        write(ctx, task, "cancelled")
        raise
    return task


@stage("deaf")
async def deaf(ctx: StageContext, task: Task) -> Task:
    write(ctx, task, "start")
    until = time.monotonic() + task.seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            write(ctx, task, "ignored")
    write(ctx, task, "end")
    return task


@stage("stubborn")
def stubborn(ctx: StageContext, task: Task) -> Task:
    write(ctx, task, "start")
    time.sleep(task.seconds)
    write(ctx, task, "end")
    return task


@stage("stubborn_steps")
async def stubborn_steps(ctx: StageContext, task: Task) -> Task:
    """Three plain functions at once, none of which can be stopped."""

    def hold() -> None:
        write(ctx, task, "start")
        time.sleep(task.seconds)
        write(ctx, task, "end")

    await asyncio.gather(*(ctx.step.run(f"hold-{number}", hold) for number in range(3)))
    return task


@stage("blocking")
async def blocking(ctx: StageContext, task: Task) -> Task:
    write(ctx, task, "start")
    time.sleep(task.seconds)
    write(ctx, task, "end")
    return task


@stage("doomed")
async def doomed(ctx: StageContext, task: Task) -> Task:
    await asyncio.sleep(0.3)
    raise Terminal("fails for good")


@stage("flaky", max_attempts=2)
async def flaky(ctx: StageContext, task: Task) -> Task:
    write(ctx, task, "start")
    if ctx.attempt == 1:
        raise RuntimeError("once")
    return task


RUNGS = 10


@stage("dozing")
async def dozing(ctx: StageContext, task: Task) -> Task:
    await ctx.step.run("before", lambda: None)
    await ctx.step.sleep("doze", task.seconds)
    write(ctx, task, "end")
    return task


@stage("climb", max_attempts=20)
async def climb(ctx: StageContext, ladder: Ladder) -> Total:
    total = 0
    for number in range(RUNGS):
        await _hang(ctx, ladder, 2 * number)
        total = await ctx.step.run(f"rung-{number}", partial(_rung, ctx, ladder, number, total), lease=ladder.lease)
    await _hang(ctx, ladder, 2 * RUNGS)
    return Total(total=total)


async def _rung(ctx: StageContext, ladder: Ladder, number: int, total: int, step: Step) -> int:
    with Path(ladder.diary).open("a") as diary:
        diary.write(f"rung {ctx.run_id} {step.step_id} {step.external_key} {step.attempt} {os.getpid()}\n")
    await asyncio.sleep(ladder.seconds)
    await _hang(ctx, ladder, 2 * number + 1)
    return total + number + 1


async def _hang(ctx: StageContext, ladder: Ladder, gap: int) -> None:
    if ladder.hang_at == gap and ctx.attempt == 1:
        with Path(ladder.diary).open("a") as diary:
            diary.write(f"hung {ctx.run_id} {gap}\n")
        await asyncio.Event().wait()


@stage("bulky", max_attempts=20)
async def bulky(ctx: StageContext, ladder: Ladder) -> dict[str, Any]:
    """Return what two large steps made; the first execution hangs after them."""
    parts = [await ctx.step.run(name, partial(_part, ctx, ladder, name), lease=ladder.lease) for name in ("a", "b")]
    await ctx.step.run("small", lambda: None, lease=ladder.lease)
    await _hang(ctx, ladder, 0)
    return {"parts": parts}


def _part(ctx: StageContext[Any], ladder: Ladder, name: str) -> str:
    with Path(ladder.diary).open("a") as diary:
        diary.write(f"part {ctx.run_id} {name}\n")
    return name * (5 * 1024 * 1024)


async def _is_wanted(ctx: StageContext) -> bool:
    return bool(ctx.input.is_wanted)


@stage("choosy", when=_is_wanted)
async def choosy(ctx: StageContext, task: Task) -> Task:
    return await nap(ctx, task)


async def _never_answers(ctx: StageContext) -> bool:
    write(ctx, ctx.input, "asked")
    await asyncio.sleep(3600)
    return True


@stage("unanswered", when=_never_answers)
async def unanswered(ctx: StageContext, task: Task) -> Task:
    return task


RAISED: dict[str, BaseException] = {
    "nul": ValueError("a\0b"),
    "surrogate": ValueError("a\ud800b"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt("by a body"),
    "cancel": asyncio.CancelledError("by a body"),
    "generator": GeneratorExit("by a body"),
}
TEXTS = {"literal": "\\u0000", "nul_output": "a\0b", "lone_output": "a\ud800b"}


def misbehave(oddity: Oddity) -> Text:
    if oddity.kind in RAISED:
        raise RAISED[oddity.kind]
    return Text(text=TEXTS[oddity.kind])


@stage("odd", max_attempts=1)
async def odd(ctx: StageContext, oddity: Oddity) -> Text:
    await asyncio.sleep(0)
    return misbehave(oddity)


@stage("odd", max_attempts=1)
def odd_thread(ctx: StageContext, oddity: Oddity) -> Text:
    return misbehave(oddity)


REGISTRY = Registry(
    [
        workflow("nap", input=Task).pipe(one).build(),
        workflow("trio", input=Task).pipe(one).pipe(two).pipe(three).build(),
        workflow("heeding", input=Task).pipe(heeding).build(),
        workflow("deaf", input=Task).pipe(deaf).build(),
        workflow("stubborn", input=Task).pipe(stubborn).build(),
        workflow("stubborn_steps", input=Task).pipe(stubborn_steps).build(),
        workflow("blocking", input=Task).pipe(blocking).build(),
        workflow("siblings", input=Task).parallel(doomed, heeding).build(),
        workflow("flaky", input=Task).pipe(flaky).build(),
        workflow("choosy", input=Task).pipe(choosy).pipe(three).build(),
        workflow("unanswered", input=Task).pipe(unanswered).build(),
        workflow("climb", input=Ladder).pipe(climb).build(),
        workflow("bulky", input=Ladder).pipe(bulky).build(),
        workflow("dozing", input=Task).pipe(dozing).build(),
        workflow("odd", input=Oddity).pipe(odd).build(),
        workflow("odd_thread", input=Oddity).pipe(odd_thread).build(),
    ]
)
NAPS_ONLY = Registry([workflow("nap", input=Task).pipe(one).build()])
