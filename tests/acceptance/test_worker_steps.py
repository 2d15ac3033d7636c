"""Workers killed in the midst of durable steps: what is recorded never runs again, the rest goes on where it was."""

from collections import Counter, defaultdict

from tests.support import waiting
from tests.support.arena import Arena
from tests.support.stress import RUNGS

Key = tuple[str, str]
TOTAL = RUNGS * (RUNGS + 1) // 2
QUICK = {"stale_lease_threshold": "1500ms", "heartbeat_interval": "500ms", "worker_concurrency": "40"}


async def test_a_worker_killed_in_every_gap_of_ten_steps_repeats_none_that_was_recorded(ring: Arena) -> None:
    gaps = range(2 * RUNGS + 1)
    run_ids = {gap: str((await ring.start("climb", hang_at=gap))[0]) for gap in gaps}
    with ring.worker(**QUICK) as first:
        await ring.noted("hung", len(gaps), 40)
        # Before the gap lies a linger: what was returned is recorded by then.
        await waiting.until(lambda: _are_recorded(ring, run_ids), "what came before the gaps is recorded")
        first.kill()
    recorded = await _recorded(ring)
    before = _calls(ring)
    with ring.worker(**QUICK) as second:
        assert await ring.all_over(40) == {"COMPLETED": len(gaps)}
        assert second.stop() == 0

    calls = _calls(ring)
    assert {key: calls[key] for key in recorded} == {key: before[key] for key in recorded} == dict.fromkeys(recorded, 1)
    # Only the step that was under way ran twice: those of the odd gaps.
    twice = {key for key, number in calls.items() if number > 1}
    assert twice == {(run_ids[gap], f"rung-{gap // 2}") for gap in gaps if gap % 2}
    assert set(calls.values()) == {1, 2}
    await _assert_right(ring)


async def test_workers_killed_at_any_moment_repeat_no_recorded_step(ring: Arena) -> None:
    """No gap is chosen: claims, functions, lingers, flushes and settles of thirty runs are cut off four times."""
    await ring.start("climb", 30, seconds=0.05)
    seen: list[tuple[set[Key], Counter[Key]]] = []
    for number in range(1, 5):
        with ring.worker(**QUICK) as worker:
            await ring.noted("rung", number * 50, 30)
            worker.kill()
        seen.append((await _recorded(ring), _calls(ring)))
    with ring.worker(**QUICK) as worker:
        assert await ring.all_over(60) == {"COMPLETED": 30}
        assert worker.stop() == 0

    calls = _calls(ring)
    for recorded, before in seen:
        assert {key: calls[key] for key in recorded} == {key: before[key] for key in recorded}
    assert any(number > 1 for number in calls.values()), "a kill cut a step off"
    await _assert_right(ring)


def _calls(ring: Arena) -> Counter[Key]:
    """Count the calls of each step's function."""
    return Counter((run_id, step_id) for run_id, step_id, *_ in ring.notes("rung"))


async def _recorded(ring: Arena) -> set[Key]:
    rows = await ring.rows(
        "select run_id, step_id from tenantry.workflow_steps where tenant_id = %(tenant)s and status = 'completed'"
    )
    return {(str(row["run_id"]), row["step_id"]) for row in rows}


async def _are_recorded(ring: Arena, run_ids: dict[int, str]) -> bool:
    return await _recorded(ring) == {
        (run_id, f"rung-{number}") for gap, run_id in run_ids.items() for number in range(gap // 2)
    }


async def _assert_right(ring: Arena) -> None:
    """Every result is what one undisturbed execution gives, every step has one key, every stage one end."""
    runs = await ring.rows("select output from tenantry.workflow_runs where tenant_id = %(tenant)s")
    assert [run["output"] for run in runs] == [{"total": TOTAL}] * len(runs)
    keys: dict[Key, set[str]] = defaultdict(set)
    for run_id, step_id, key, *_ in ring.notes("rung"):
        keys[run_id, step_id].add(key)
    assert {len(of_step) for of_step in keys.values()} == {1}
    assert len(set.union(*keys.values())) == len(keys) == RUNGS * len(runs)
    steps = await ring.rows("select status from tenantry.workflow_steps where tenant_id = %(tenant)s")
    assert {step["status"] for step in steps} == {"completed"}
    await ring.assert_settled_once()
