"""`run.redrive`: what becomes of the steps of a stage that goes on in place, wherever its worker died."""

from collections import Counter
from typing import Any

import pytest

from kernel import (
    StageContext,
    StepNotReplaySafeError,
    Terminal,
    stage,
    workflow,
)
from kernel.testing import Harness
from tenancy import Database


class TestSteps:
    async def test_an_unfinished_effect_is_tried_again_under_its_key_with_all_its_retries(
        self, database: Database
    ) -> None:
        keys: list[str] = []
        is_away = True

        @stage("act", max_attempts=1)
        async def act(ctx: StageContext) -> str:
            def effect(step: Any) -> str:
                keys.append(step.external_key)
                if is_away:
                    raise ConnectionError("away")
                return "done"

            done: str = await ctx.step.run("effect", effect, retries=1)
            return done

        harness = Harness(workflow("play", input=dict).pipe(act).build(), database.transaction)
        run = await harness.start("play", {})
        assert await run.go() == "failed"
        await run.redrive()
        assert await run.go() == "failed"
        assert len(keys) == 4
        is_away = False
        await run.redrive()
        assert await run.go() == "completed"
        assert len(set(keys)) == 1
        step = (await run.steps())["act", "effect"]
        assert (step.status, step.attempt) == ("completed", 5)

    async def test_what_must_not_be_replayed_is_opened_by_a_redrive_alone_and_told_so(self, database: Database) -> None:
        told: list[tuple[int, bool]] = []

        @stage("act", max_attempts=3)
        async def act(ctx: StageContext) -> str:
            def effect(step: Any) -> str:
                told.append((step.attempt, step.is_reclaim))
                return "done"

            done: str = await ctx.step.run("effect", effect, lease="1m", on_reclaim="fail")
            return done

        harness = Harness(workflow("play", input=dict).pipe(act).build(), database.transaction)
        harness.kill_after(1)
        run = await harness.start("play", {})
        await run.go()
        await harness.advance("10m")
        error = await run.error()
        assert error is not None
        assert error.message.startswith(StepNotReplaySafeError.__name__)
        assert told == []
        await run.redrive()
        assert await run.go() == "completed"
        assert told == [(2, True)]

    async def test_a_wait_that_timed_out_waits_again(self, database: Database) -> None:
        @stage("act")
        async def act(ctx: StageContext) -> str:
            said: str = await ctx.step.wait_for_signal("approve", timeout="1h")
            return said

        harness = Harness(workflow("play", input=dict).pipe(act).build(), database.transaction)
        run = await harness.start("play", {})
        await harness.advance("2d")
        assert await run.status() == "FAILED"
        await run.redrive()
        assert await run.go() == "suspended"
        await run.signal("act", "approve", "yes")
        assert await run.go() == "completed"

    @pytest.mark.parametrize("kind", ["last_failure", "start"])
    async def test_wherever_the_worker_dies_completed_steps_do_not_run_again(
        self, database: Database, kind: Any
    ) -> None:
        keys: Counter[tuple[str, str]] = Counter()
        is_broken = True

        @stage("act")
        async def act(ctx: StageContext) -> str:
            for name in ("one", "two"):
                await ctx.step.run(name, lambda step: keys.update([(step.step_id, step.external_key)]))
            if is_broken:
                raise Terminal("told to")
            await ctx.step.run("three", lambda step: keys.update([(step.step_id, step.external_key)]))
            return "done"

        harness = Harness(workflow("play", input=dict).pipe(act).build(), database.transaction)
        for gap in harness.gaps():
            keys.clear()
            is_broken = True
            run = await harness.start("play", {})
            await run.go()
            await harness.advance("20m")
            assert await run.status() == "FAILED", gap
            done, first = await run.steps(), Counter(keys)
            is_broken = False
            await run.redrive(kind)
            await run.go()
            await harness.advance("20m")
            assert await run.output() == "done", gap
            names = Counter(name for name, _ in keys)
            assert set(names) == {"one", "two", "three"}
            of_first = {(name[1], str(step.external_key)) for name, step in done.items()}
            if kind == "start":
                assert len(keys) == 5, gap
                assert first == Counter({key: keys[key] for key in of_first}), f"{gap}: an old effect was repeated"
            else:
                assert len(keys) == 3, f"{gap}: in place the keys stay"
                assert Counter({key: keys[key] for key in of_first}) == first, f"{gap}: a completed step ran again"
