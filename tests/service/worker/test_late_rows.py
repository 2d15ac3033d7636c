"""What becomes ready long after its rank is claimed although the worker's floors have moved past it."""

import pytest

from kernel import RunCreate
from service.worker import floors
from tenancy.sql import parse
from tests.support.arena import Arena
from tests.support.hosts import running, settings

AGE = parse(
    "-- name: age\nupdate tenantry.workflow_runs set rank = rank - interval '1 minute' where run_id = :run_id::uuid",
    "age",
)["age"]


async def test_a_run_from_below_the_floor_is_found_by_the_next_look(
    ring: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "USED_FROM", 20)
    monkeypatch.setattr(floors, "LOOK_EVERY_S", 1.0)
    async with running(settings(ring.urls)):
        await ring.start("nap", 50)
        await ring.all_over()
        for round_number in range(3):
            async with ring.database.transaction(ring.tenant_id) as tx:
                created = await ring.kernel.dispatch(RunCreate("nap", {"diary": str(ring.diary)}), tx)
                await tx.execute(AGE, run_id=created.run_id)
            await ring.start("nap", 5)
            assert await ring.all_over() == {"COMPLETED": 50 + 6 * (round_number + 1)}
    await ring.assert_settled_once()
