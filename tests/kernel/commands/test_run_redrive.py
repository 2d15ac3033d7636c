"""`run.redrive`: where a run goes on, what stays, what is done again and what is archived."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from kernel import (
    FieldError,
    InvalidRequestError,
    RunCancel,
    RunRedrive,
    RunRedriven,
    StageContext,
    StageReleased,
    Terminal,
    UnknownStageError,
    stage,
    workflow,
)
from kernel.testing import Harness
from tenancy import Database
from tests.kernel.commands.redriven import ARCHIVE, JOBS, Play, statuses
from tests.support.looking import Look
from tests.support.workflows import HandWorker

TOLD = "select status, is_reclaim from tenantry.workflow_steps where run_id = %s and (stage_id, step_id) = ('gather', 'effect')"
STARTED = "select payload from tenantry.outbox_events where run_id = %s and type = 'stage:started' order by sequence"


class TestLastFailure:
    async def test_the_failed_stage_goes_on_in_place_and_nothing_that_is_done_is_done_again(
        self, play: Play, look: Look
    ) -> None:
        run = await play.start("ship")
        assert await run.status() == "FAILED"
        before, keys = Counter(play.calls), (await run.steps())["ship", "effect"].external_key

        redriven = await run.redrive()

        version = play.harness.kernel.scope.registry.workflows[0].definition_version
        assert redriven == RunRedriven("ship", 1, 1, version)
        assert (await run.status(), await run.error(), await run.output()) == ("RUNNING", None, None)
        (job,) = await look(JOBS, run.run_id)
        assert (job["stage_id"], job["status"], job["attempt"], job["started_at"], job["last_error"]) == (
            "ship", "PENDING", 0, None, None,
        )  # fmt: skip
        assert await run.go() == "completed"
        assert play.calls == before, "a completed step ran again"
        assert (await run.steps())["ship", "effect"].external_key == keys
        assert await statuses(look, run) == {
            "gather": ("COMPLETED", 1, 0),
            "pay": ("COMPLETED", 1, 0),
            "note": ("COMPLETED", 1, 0),
            "ship": ("COMPLETED", 2, 0),
        }

    async def test_the_history_goes_on(self, play: Play) -> None:
        run = await play.start("ship")
        ended = len(await run.events())
        await run.redrive()
        await run.go()
        events = await run.events()
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert [(event.type, event.stage_id) for event in events[ended:]] == [
            ("annotation:created", "ship"),
            ("workflow:started", None),
            ("stage:started", "ship"),
            ("stage:completed", "ship"),
            ("workflow:completed", None),
        ]
        assert events[ended].data == {"key": "run.superseded_attempt"}
        assert events[ended + 1].data["redrive_count"] == 1
        assert events[ended + 2].data == {"attempt": 2}

    async def test_what_is_superseded_is_archived(self, play: Play, look: Look) -> None:
        run = await play.start("ship")
        await run.redrive()
        (row,) = await look(ARCHIVE, run.run_id)
        assert (row["stage_id"], row["attempt"], row["payload"]) == ("ship", 1, None)
        value = row["value"]
        assert (value["status"], value["error"], value["generation"], value["redrive_count"]) == (
            "FAILED", "Terminal: told to", 0, 0,
        )  # fmt: skip
        assert value["external_keys"] == [], "none is abandoned: the stage goes on under its own"

    async def test_siblings_that_completed_stay_and_those_that_were_cancelled_go_on(
        self, database: Database, look: Look
    ) -> None:
        calls: Counter[str] = Counter()
        is_broken = True

        async def count(ctx: StageContext[Any]) -> int:
            await ctx.step.run("effect", lambda: calls.update([ctx.stage_id]))
            return calls[ctx.stage_id]

        @stage("quick")
        async def quick(ctx: StageContext) -> int:
            return await count(ctx)

        @stage("patient")
        async def patient(ctx: StageContext) -> int:
            await count(ctx)
            await ctx.step.sleep("long", "1h")
            return 2

        @stage("broken")
        async def broken(ctx: StageContext) -> int:
            await ctx.step.sleep("short", "1m")
            if is_broken:
                raise Terminal("told to")
            return await count(ctx)

        play = workflow("play", input=dict).parallel(quick, patient, broken).build()
        harness = Harness(play, database.transaction)
        run = await harness.start("play", {})
        await harness.advance("2m")
        assert await run.status() == "FAILED"
        first_end = (await run.steps())["patient", "long"].due_at
        is_broken = False

        redriven = await run.redrive()

        assert (redriven.from_stage_id, redriven.superseded) == ("broken", 2)
        assert {name: status for name, (status, _, _) in (await statuses(look, run)).items()} == {
            "quick": "COMPLETED", "patient": "PENDING", "broken": "PENDING",
        }  # fmt: skip
        steps = await run.steps()
        assert ("patient", "long") not in steps, "a wait that was not over begins anew"
        assert steps["broken", "short"].status == "completed"
        assert await run.go() == "suspended"
        again = (await run.steps())["patient", "long"].due_at
        assert first_end is not None
        assert again is not None
        assert again >= first_end + timedelta(minutes=2)
        await harness.advance("1h")
        assert await run.output() == {"quick": 1, "patient": 2, "broken": 1}
        assert calls == {"quick": 1, "patient": 1, "broken": 1}

    async def test_a_cancelled_run_goes_on_where_it_was(self, play: Play, look: Look) -> None:
        kill = play.harness.kill_after(1)
        run = await play.start()
        assert kill.happened
        await run.cancel()
        assert (await run.status(), play.calls) == ("CANCELLED", {})

        redriven = await run.redrive()

        assert (redriven.from_stage_id, redriven.superseded) == ("gather", 1)
        # What the dead worker had begun is under its lease still.
        assert await run.go() == "suspended"
        await play.harness.advance("5m")
        assert await run.status() == "COMPLETED"
        assert play.calls == {"gather": 1, "pay": 1, "note": 1, "label": 1, "ship": 1}
        assert (await statuses(look, run))["gather"] == ("COMPLETED", 2, 0)

    async def test_a_lost_effect_is_told_of_however_often_the_run_is_redriven_before_it_goes_on(
        self, play: Play, look: Look
    ) -> None:
        kill = play.harness.kill_after(1)
        run = await play.start()
        assert kill.happened
        await run.cancel()
        await play.harness.advance("5m")
        for _ in range(2):
            await run.redrive()
            assert await look(TOLD, run.run_id) == [{"status": "pending", "is_reclaim": True}]
            await run.cancel()
        await run.redrive("stage", "gather")
        assert await run.go() == "completed"
        assert await look(TOLD, run.run_id) == [{"status": "completed", "is_reclaim": True}]

    async def test_an_attempt_that_was_given_back_on_a_stop_is_superseded_like_any_other(
        self, hand: HandWorker, look: Look
    ) -> None:
        run_id = await hand.create("single")
        (job,) = await hand.tick()
        await hand.settle(job, StageReleased())
        async with hand.transaction() as tx:
            await hand.kernel.dispatch(RunCancel(run_id), tx)
            redriven = await hand.kernel.dispatch(RunRedrive(run_id), tx)
        (again,) = await hand.tick()
        assert (redriven.superseded, again.attempt) == (1, 2)
        (row,) = await look(ARCHIVE, run_id)
        assert (row["attempt"], row["value"]["attempt"]) == (1, 1)
        started = [row["payload"]["attempt"] for row in await look(STARTED, run_id)]
        assert started == [1, 2], "what goes on after a redrive has not started in its history"

    async def test_a_run_that_was_cancelled_before_it_began_begins(self, play: Play) -> None:
        run = await play.harness.start("play", {})
        await run.cancel()
        redriven = await run.redrive()
        assert (redriven.from_stage_id, redriven.superseded, redriven.redrive_count) == ("gather", 0, 1)
        assert await run.go() == "completed"

    async def test_of_a_run_that_completed_the_last_group_is_done_again_from_its_ledger(
        self, play: Play, look: Look
    ) -> None:
        run = await play.start()
        assert await run.status() == "COMPLETED"
        before = Counter(play.calls)
        redriven = await run.redrive()
        assert (redriven.from_stage_id, redriven.superseded) == ("ship", 1)
        (row,) = await look(ARCHIVE, run.run_id)
        assert (row["value"]["status"], row["payload"]) == ("COMPLETED", {"output": {"pay": 1, "note": 1}})
        assert await run.go() == "completed"
        assert play.calls == before
        assert (await statuses(look, run))["ship"] == ("COMPLETED", 2, 0)

    async def test_the_budget_of_attempts_begins_anew(self, database: Database, look: Look) -> None:
        @stage("fragile", max_attempts=2)
        async def fragile(ctx: StageContext) -> None:
            raise RuntimeError(f"attempt {ctx.attempt}")

        harness = Harness(workflow("play", input=dict).pipe(fragile).build(), database.transaction)
        run = await harness.start("play", {})
        await harness.advance("1m")
        error = await run.error()
        assert error is not None
        assert error.message == "RuntimeError: attempt 2"
        await run.redrive()
        assert await run.go() == "incomplete"
        (job,) = await look(JOBS, run.run_id)
        assert (job["attempt"], job["status"]) == (1, "PENDING")
        await harness.advance("1m")
        error = await run.error()
        assert error is not None
        assert error.message == "RuntimeError: attempt 4"
        started = [event.data["attempt"] for event in await run.events() if event.type == "stage:started"]
        assert started == [1, 2, 3, 4]


class TestStage:
    async def test_the_stage_named_is_done_again_and_what_comes_after_it_is_replaced(
        self, play: Play, look: Look
    ) -> None:
        run = await play.start()
        old = dict(play.keys)
        redriven = await run.redrive("stage", "pay")
        assert (redriven.from_stage_id, redriven.superseded) == ("pay", 2)
        assert await statuses(look, run) == {
            "gather": ("COMPLETED", 1, 0), "pay": ("PENDING", 1, 0), "note": ("COMPLETED", 1, 0),
        }  # fmt: skip
        assert {name for name, _ in await run.steps()} == {"gather", "pay", "note"}
        play.calls.clear()
        assert await run.go() == "completed"
        assert play.calls == {"label": 1, "ship": 1}, "the ledger answers for the stage itself"
        assert await statuses(look, run) == {
            "gather": ("COMPLETED", 1, 0),
            "pay": ("COMPLETED", 2, 0),
            "note": ("COMPLETED", 1, 0),
            "ship": ("COMPLETED", 2, 1),
        }
        steps = await run.steps()
        assert steps["pay", "effect"].external_key == old["pay"]
        assert steps["ship", "effect"].external_key != old["ship"]

    async def test_the_keys_of_replaced_stages_are_archived(self, play: Play, look: Look) -> None:
        run = await play.start()
        old = dict(play.keys)
        await run.redrive("stage", "pay")
        pay, ship = await look(ARCHIVE, run.run_id)
        assert (pay["stage_id"], pay["value"]["external_keys"]) == ("pay", [])
        assert [(kept["step_id"], kept["external_key"], kept["status"]) for kept in ship["value"]["external_keys"]] == [
            ("label", old["label"], "completed"),
            ("effect", old["ship"], "completed"),
        ]

    async def test_signals_sent_ahead_to_later_stages_are_kept(self, database: Database) -> None:
        is_broken = True

        @stage("first")
        async def first(ctx: StageContext) -> str:
            if is_broken:
                raise Terminal("told to")
            return "first"

        @stage("second")
        async def second(ctx: StageContext, before: str) -> str:
            said: str = await ctx.step.wait_for_signal("ahead", timeout="1h")
            return said

        harness = Harness(workflow("play", input=dict).pipe(first).pipe(second).build(), database.transaction)
        run = await harness.start("play", {})
        await run.signal("second", "ahead", "early")
        assert await run.go() == "failed"
        is_broken = False
        await run.redrive("stage", "first")
        assert await run.go() == "completed"
        assert await run.output() == "early"
        # It has been met meanwhile, and was still sent ahead of the stage that takes the place of this one.
        await run.redrive("stage", "first")
        assert await run.go() == "completed"
        await run.redrive("start")
        assert await run.go() == "suspended"
        await run.signal("second", "ahead", "again")
        await run.go()
        assert await run.output() == "again"
        # This one was answered where it waited: the stage that takes its place asks again.
        await run.redrive("stage", "first")
        assert await run.go() == "suspended"

    async def test_a_skipped_stage_is_asked_again_when_it_is_named(self, database: Database, look: Look) -> None:
        asked: list[str] = []

        def ask(ctx: StageContext[Any]) -> bool:
            asked.append(ctx.stage_id)
            return len(asked) > 1

        @stage("perhaps", when=ask)
        async def perhaps(ctx: StageContext) -> int:
            return 1

        @stage("last")
        async def last(ctx: StageContext) -> int:
            return 2

        harness = Harness(workflow("play", input=dict).pipe(perhaps).pipe(last).build(), database.transaction)
        run = await harness.start("play", {})
        assert await run.go() == "completed"
        await run.redrive("stage", "last")
        assert await run.go() == "completed"
        assert asked == ["perhaps"]
        redriven = await run.redrive("stage", "perhaps")
        assert redriven.superseded == 1, "what was skipped was no attempt"
        assert await run.go() == "completed"
        assert (await statuses(look, run))["perhaps"] == ("COMPLETED", 1, 0)

    async def test_a_stage_that_the_workflow_does_not_have_is_refused(self, play: Play) -> None:
        run = await play.start()
        with pytest.raises(UnknownStageError) as refused:
            await run.redrive("stage", "nobody")
        assert refused.value.errors[0].pointer == "/stage_id"
        assert (await run.status(), len(await run.events())) == ("COMPLETED", 11)

    async def test_a_stage_that_was_not_reached_is_refused(self, play: Play) -> None:
        run = await play.start("pay")
        with pytest.raises(InvalidRequestError) as refused:
            await run.redrive("stage", "ship")
        assert refused.value.errors == (
            FieldError("/stage_id", "not_reached", "stage 'pay' comes before it and has not completed"),
        )


class TestStart:
    async def test_everything_is_done_again_under_new_keys(self, play: Play, look: Look) -> None:
        run = await play.start("ship")
        redriven = await run.redrive("start")
        assert (redriven.from_stage_id, redriven.superseded, redriven.redrive_count) == ("gather", 4, 1)
        assert await statuses(look, run) == {"gather": ("PENDING", 1, 1)}
        assert await run.steps() == {}
        assert await run.go() == "completed"
        assert play.calls == {"gather": 2, "pay": 2, "note": 2, "label": 2, "ship": 2}
        assert len(set(play.keys)) == len(play.keys) == 10
        assert set(await statuses(look, run)) == {"gather", "pay", "note", "ship"}
        assert set((await statuses(look, run)).values()) == {("COMPLETED", 2, 1)}
        started = Counter(
            (event.stage_id, event.data["attempt"]) for event in await run.events() if event.type == "stage:started"
        )
        assert set(started.values()) == {1}, "an attempt was announced twice"

    async def test_the_abandoned_keys_are_archived(self, play: Play, look: Look) -> None:
        run = await play.start("ship")
        await run.redrive("start")
        rows = await look(ARCHIVE, run.run_id)
        assert [row["stage_id"] for row in rows] == ["gather", "pay", "note", "ship"]
        archived = {kept["external_key"] for row in rows for kept in row["value"]["external_keys"]}
        assert archived == {key for _, key in play.keys}

    async def test_a_second_restart_has_keys_of_its_own_and_attempts_count_on(self, play: Play, look: Look) -> None:
        run = await play.start()
        for count in (1, 2):
            assert (await run.redrive("start")).redrive_count == count
            assert await run.go() == "completed"
        assert len(set(play.keys)) == len(play.keys) == 15
        assert set((await statuses(look, run)).values()) == {("COMPLETED", 3, 2)}

    async def test_in_place_after_a_restart_the_new_keys_stay(self, play: Play) -> None:
        run = await play.start()
        await run.redrive("start")
        play.failing = {"ship"}
        assert await run.go() == "failed"
        play.failing = set()
        keys, calls = list(play.keys), Counter(play.calls)
        await run.redrive()
        assert await run.go() == "completed"
        assert (play.keys, play.calls) == (keys, calls)
