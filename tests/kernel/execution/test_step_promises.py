"""Promises of durable steps over retries, replays, sweeps and long waits, one transaction a write."""

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from kernel import (
    JobHeartbeat,
    LeaseReapStale,
    RunPurge,
    RunReapStuck,
    StageContext,
    StageReleased,
    StepNotReplaySafeError,
)
from kernel.execution.step_options import run_options
from tests.support.looking import Look
from tests.support.stagehand import Make, steps_of


async def run_of(look: Look, run_id: UUID) -> dict[str, Any]:
    (row,) = await look("select * from tenantry.workflow_runs where run_id = %s", run_id)
    return row


# -- retries ----------------------------------------------------------------------------------------------------------


async def test_a_retry_of_the_stage_keeps_what_is_completed_and_opens_what_has_failed_again(
    make: Make, look: Look
) -> None:
    """The row's attempt goes on counting, its failures begin anew, its key stays; a wait that failed stays failed."""
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.run("kept", lambda: calls.update(["kept"]))

        def failing() -> str:
            calls["failing"] += 1
            if calls["failing"] < 4:
                raise LookupError(calls["failing"])
            return "there"

        try:
            await ctx.step.wait_for_signal("approve", timeout=0)
        except Exception as error:  # noqa: BLE001
            calls[type(error).__name__] += 1
        return await ctx.step.run("failing", failing, retries=1)

    hand = make(body)
    run_id = await hand.start()
    assert (await hand.go()).stage_status == "SUSPENDED"
    assert (await hand.go()).stage_status == "PENDING"
    failed = (await steps_of(look, run_id))["failing"]
    assert (failed["status"], failed["attempt"], failed["failures"]) == ("failed", 2, 2)
    assert (await hand.later(seconds=10)).stage_status == "SUSPENDED"
    again = (await steps_of(look, run_id))["failing"]
    assert (again["status"], again["attempt"], again["failures"]) == ("pending", 3, 1)
    await hand.go()
    assert (await run_of(look, run_id))["output"] == "there"
    steps = await steps_of(look, run_id)
    assert (steps["failing"]["attempt"], steps["failing"]["external_key"]) == (4, failed["external_key"])
    assert calls == {"kept": 1, "failing": 4, "StepTimeoutError": 4}


async def test_a_step_that_is_not_replay_safe_stays_failed_over_retries(make: Make, look: Look) -> None:
    calls: Counter[str] = Counter()
    seen: list[str] = []

    async def body(ctx: StageContext[Any]) -> Any:
        async def charge() -> None:
            calls["charge"] += 1
            await asyncio.Event().wait()

        try:
            await ctx.step.run("charge", charge, on_reclaim="fail", lease="1m")
        except StepNotReplaySafeError as error:
            seen.append(str(error))
            raise LookupError("retry me") from None

    hand = make(body)
    run_id = await hand.start()
    dying = asyncio.create_task(hand.perform(await hand.lease()))
    while not calls["charge"]:
        await asyncio.sleep(0)
    await hand.reap()
    assert (await hand.go()).stage_status == "SUSPENDED", "its lease lives"
    assert (await hand.later(seconds=61)).stage_status == "PENDING"
    assert (await hand.later(seconds=30)).stage_status == "FAILED"
    dying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dying
    step = (await steps_of(look, run_id))["charge"]
    assert (step["status"], calls["charge"], len(seen)) == ("failed", 1, 2)
    assert seen[0] == seen[1]
    assert str(step["external_key"]) in seen[0]
    assert "charge" in seen[0]


@pytest.mark.parametrize(
    ("retry_delay", "factor", "expected"),
    [(0, 2, 0.0), (1, 2, 365 * 86_400.0), (1, 1, 1.0), (0.5, 1e300, 365 * 86_400.0)],
)
def test_the_millionth_retry_waits_as_long_as_it_may_and_overflows_nothing(
    retry_delay: float, factor: float, expected: float
) -> None:
    options = run_options(
        lease="5m",
        retries=1_000_000,
        retry_delay=retry_delay,
        retry_backoff={"factor": factor},
        heartbeat=None,
        on_reclaim="rerun",
    )
    assert [options.delay_s(n) for n in (1_025, 10**6)] == [expected, expected]


async def test_a_step_that_failed_a_million_times_is_tried_again(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        def broken() -> None:
            raise LookupError("again")

        await ctx.step.run("broken", broken, retries=1_000_000, retry_delay="1s", retry_backoff={"factor": 3})

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    await look(
        "update tenantry.workflow_steps set attempt = 999999, failures = 999999 where run_id = %s returning 1", run_id
    )
    settled = await hand.later(days=366)
    step = (await steps_of(look, run_id))["broken"]
    assert (step["status"], step["attempt"], step["failures"]) == ("pending", 1_000_000, 1_000_000)
    assert settled.stage_status == "SUSPENDED"
    await hand.later(days=366)
    assert (await steps_of(look, run_id))["broken"]["status"] == "failed"


# -- results ----------------------------------------------------------------------------------------------------------


async def test_falsy_results_are_results(make: Make, look: Look) -> None:
    calls: Counter[str] = Counter()
    falsy: list[Any] = [None, 0, "", [], {}, False, 0.0, -0.0]

    async def body(ctx: StageContext[Any]) -> Any:
        got = []
        for number, value in enumerate(falsy):
            got.append(await ctx.step.run(f"run-{number}", lambda v=value, n=number: calls.update([f"{n}"]) or v))
            got.append(
                await ctx.step.wait_for(
                    f"wait-{number}", poll=lambda v=value: v, ready=lambda _v: True, every=1, timeout="1h"
                )
            )
        got.append(await ctx.step.wait_for_signal("falsy", timeout="1h"))
        return got

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    assert (await hand.signal(run_id, "falsy", False)).already_completed is False
    assert (await hand.signal(run_id, "falsy", True)).already_completed is True
    await hand.go()
    output = (await run_of(look, run_id))["output"]
    assert output == [value for value in falsy for _ in range(2)] + [False]
    assert [str(value) for value in output[-3:-1]] == ["-0.0", "-0.0"]
    assert set(calls.values()) == {1}
    assert len(calls) == len(falsy)


async def test_a_result_of_five_megabytes_is_replayed(make: Make, look: Look) -> None:
    calls: Counter[str] = Counter()

    async def body(ctx: StageContext[Any]) -> Any:
        big = await ctx.step.run("big", lambda: calls.update(["big"]) or "x\\é" * 1_300_000)
        await ctx.step.sleep("rest", "1m")
        return len(big)

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    await hand.later(minutes=2)
    assert ((await run_of(look, run_id))["output"], calls["big"]) == (3 * 1_300_000, 1)


async def test_a_parameter_with_a_default_is_not_given_the_step_unless_it_asks_by_name(make: Make, look: Look) -> None:
    """`lambda item=item: …` is how a loop hands its variable to a function."""

    async def body(ctx: StageContext[Any]) -> Any:
        def named(step: Any = None) -> str:
            return str(step.step_id)

        def required(any_name: Any) -> str:
            return str(any_name.step_id)

        made = [await ctx.step.run(f"item-{item}", lambda item=item: item) for item in (1, 2)]
        return [*made, await ctx.step.run("named", named), await ctx.step.run("required", required)]

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    assert (await run_of(look, run_id))["output"] == [1, 2, "named", "required"]


async def test_a_result_beyond_the_limit_of_payloads_is_refused_by_name(make: Make, look: Look) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        return await ctx.step.run("huge", lambda: "é" * (1 << 23))

    hand = make(body, max_attempts=1)
    await hand.start()
    settled = await hand.go()
    assert settled.stage_status == "FAILED"
    assert "StepResultNotSerializableError: step 'huge'" in str(settled.error)
    assert "16777218 bytes" in str(settled.error)


async def test_a_stage_given_back_with_its_attempt_reads_its_ledger_once(make: Make, look: Look) -> None:
    """As after a deploy: nothing tells the next worker that there was an execution, until it meets a step of that."""
    calls: Counter[str] = Counter()
    writes: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        for number in range(9):
            await ctx.step.run(f"step-{number}", lambda number=number: calls.update([f"{number}"]))
        if len(writes) == 0:
            raise LookupError("is not settled")

    hand = make(body)
    run_id = await hand.start()
    act = await hand.perform(await hand.lease())
    act.outcome = StageReleased()
    await hand.conclude(act)
    assert (await steps_of(look, run_id))["step-8"]["status"] == "completed"

    async def around(ops: Any, write: Any) -> Any:
        writes.append(len(ops))
        return await write()

    hand.around = around
    assert (await hand.go()).stage_status == "COMPLETED"
    assert writes == [1]
    assert (len(calls), set(calls.values())) == (9, {1})


async def test_a_plain_function_may_return_an_awaitable(make: Make, look: Look) -> None:
    async def answer() -> str:
        await asyncio.sleep(0)
        return "answer"

    async def body(ctx: StageContext[Any]) -> Any:
        def give() -> Any:
            return answer()

        return [await ctx.step.run("one", give), await ctx.step.run("two", give)]

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    assert (await run_of(look, run_id))["output"] == ["answer", "answer"]


# -- order and kind ---------------------------------------------------------------------------------------------------


async def test_a_step_stored_as_another_kind_fails_the_stage_for_good(make: Make, look: Look) -> None:
    rounds: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        rounds.append(1)
        if len(rounds) == 1:
            await ctx.step.sleep("thing", "1m")
        await ctx.step.run("thing", lambda: 1)

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    settled = await hand.later(minutes=2)
    assert (settled.stage_status, "StepKindMismatchError" in str(settled.error)) == ("FAILED", True)
    assert (await run_of(look, run_id))["status"] == "FAILED"


async def test_a_changed_order_is_warned_of_once(make: Make, look: Look, caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        rounds.append(1)
        names = ["a", "b", "c"] if len(rounds) == 1 else ["c", "b", "a"]
        for name in names:
            await ctx.step.run(name, lambda: 1)
        await ctx.step.sleep("rest", "1m")

    hand = make(body)
    await hand.start()
    await hand.go()
    with caplog.at_level(logging.WARNING):
        assert (await hand.later(minutes=2)).stage_status == "COMPLETED"
    assert [record.message for record in caplog.records].count("step_order_changed") == 1


# -- long waits and sweeps --------------------------------------------------------------------------------------------


async def test_a_sleep_of_thirty_days_is_one_row_and_one_parked_job_that_nobody_touches(make: Make, look: Look) -> None:
    rounds: list[int] = []

    async def body(ctx: StageContext[Any]) -> Any:
        rounds.append(1)
        await ctx.step.sleep("rest", "30d")
        return "rested"

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    for days in (1, 9, 19):
        hand.clock.advance(days=days)
        assert await hand.tick() == ()
        async with hand.transaction() as tx:
            reaped = await hand.kernel.dispatch(LeaseReapStale(), tx)
            stuck = await hand.kernel.dispatch(RunReapStuck(), tx)
        assert (reaped.released, reaped.expired, stuck.healed, stuck.failed) == (0, 0, 0, 0)
    assert len(await steps_of(look, run_id)) == 1
    (job,) = await look("select status, replay, attempt from tenantry.job_queue where run_id = %s", run_id)
    assert job == {"status": "PENDING", "replay": True, "attempt": 1}
    await hand.later(days=1, seconds=1)
    assert ((await run_of(look, run_id))["output"], len(rounds)) == ("rested", 2)


async def test_a_cancel_takes_the_parked_job_and_the_next_poll_away_and_a_purge_the_steps(
    make: Make, look: Look
) -> None:
    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "30d")

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    await hand.cancel(run_id)
    assert await look("select from tenantry.job_queue where run_id = %s", run_id) == []
    (stage,) = await look(
        "select status, next_poll_at, waiting_for from tenantry.workflow_stages where run_id = %s", run_id
    )
    assert stage == {"status": "CANCELLED", "next_poll_at": None, "waiting_for": None}
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunPurge(datetime.now(UTC) + timedelta(days=1)), tx)
    assert await steps_of(look, run_id) == {}


async def test_a_replay_whose_worker_died_is_taken_back_and_counts_an_attempt(make: Make, look: Look) -> None:
    """So that a body that kills its worker ends; the stage stays suspended and due."""

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1m")

    hand = make(body, max_attempts=2)
    run_id = await hand.start()
    await hand.go()
    hand.clock.advance(minutes=2)
    assert (await hand.lease()).replay
    await hand.reap()
    (stage,) = await look("select status, attempt from tenantry.workflow_stages where run_id = %s", run_id)
    (job,) = await look("select status, ready, attempt from tenantry.job_queue where run_id = %s", run_id)
    assert (stage, job) == ({"status": "SUSPENDED", "attempt": 1}, {"status": "PENDING", "ready": True, "attempt": 2})
    assert (await hand.lease()).replay
    await hand.reap()
    assert (await run_of(look, run_id))["error"]["code"] == "LEASE_HEARTBEAT_LOST"


async def test_a_replay_is_taken_back_once_its_next_poll_has_passed(make: Make, look: Look) -> None:
    """Long before its lease is stale: every heartbeat sets that a minute ahead, so no live worker lets it pass."""

    async def body(ctx: StageContext[Any]) -> Any:
        await ctx.step.sleep("rest", "1m")

    hand = make(body)
    run_id = await hand.start()
    await hand.go()
    hand.clock.advance(minutes=2)
    job = await hand.lease()
    for seconds, is_alive, taken in ((50, True, 0), (50, True, 0), (59, False, 0), (2, False, 1)):
        hand.clock.advance(seconds=seconds)
        async with hand.transaction() as tx:
            assert (await hand.kernel.dispatch(LeaseReapStale(), tx)).released == taken
            if is_alive:
                await hand.kernel.dispatch(JobHeartbeat([job.fence]), tx)
    assert (await run_of(look, run_id))["status"] == "RUNNING"
