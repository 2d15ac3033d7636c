"""Whatever a body does, its run ends, its worker lives on and its slot comes back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support import waiting
from tests.support.arena import Arena, start_worker, started
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process


@pytest.fixture(scope="module")
def shared(database_urls: DatabaseUrls) -> Iterator[Process]:
    """A worker with two slots that lives through all of it and stops gracefully in the end."""
    with start_worker(database_urls, worker_concurrency="2") as process:
        yield process
        assert process.stop(seconds=15) == 0
        assert "Traceback" not in process.output, process.output


@pytest.fixture
async def worker(shared: Process) -> AsyncIterator[Process]:
    """The worker, which looks for work and outlives the test."""
    await started(shared)
    yield shared
    assert shared.is_running, shared.output


@pytest.mark.usefixtures("worker")
class TestOddities:
    """Bodies that raise or return what nobody should."""

    @pytest.mark.parametrize("workflow_id", ["odd", "odd_thread"])
    async def test_they_fail_their_runs_and_no_more(self, ring: Arena, workflow_id: str) -> None:
        kinds = ["nul", "surrogate", "exit", "interrupt", "cancel", "generator", "nul_output", "lone_output", "literal"]
        for kind in kinds:
            await ring.start(workflow_id, kind=kind)
        assert await ring.all_over() == {"FAILED": 8, "COMPLETED": 1}
        runs = await ring.rows(
            "select input ->> 'kind' as kind, output::text as output, error ->> 'code' as code,"
            " error ->> 'message' as message from tenantry.workflow_runs where tenant_id = %(tenant)s"
        )
        told = {run["kind"]: run for run in runs}
        assert told["literal"]["output"] == '{"text":"\\\\u0000"}'
        assert {told[kind]["code"] for kind in ("nul_output", "lone_output")} == {"INVALID_OUTPUT"}
        names = {
            "nul": "ValueError",
            "exit": "SystemExit",
            "interrupt": "KeyboardInterrupt",
            "cancel": "CancelledError",
        }
        for kind, name in names.items():
            assert (told[kind]["code"], told[kind]["message"].split(":")[0]) == ("STAGE_FAILED", name)
        await ring.assert_settled_once()


async def test_cancel_tells_an_async_body_and_ends_it_after_the_grace(ring: Arena, worker: Process) -> None:
    (run_id,) = await ring.start("heeding", seconds=30)
    await ring.noted("start")
    await asyncio.sleep(1.2)
    cancelled_at = time.monotonic()
    await ring.cancel(run_id)
    await ring.noted("told-cancelled", seconds=2.5)
    await ring.noted("cancelled", seconds=4)
    assert time.monotonic() - cancelled_at >= 1
    await waiting.until(lambda: _is_free(ring), "the lease is gone")
    await ring.assert_settled_once()
    assert await ring.statuses() == {"CANCELLED": 1}


async def _is_free(ring: Arena) -> bool:
    return not await ring.leases()


async def test_a_failing_sibling_aborts_the_other(ring: Arena, worker: Process) -> None:
    await ring.start("siblings", seconds=30)
    assert await ring.all_over() == {"FAILED": 1}
    await ring.noted("told-cancelled", seconds=4)
    await ring.noted("cancelled", seconds=4)
    await waiting.until(lambda: _is_free(ring), "the lease is gone")
    stages = {row["stage_id"]: row["status"] for row in await ring.stages()}
    assert stages == {"doomed": "FAILED", "heeding": "CANCELLED"}


@pytest.mark.parametrize("workflow_id", ["stubborn", "deaf"])
async def test_a_body_that_goes_on_keeps_its_slot_and_its_result_is_discarded(
    ring: Arena, worker: Process, workflow_id: str
) -> None:
    (run_id,) = await ring.start(workflow_id, seconds=6)
    await ring.noted("start")
    await ring.cancel(run_id)
    # Two slots, one of them still taken: two naps of a second come one after the other.
    await waiting.until(lambda: _is_free(ring), "the lease is gone", 8)
    started_at = time.monotonic()
    await ring.start("nap", 2, seconds=1)
    await ring.all_over()
    assert time.monotonic() - started_at >= 2
    await ring.noted("end", 3, 10)
    started_at = time.monotonic()
    await ring.start("nap", 2, seconds=1)
    await ring.all_over()
    assert time.monotonic() - started_at < 2
    assert (await ring.events())["stage:completed"] == 4
    assert await ring.statuses() == {"CANCELLED": 1, "COMPLETED": 4}


async def test_a_when_that_never_answers_ends_with_its_run(ring: Arena, worker: Process) -> None:
    (run_id,) = await ring.start("unanswered")
    await ring.noted("asked")
    await ring.cancel(run_id)
    await waiting.until(lambda: _is_free(ring), "the lease is gone", 6)


async def test_when_skips_or_runs_through_a_real_worker(ring: Arena, worker: Process) -> None:
    await ring.start("choosy", is_wanted=False)
    await ring.start("choosy", is_wanted=True)
    assert await ring.all_over() == {"COMPLETED": 2}
    assert sorted(row["status"] for row in await ring.stages()) == ["COMPLETED", "COMPLETED", "COMPLETED", "SKIPPED"]
    assert sorted(note[1] for note in ring.notes("start")) == ["choosy", "three", "three"]
    attempts = {row["status"]: row["attempt"] for row in await ring.stages() if row["stage_id"] == "choosy"}
    assert attempts == {"COMPLETED": 1, "SKIPPED": 0}


async def test_run_at_and_retries_come_due_by_the_databases_clock(ring: Arena, worker: Process) -> None:
    due_at = datetime.now(UTC) + timedelta(seconds=2)
    await ring.start("nap", run_at=due_at)
    await ring.start("flaky")
    assert await ring.all_over() == {"COMPLETED": 2}
    (run,) = await ring.rows(
        "select started_at, available_at from tenantry.workflow_runs"
        " where tenant_id = %(tenant)s and workflow_id = 'nap'"
    )
    assert timedelta(0) <= run["started_at"] - due_at < timedelta(seconds=1)
    (first, second) = await ring.rows(
        "select occurred_at from tenantry.outbox_events where tenant_id = %(tenant)s and stage_id = 'flaky'"
        " and type in ('stage:retrying', 'stage:completed') order by occurred_at"
    )
    assert timedelta(seconds=2) <= second["occurred_at"] - first["occurred_at"] < timedelta(seconds=3)
    assert [note[2] for note in ring.notes("start") if note[1] == "flaky"] == ["1", "2"]


async def test_a_body_that_blocks_the_loop_keeps_its_lease(ring: Arena, worker: Process) -> None:
    await ring.start("blocking", seconds=8)
    await ring.noted("start")
    with ring.worker() as second:
        await started(second)
        assert await ring.all_over() == {"COMPLETED": 1}
        assert len(ring.notes("start")) == 1
        assert second.stop() == 0
    await ring.assert_settled_once()


async def test_many_functions_run_at_once(ring: Arena) -> None:
    await ring.start("stubborn", 40, seconds=1)
    with ring.worker(worker_concurrency="40") as process:
        await ring.noted("start", 40)
        assert len(ring.notes("end")) < 40
        assert await ring.all_over() == {"COMPLETED": 40}
        assert process.stop() == 0
