"""Results of steps that are too large for their rows: the first execution, every replay and every list see them whole."""

import json
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from kernel import Kernel, Registry, RunRedrive, StageContext, read_steps, stage, workflow
from kernel.blobs import INLINE_BYTES
from kernel.queries.run_annotations import run_annotations
from kernel.queries.run_get import run_get
from kernel.queries.step_list import step_get, step_list
from kernel.redriving import RedriveKind
from kernel.testing import Harness
from tenancy import Database
from tests.kernel.testing.plays import play
from tests.support.blobs import PurgedMeanwhile, Shelf
from tests.support.looking import Look
from tests.support.stagehand import Make, Stagehand, finish, steps_of

LARGE = {"text": "ä" * INLINE_BYTES, "n": 1.0}
OTHER = ["x" * INLINE_BYTES]


async def quote_and_wait(ctx: StageContext[Any]) -> Any:
    quoted = await ctx.step.run("quote", lambda: LARGE)
    told = await ctx.step.wait_for_signal("told", timeout="7d")
    return {"quoted": quoted, "told": told}


async def texts_of(look: Look, hand: Stagehand) -> list[Any]:
    rows = await look(
        "select content from tenantry.workflow_blobs where tenant_id = %s order by length(content)", hand.tenant_id
    )
    return [json.loads(row["content"]) for row in rows]


async def test_a_replay_is_given_what_the_first_execution_was(make: Make, look: Look) -> None:
    hand = make(quote_and_wait)
    run_id = await hand.start()
    await hand.go()
    await hand.signal(run_id, "told", OTHER)
    await finish(hand)

    steps = await steps_of(look, run_id)
    assert {name: (step["status"], step["result"]) for name, step in steps.items()} == {
        "quote": ("completed", None),
        "told": ("completed", None),
    }
    async with hand.transaction() as tx:
        view = await run_get(tx, run_id)
        listed = (await step_list(tx, run_id, limit=10)).steps
    assert view is not None
    assert json.loads(view.output or "") == {"quoted": LARGE, "told": OTHER}
    assert {step.step_id: json.loads(step.result or "") for step in listed} == {"quote": LARGE, "told": OTHER}
    assert await texts_of(look, hand) == [OTHER, LARGE, {"quoted": LARGE, "told": OTHER}]


async def test_a_page_of_steps_is_of_one_stage_shorter_or_without_results_on_wish(make: Make) -> None:
    hand = make(quote_and_wait)
    run_id = await hand.start()
    await hand.go()
    await hand.signal(run_id, "told", OTHER)
    await finish(hand)
    async with hand.transaction() as tx:
        listed = (await step_list(tx, run_id, limit=10)).steps
        stage_id = listed[0].stage_id
        assert [step.step_id for step in (await step_list(tx, run_id, limit=10, of_stage_id=stage_id)).steps] == [
            "quote",
            "told",
        ]
        assert await step_list(tx, run_id, limit=10, of_stage_id="nobody") == ([], False)
        assert await step_list(tx, run_id, limit=10, most_bytes=0) == (listed[:1], True)
        bare, has_more = await step_list(tx, run_id, limit=10, most_bytes=0, with_results=False)
        assert ([step.result for step in bare], has_more) == ([None, None], False)
        assert await step_get(tx, run_id, stage_id, "quote") == listed[0]
        assert await step_get(tx, run_id, stage_id, "nobody") is None


async def test_a_replay_whose_run_is_purged_while_it_reads_is_a_ghosts(make: Make) -> None:
    went_on: list[Any] = []

    async def body(ctx: StageContext[Any]) -> Any:
        went_on.append(await ctx.step.run("quote", lambda: LARGE))
        await ctx.step.sleep("rest", "1h")

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    hand.clock.advance(hours=2)
    job = await hand.lease()
    await hand.cancel(run_id)
    hand.kernel = Kernel(hand.registry, blobs=PurgedMeanwhile(elsewhere=hand.second()))
    act = await hand.perform(job)
    # Neither a failure of the stage nor a body that goes on with nothing: the lease is lost, and the settle finds no run.
    assert went_on == [LARGE]
    assert act.abort.reason == "lease-lost"
    assert (await hand.conclude(act)).ghost_reason == "orphan"


async def test_what_a_step_a_stage_and_a_run_answer_with_is_kept_once(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("make", lambda: LARGE)

    hand = make(body)
    run_id = await hand.start()
    await finish(hand)
    assert await texts_of(look, hand) == [LARGE]
    rows = await look(
        "select run.output_digest as of_run, stage.output_digest as of_stage, step.result_digest as of_step"
        " from tenantry.workflow_runs as run join tenantry.workflow_stages as stage using (tenant_id, run_id)"
        " join tenantry.workflow_steps as step using (tenant_id, run_id, stage_id) where run_id = %s",
        run_id,
    )
    assert len({digest for row in rows for digest in row.values()}) == 1


async def test_a_large_signal_sent_ahead_is_met_and_the_first_one_stays(make: Make, look: Look) -> None:
    hand = make(quote_and_wait)
    run_id = await hand.start()
    assert not (await hand.signal(run_id, "told", OTHER)).already_completed
    assert (await hand.signal(run_id, "told", LARGE)).already_completed
    await finish(hand)
    async with hand.transaction() as tx:
        view = await run_get(tx, run_id)
    assert view is not None
    assert json.loads(view.output or "")["told"] == OTHER


async def test_what_was_polled_may_be_large(make: Make, look: Look) -> None:
    calls = Counter[str]()

    def poll() -> Any:
        calls["poll"] += 1
        return LARGE

    async def body(ctx: StageContext[Any]) -> Any:
        found = await ctx.step.wait_for("found", poll=poll, ready=bool, every="1m", timeout="1h")
        await ctx.step.sleep("rest", "1h")
        return found == LARGE

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    await hand.later(hours=2)
    assert calls["poll"] == 1
    (run,) = await look("select output from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["output"] is True
    assert await texts_of(look, hand) == [LARGE]


async def test_an_outcome_that_comes_too_late_keeps_nothing(make: Make, look: Look) -> None:
    released = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def effect(step: Any) -> Any:
            if not released:
                # While it runs, another worker takes the stage and the step over, and is done with both.
                released.append(step.attempt)
                hand.clock.advance(minutes=10)
                await hand.reap()
                await finish(hand.second())
                return OTHER
            return LARGE

        return await ctx.step.run("slow", effect, lease="1s")

    hand = make(body)
    run_id = await hand.start()
    await hand.perform(await hand.lease(), linger_s=None)
    (run,) = await look("select status from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["status"] == "COMPLETED"
    assert await texts_of(look, hand) == [LARGE]


@pytest.mark.parametrize("linger", [None, "1h"])
async def test_large_results_survive_death_in_every_gap(database: Database, look: Look, linger: str | None) -> None:
    calls = Counter[tuple[str, int]]()

    async def body(ctx: StageContext[Any]) -> Any:
        def make_part(step: Any) -> Any:
            calls[step.step_id, step.attempt] += 1
            return {step.step_id: LARGE}

        parts = [await ctx.step.run(name, make_part) for name in ("one", "two")]
        await ctx.step.sleep("rest", "1m")
        return parts

    harness = Harness(play(body), database.transaction, outcome_linger=linger)
    for gap in harness.gaps():
        run = await harness.start("play", LARGE)
        await run.go()
        # In two goes: what comes due between the harness's last look for work and its look for the next moment is met
        # at the end of the first.
        await harness.advance("1h")
        await harness.advance("1h")
        assert await run.output() == [{"one": LARGE}, {"two": LARGE}], gap
        assert {name: step.result for (_, name), step in (await run.steps()).items()} == {
            "one": {"one": LARGE},
            "two": {"two": LARGE},
            "rest": None,
        }
    # Nothing refers to what is not there, and nothing is there that nobody refers to.
    assert await look(REFERENCES, harness.tenant_id, harness.tenant_id) == []


@pytest.mark.parametrize("kind", ["stage", "start"])
async def test_a_redrive_that_drops_steps_leaves_what_others_refer_to(
    database: Database, tenant: UUID, look: Look, kind: RedriveKind
) -> None:
    """A step that is kept, and what is archived, answer with the same payload as a step that goes."""
    ends = iter([LARGE, LARGE, "again", "again"])

    @stage("make")
    async def make_it(ctx: StageContext) -> Any:
        return await ctx.step.run("same", lambda: next(ends))

    @stage("act")
    async def act(ctx: StageContext) -> Any:
        return await ctx.step.run("same", lambda: next(ends))

    hand = Stagehand(database, tenant, Registry([workflow("play", input=Any).pipe(make_it).pipe(act).build()]))
    run_id = await hand.start()
    await finish(hand)
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunRedrive(run_id, kind, "make" if kind == "stage" else None), tx)
    async with hand.transaction() as tx:
        archived = (await run_annotations(tx, run_id, limit=10)).annotations
        kept = await read_steps(tx, run_id, "make")
    assert [json.loads(note.payload or "") for note in archived] == [{"output": LARGE}] * 2
    # In place its completed step stays, and answers; from the start there is none.
    assert [json.loads(step.result or "") for step in kept] == ([LARGE] if kind == "stage" else [])
    assert (
        await look("select step_id from tenantry.workflow_steps where run_id = %s and stage_id = 'act'", run_id) == []
    )
    await finish(hand)
    assert list(ends) == (["again"] if kind == "stage" else [])
    async with hand.transaction() as tx:
        view = await run_get(tx, run_id)
    assert view is not None
    assert (json.loads(view.output or ""), await texts_of(look, hand)) == ("again", [LARGE])


async def test_whoever_signals_reads_no_output_of_the_stages_before(
    database: Database, tenant: UUID, look: Look
) -> None:
    @stage("make")
    async def make_it(ctx: StageContext) -> Any:
        return LARGE

    @stage("act")
    async def act(ctx: StageContext, made: Any) -> Any:
        return await ctx.step.wait_for_signal("told", timeout="7d")

    hand = Stagehand(database, tenant, Registry([workflow("play", input=Any).pipe(make_it).pipe(act).build()]))
    run_id = await hand.start()
    await finish(hand)
    assert len(await look("delete from tenantry.workflow_blobs where run_id = %s returning digest", run_id)) == 1
    assert (await hand.signal(run_id, "told", 1)).signalled


async def test_a_harness_keeps_what_is_large_where_its_kernel_would(database: Database, look: Look) -> None:
    shelf = Shelf()

    async def body(ctx: StageContext[Any]) -> Any:
        quoted = await ctx.step.run("quote", lambda: "more than ten")
        await ctx.step.sleep("rest", "1m")
        return {"quoted": quoted}

    harness = Harness(play(body), database.transaction, blobs=shelf)
    run = await harness.start("play", {})
    assert await run.go() == "suspended"
    await harness.advance("1h")
    assert await run.output() == {"quoted": "more than ten"}
    assert (await run.steps())["act", "quote"].result == "more than ten"
    assert len(shelf.kept) == 2
    assert await look("select digest from tenantry.workflow_blobs where tenant_id = %s", harness.tenant_id) == []


REFERENCES = """
with referred as (
  select run_id, unnest(array[input_digest, config_digest, output_digest]) as digest
  from tenantry.workflow_runs where tenant_id = %s
  union
  select run_id, output_digest from tenantry.workflow_stages
  union
  select run_id, result_digest from tenantry.workflow_steps
),
kept as (
  select run_id, digest from tenantry.workflow_blobs where tenant_id = %s
)
(
  select 'missing' as what, run_id, digest from referred
  where digest is not null and run_id in (select run_id from kept) and (run_id, digest) not in (select run_id, digest from kept)
)
union all
(
  select 'orphan', run_id, digest from kept
  where not exists (select from referred where referred.run_id = kept.run_id and referred.digest = kept.digest)
)
"""
