"""The work that is measured: three trivial stages, or ten trivial steps of one: all but the engine costs next to nothing."""

import time
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel

from kernel import Registry, StageContext, Workflow, stage, workflow


class Number(BaseModel):
    """What the stages hand on."""

    n: int


class Instant(BaseModel):
    """When the first body ran its first line, in seconds since the epoch by the machine's clock."""

    n: int
    at: float


@stage("add")
async def add(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n + 1)


@stage("double")
async def double(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n * 2)


@stage("shift")
async def shift(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n + 100)


@stage("look")
async def look(ctx: StageContext, number: Number) -> Instant:
    return Instant(at=time.time(), n=number.n + 1)


@stage("hand_on")
async def hand_on(ctx: StageContext, instant: Instant) -> Instant:
    return Instant(at=instant.at, n=instant.n * 2)


@stage("hand_over")
async def hand_over(ctx: StageContext, instant: Instant) -> Instant:
    return Instant(at=instant.at, n=instant.n + 100)


@stage("count")
async def count(ctx: StageContext, number: Number) -> Instant:
    at, n = time.time(), number.n
    for step in range(STEPS):
        n = await ctx.step.run(f"add-{step}", partial(increment, n))
    return Instant(at=at, n=n)


async def increment(n: int) -> int:
    """Be a step."""
    return n + 1


STEPS = 10
three = workflow("three", input=Number).pipe(add).pipe(double).pipe(shift).build()
timed = workflow("timed", input=Number).pipe(look).pipe(hand_on).pipe(hand_over).build()
ten = workflow("ten", input=Number).pipe(count).build()
REGISTRY = Registry([three, timed, ten])
REFERENCE = f"{__name__}:REGISTRY"


@dataclass(frozen=True, slots=True)
class Work:
    """A workflow that is measured, and what every run must have left behind; its output is input * factor + shift."""

    title: str
    workflow: Workflow
    factor: int
    shift: int
    steps: int = 0

    @property
    def stages(self) -> int:
        return len(self.workflow.stages)

    @property
    def events(self) -> list[str]:
        """The history of a run; steps leave no events."""
        return [
            *("workflow:created", "workflow:started"),
            *("stage:started", "stage:completed") * self.stages,
            "workflow:completed",
        ]


THREE = Work("W1", three, factor=2, shift=102)
TIMED = Work("W3", timed, factor=2, shift=102)
TEN = Work("W2", ten, factor=1, shift=STEPS, steps=STEPS)
