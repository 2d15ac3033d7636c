"""Why a run waits: the first reason that would hold it back by itself."""

from typing import Any
from uuid import uuid4

import pytest

from kernel.queries.queue_get import QueueDepth, QueueView, Standing, WaitReason, reason_of

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
