"""A workflow of one stage, as a test wants its body, and what the tests of the harness share."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from pydantic import BaseModel

from kernel import (
    StageContext,
    Workflow,
    stage,
    workflow,
)
from kernel.testing import Harness, HarnessRun

Body = Callable[[StageContext[Any]], Coroutine[Any, Any, Any]]
Make = Callable[..., Harness]
TEN = [f"s{n}" for n in range(10)]


class Sum(BaseModel):
    """What some of the workflows come to."""

    total: int


def play(body: Body, **options: Any) -> Workflow:
    """Return a workflow `play` of one stage, `act`."""

    @stage("act", **options)
    async def act(ctx: StageContext) -> Any:
        return await body(ctx)

    return workflow("play", input=dict[str, Any]).pipe(act).build()


async def begin(harness: Harness, **options: Any) -> HarnessRun:
    return await harness.start("play", {}, **options)


async def ten_steps(ctx: StageContext[Any]) -> int:
    total = 0
    for number, name in enumerate(TEN):
        total += await ctx.step.run(name, partial(int, str(number)))
    return total
