"""Workers that are killed, stopped, suspended or deployed over: runs go on, every stage is settled once."""

import asyncio
import os
import signal
import time

import psutil

from tests.support import waiting
from tests.support.arena import Arena, start_worker, started
from tests.support.environment import DatabaseUrls
from tests.support.processes import answers
from tests.support.system import free_port


async def test_runs_of_a_killed_worker_complete_on_another(ring: Arena) -> None:
    await ring.start("trio", 20, seconds=0.4)
    with ring.worker(worker_concurrency="10") as first:
        await ring.noted("start", 12)
        first.kill()
    with ring.worker() as second:
        assert await ring.all_over() == {"COMPLETED": 20}
        assert second.stop() == 0
    await ring.assert_settled_once()
    events = await ring.events()
    assert (events["stage:completed"], events["workflow:completed"]) == (60, 20)
    # Only what was leased when the worker died ran again, and it says why; some of it had not come to its first line.
    assert 0 <= len(ring.notes("start")) - 60 <= events["stage:retrying"] <= 10
    assert events["stage:retrying"] > 0


async def test_a_stop_gives_attempts_back_and_leaves_nothing_leased(ring: Arena) -> None:
    await ring.start("nap", 8, seconds=30)
    await ring.start("stubborn", 2, seconds=30)
    with ring.worker() as worker:
        await ring.noted("start", 10)
        began = time.monotonic()
        assert worker.stop(seconds=15) == 0
        assert time.monotonic() - began < 6
        assert "Traceback" not in worker.output
    assert await ring.leases() == []
    jobs = await ring.rows("select * from tenantry.job_queue where tenant_id = %(tenant)s")
    assert {(job["status"], job["ready"], job["attempt"], job["last_error"]) for job in jobs} == {
        ("PENDING", True, 0, None)
    }
    assert {(stage["status"], stage["attempt"]) for stage in await ring.stages()} == {("PENDING", 0)}
    assert (await ring.events())["stage:retrying"] == 0


async def test_a_stop_reaches_a_worker_whose_loop_a_body_blocks(ring: Arena) -> None:
    await ring.start("blocking", seconds=60)
    with ring.worker() as worker:
        await ring.noted("start")
        began = time.monotonic()
        assert await asyncio.to_thread(worker.stop, seconds=30) == 0
        assert time.monotonic() - began < 15
    with ring.worker() as second:
        await ring.noted("start", 2)
        second.kill()


async def test_five_deploys_cost_no_attempt(ring: Arena) -> None:
    await ring.start("nap", seconds=3)
    for number in range(1, 6):
        with ring.worker(shutdown_grace="100ms", abort_grace="100ms") as worker:
            await ring.noted("start", number)
            assert worker.stop() == 0
    with ring.worker() as worker:
        assert await ring.all_over() == {"COMPLETED": 1}
        worker.stop()
    assert {note[2] for note in ring.notes("start")} == {"1"}
    (stage,) = await ring.stages()
    assert (stage["attempt"], (await ring.events())["stage:started"]) == (1, 1)


async def test_a_body_longer_than_the_lease_keeps_it_while_the_worker_drains(ring: Arena) -> None:
    await ring.start("nap", seconds=9)
    with ring.worker(shutdown_grace="20s") as first, ring.worker(shutdown_grace="20s") as second:
        ((_, _, _, pid),) = await ring.noted("start")
        draining = first if str(first.pid) == pid else second
        assert await asyncio.to_thread(draining.stop, signal.SIGTERM, 25) == 0
        assert await ring.all_over(5) == {"COMPLETED": 1}
    assert len(ring.notes("start")) == 1


async def test_a_worker_that_slept_past_its_lease_is_fenced_out(ring: Arena) -> None:
    await ring.start("nap", seconds=2)
    with ring.worker() as first:
        await ring.noted("start")
        os.kill(first.pid, signal.SIGSTOP)
        try:
            with ring.worker() as second:
                assert await ring.all_over(20) == {"COMPLETED": 1}
                before = await ring.events()
                os.kill(first.pid, signal.SIGCONT)
                await ring.start("nap", 2)
                await ring.all_over()
                await asyncio.sleep(1)
                assert second.stop() == 0
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert first.stop() == 0
    await ring.assert_settled_once()
    assert (before["stage:completed"], (await ring.events())["stage:completed"]) == (1, 3)


async def test_a_body_that_kills_its_worker_ends_after_its_attempts(ring: Arena) -> None:
    settings = {"stale_lease_threshold": "1500ms", "heartbeat_interval": "500ms"}
    await ring.start("nap", seconds=60)
    for attempt in range(1, 4):
        with ring.worker(**settings) as worker:
            await ring.noted("start", attempt)
            worker.kill()
    with ring.worker(**settings) as worker:
        assert await ring.all_over() == {"FAILED": 1}
        assert worker.stop() == 0
    (run,) = await ring.rows("select error from tenantry.workflow_runs where tenant_id = %(tenant)s")
    assert run["error"]["code"] == "LEASE_HEARTBEAT_LOST"
    assert [note[2] for note in ring.notes("start")] == ["1", "2", "3"]


async def test_two_workers_share_the_work(ring: Arena) -> None:
    with ring.worker(worker_concurrency="4") as first, ring.worker(worker_concurrency="4") as second:
        await started(first, second)
        await ring.start("trio", 24, seconds=0.1)
        assert await ring.all_over() == {"COMPLETED": 24}
        by_worker = {str(process.pid): 0 for process in (first, second)}
        for note in ring.notes("start"):
            by_worker[note[3]] += 1
        assert min(by_worker.values()) >= 20, by_worker
        assert (first.stop(), second.stop()) == (0, 0)
    assert len(ring.notes("start")) == 72
    await ring.assert_settled_once()


async def test_processes_side_by_side_and_all_end_with_a_stop(ring: Arena) -> None:
    with ring.worker("--processes", "2", worker_concurrency="3") as workers:
        await waiting.until(lambda: workers.output.count("worker_started") == 2, "both have started", 30)
        await ring.start("nap", 6, seconds=1)
        assert await ring.all_over() == {"COMPLETED": 6}
        assert len({note[3] for note in ring.notes("start")}) == 2
        children = psutil.Process(workers.pid).children()
        assert workers.stop() == 0
        assert not any(child.is_running() for child in children)


async def test_an_unserved_version_waits_for_a_worker_that_serves_it(ring: Arena) -> None:
    with ring.worker(workflows="tests.support.stress:NAPS_ONLY") as worker:
        await started(worker)
        await ring.start("trio")
        await ring.start("nap")
        await waiting.until(lambda: _has(ring, {"COMPLETED": 1, "PENDING": 1}), "the served one has completed")
        await asyncio.sleep(0.5)
        assert (await ring.statuses())["PENDING"] == 1
        assert worker.stop() == 0
    with ring.worker() as worker:
        assert await ring.all_over() == {"COMPLETED": 2}
        assert worker.stop() == 0
    assert {stage["attempt"] for stage in await ring.stages()} == {1}


async def _has(ring: Arena, statuses: dict[str, int]) -> bool:
    return await ring.statuses() == statuses


async def test_the_workers_port_tells_health_readiness_and_metrics(ring: Arena) -> None:
    port = free_port()
    with ring.worker(worker_http_port=str(port)) as worker:
        for route in ("healthz", "readyz", "metrics"):
            url = f"http://127.0.0.1:{port}/{route}"
            await waiting.until(lambda: asyncio.to_thread(answers, url), f"/{route} answers", 30)  # noqa: B023
        assert worker.stop() == 0


async def test_on_an_unmigrated_database_it_says_what_to_do(empty_database_urls: DatabaseUrls) -> None:
    port = free_port()
    with start_worker(empty_database_urls, worker_http_port=str(port)) as worker:
        url = f"http://127.0.0.1:{port}"
        await waiting.until(lambda: asyncio.to_thread(answers, f"{url}/healthz"), "it is healthy", 30)
        await waiting.until(lambda: "tenantry db migrate" in worker.output, "it says what to do", 10)
        assert not await asyncio.to_thread(answers, f"{url}/readyz")
        assert worker.stop() == 0


async def test_a_thousand_sleeping_bodies_take_little_memory(ring: Arena) -> None:
    with ring.worker(worker_concurrency="1000", shutdown_grace="10s") as worker:
        await started(worker)
        await ring.start("nap", 1000, seconds=4)
        await ring.noted("start", 1000, 30)
        used_mb = psutil.Process(worker.pid).memory_info().rss / 1e6
        assert await ring.all_over(30) == {"COMPLETED": 1000}
        assert worker.stop() == 0
    assert used_mb < 300
