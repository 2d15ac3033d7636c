"""The work that is measured: three trivial stages, so that everything but the engine costs next to nothing."""

import time

from pydantic import BaseModel

from kernel import Registry, StageContext, stage, workflow


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


three = workflow("three", input=Number).pipe(add).pipe(double).pipe(shift).build()
timed = workflow("timed", input=Number).pipe(look).pipe(hand_on).pipe(hand_over).build()
REGISTRY = Registry([three, timed])
REFERENCE = f"{__name__}:REGISTRY"
STAGES = 3
# created, started, completed of the run, started and completed of each stage
EVENTS = 3 + 2 * STAGES
