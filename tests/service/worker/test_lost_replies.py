"""COMMITs whose replies are lost: nothing stays leased for the threshold, nothing is settled or run twice."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

import pytest

from kernel.counts import COUNTS
from tests.support import waiting
from tests.support.arena import Arena
from tests.support.hosts import running, settings
from tests.support.proxy import LossyProxy

Carries: TypeAlias = Callable[[bytes], bool]
# What the messages carry: a tick begins stages, a settle completes one. A failure is settled with a look before the write.
COMMITS = {
    "tick": lambda data: b"commit" in data and b"stage:started" in data and b"stage:completed" not in data,
    "settle": lambda data: b"settle_expected" in data,
    "last_settle": lambda data: b"settle_expected" in data and b"workflow:completed" in data,
}
LOOK: Carries = lambda data: b"lock_leases" in data  # noqa: E731 - like its neighbours
FAILURE: Carries = lambda data: b"commit" in data and b"stage:retrying" in data  # noqa: E731


@pytest.mark.parametrize("which", sorted(COMMITS))
async def test_a_lost_reply_costs_no_lease_no_second_outcome_and_no_count(ring: Arena, which: str) -> None:
    ended = COUNTS.runs_finished["completed"]
    async with LossyProxy(ring.urls.worker) as proxy, running(settings(ring.urls, database_url=proxy.url)):
        await ring.start("nap", 1)
        await ring.all_over()
        proxy.lose(COMMITS[which])
        await ring.start("trio", 3, seconds=0.05)
        began = time.monotonic()
        assert await ring.all_over(20) == {"COMPLETED": 4}
        assert time.monotonic() - began < 15
        assert proxy.lost == 1
    assert COUNTS.runs_finished["completed"] - ended == 4
    await ring.assert_settled_once()
    stages = await ring.stages()
    assert {stage["attempt"] for stage in stages} == {1}
    assert (await ring.events())["stage:started"] == 10


@pytest.mark.parametrize("carries", [LOOK, FAILURE], ids=["look", "write"])
async def test_a_lost_reply_to_a_failure_costs_no_second_attempt(ring: Arena, carries: Carries) -> None:
    async with LossyProxy(ring.urls.worker) as proxy, running(settings(ring.urls, database_url=proxy.url)):
        proxy.lose(carries)
        await ring.start("flaky", 3)
        assert await ring.all_over(20) == {"COMPLETED": 3}
        assert proxy.lost == 1
    assert {stage["attempt"] for stage in await ring.stages()} == {2}
    assert (await ring.events())["stage:retrying"] == 3
    assert len(ring.notes("start")) == 6


async def test_a_reply_that_never_comes_is_not_waited_for_for_ever(
    ring: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenancy.owned.REPLY_S", 2.0)
    async with LossyProxy(ring.urls.worker) as proxy, running(settings(ring.urls, database_url=proxy.url)):
        for workflow, carries in (("trio", COMMITS["settle"]), ("flaky", LOOK), ("trio", COMMITS["tick"])):
            proxy.lose(carries, silently=True)
            await ring.start(workflow, 2, seconds=0.05)
            await ring.all_over(20)
        assert proxy.lost == 3
    await ring.assert_settled_once()


async def test_a_heartbeat_without_an_answer_is_given_up_and_repeated(ring: Arena) -> None:
    quick = {"stale_lease_threshold": timedelta(seconds=12), "heartbeat_interval": timedelta(seconds=1)}
    async with LossyProxy(ring.urls.worker) as proxy, running(settings(ring.urls, database_url=proxy.url, **quick)):
        await ring.start("nap", seconds=15)
        await ring.noted("start")
        proxy.lose(lambda data: b"beaten as" in data, silently=True)
        assert await ring.all_over(25) == {"COMPLETED": 1}
        assert proxy.lost == 1
    assert len(ring.notes("start")) == 1


async def test_a_killed_session_of_a_tick_or_settle_costs_nothing(ring: Arena) -> None:
    async with running(settings(ring.urls)):
        await ring.start("trio", 60, seconds=0.02)

        async def kill() -> bool:
            await ring.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and usename = 'tenantry_worker' and state <> 'idle'"
            )
            return (await ring.statuses()).keys() == {"COMPLETED"}

        for _ in range(40):
            if await kill():
                break
        assert await ring.all_over(20) == {"COMPLETED": 60}
        await waiting.until(lambda: _is_free(ring), "no lease is left", 5)
    await ring.assert_settled_once()
    assert {stage["attempt"] for stage in await ring.stages()} == {1}


async def _is_free(ring: Arena) -> bool:
    return not await ring.leases()
