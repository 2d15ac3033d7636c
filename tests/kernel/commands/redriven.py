"""A workflow whose stages do a step each and fail while they are told to, for tests of redrives."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from kernel import (
    StageContext,
    Terminal,
    Workflow,
    stage,
    workflow,
)
from kernel.testing import Harness, HarnessRun
from tenancy import Database
from tests.support.looking import Look

STAGES = "select * from tenantry.workflow_stages where run_id = %s order by number"
JOBS = "select * from tenantry.job_queue where run_id = %s order by stage_id"
ARCHIVE = (
    "select stage_id, attempt, value, payload from tenantry.workflow_annotations"
    " where run_id = %s and key = 'run.superseded_attempt' order by created_at, annotation_id"
)


class Play:
    """`gather` → `pay` and `note` side by side → `ship`; each does a step, and fails while it is told to."""

    def __init__(self, database: Database) -> None:
        self.calls: Counter[str] = Counter()
        self.keys: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.harness = Harness(self.workflow(), database.transaction)

    def workflow(self) -> Workflow:
        def effect(name: str) -> Callable[[Any], int]:
            def act(step: Any) -> int:
                self.calls[name] += 1
                self.keys.append((name, step.external_key))
                return self.calls[name]

            return act

        async def perform(ctx: StageContext[Any]) -> int:
            done: int = await ctx.step.run("effect", effect(ctx.stage_id))
            if ctx.stage_id in self.failing:
                raise Terminal("told to")
            return done

        @stage("gather")
        async def gather(ctx: StageContext, order: dict) -> int:
            return await perform(ctx)

        @stage("pay", max_attempts=2)
        async def pay(ctx: StageContext, number: int) -> int:
            return await perform(ctx)

        @stage("note")
        async def note(ctx: StageContext, number: int) -> int:
            return await perform(ctx)

        @stage("ship")
        async def ship(ctx: StageContext, both: dict) -> dict:
            await ctx.step.run("label", effect("label"))
            await perform(ctx)
            return both

        return workflow("play", input=dict).pipe(gather).parallel(pay, note).pipe(ship).build()

    async def start(self, *failing: str) -> HarnessRun:
        self.failing = set(failing)
        run = await self.harness.start("play", {})
        await run.go()
        self.failing = set()
        return run


async def statuses(look: Look, run: HarnessRun) -> dict[str, tuple[str, int, int]]:
    rows = await look(STAGES, run.run_id)
    return {row["stage_id"]: (row["status"], row["attempt"], row["generation"]) for row in rows}
