"""How deep the queue is, and why a run waits: the first reason that would hold it back by itself."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from kernel import StageSuspended
from kernel.queries.queue_get import QueueDepth, QueueView, Standing, Waiting, WaitReason, queue_get, reason_of
from tests.support.workflows import REGISTRY, HandWorker

SERVED = frozenset({("w", "v"), ("w", "")})
FREE = Standing(is_suspended=False, is_at_cap=False)


@pytest.mark.parametrize(
    ("changes", "standing", "reason"),
    [
        ({}, FREE, WaitReason.PRIORITY),
        ({"version": ""}, FREE, WaitReason.PRIORITY),
        ({}, Standing(is_suspended=False, is_at_cap=True), WaitReason.TENANT_CAP),
        ({"is_early": True}, Standing(is_suspended=False, is_at_cap=True), WaitReason.RUN_AT),
        ({"is_early": True, "is_job": True}, FREE, WaitReason.BACKOFF),
        ({"version": "old", "is_early": True}, FREE, WaitReason.VERSION_NOT_SERVED),
        ({"workflow_id": "x", "version": ""}, FREE, WaitReason.VERSION_NOT_SERVED),
        ({"version": "old"}, Standing(is_suspended=True, is_at_cap=True), WaitReason.TENANT_SUSPENDED),
    ],
)
def test_the_reason(changes: dict[str, Any], standing: Standing, reason: WaitReason) -> None:
    entry = {"run_id": uuid4(), "is_job": False, "workflow_id": "w", "version": "v", "is_early": False, **changes}
    assert reason_of(entry, standing, SERVED) is reason


def test_the_whole_is_the_sum_of_its_shares() -> None:
    view = QueueView((QueueDepth("a", 2, 1, None), QueueDepth("b", 3, 0, 1.5)), ())
    assert (view.depth, view.running, view.oldest_age_s) == (5, 1, 1.5)
    assert QueueView((), ()).oldest_age_s is None


async def test_a_sleeping_stage_is_in_the_queue_only_when_it_is_due(
    hand: HandWorker, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await hand.create("single")
    (job,) = await hand.tick()
    await hand.settle(job, StageSuspended(()))
    # Due far ahead, as with a sleep, and not promoted yet when it comes due.
    await superuser.execute(
        "update tenantry.job_queue set ready = false, available_at = now() + interval '1 hour' where run_id = %s",
        (run_id,),
    )
    served = frozenset(REGISTRY.served)
    async with hand.transaction() as tx:
        asleep = await queue_get(tx, served, limit=10)
        unserved = await queue_get(tx, frozenset(), limit=10)
    assert (asleep.depth, asleep.oldest_age_s, asleep.waiting, unserved.waiting) == (0, None, (), ())
    async with hand.transaction(timedelta(hours=2)) as tx:
        due = await queue_get(tx, served, limit=10)
        unserved = await queue_get(tx, frozenset(), limit=10)
    assert (due.depth, due.waiting) == (1, (Waiting(run_id, WaitReason.PRIORITY),))
    assert due.oldest_age_s == pytest.approx(3600, abs=60)
    assert unserved.waiting == (Waiting(run_id, WaitReason.VERSION_NOT_SERVED),)
