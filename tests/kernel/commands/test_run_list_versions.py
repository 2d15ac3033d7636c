"""`run.list_versions`: what still has runs, and what is served here."""

from uuid import UUID

import psycopg

from kernel import RunCancel, RunListVersions
from kernel.commands.run_list_versions import WorkflowVersion
from tests.support.workflows import REGISTRY, HandWorker


async def list_versions(hand: HandWorker, workflow_id: str | None = None) -> list[WorkflowVersion]:
    async with hand.transaction() as tx:
        return list((await hand.kernel.dispatch(RunListVersions(workflow_id), tx)).versions)


async def test_what_is_served_is_listed_without_a_run(hand: HandWorker) -> None:
    listed = await list_versions(hand)
    assert [(each.workflow_id, each.definition_version) for each in listed] == sorted(REGISTRY.served)
    assert all(each.served and each.drained and each.counts == {} and each.oldest_created_at is None for each in listed)


async def test_runs_are_counted_by_version_and_status(
    hand: HandWorker, superuser: psycopg.AsyncConnection, tenant: UUID
) -> None:
    pinned, cancelled, old, unpinned = [await hand.create("single") for _ in range(4)]
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(cancelled), tx)
    for run_id, version in ((old, "old"), (unpinned, "")):
        await superuser.execute("update tenantry.workflow_runs set version = %s where run_id = %s", (version, run_id))
    listed = {each.definition_version: each for each in await list_versions(hand, "single")}
    served = REGISTRY.get("single")
    assert served is not None
    assert listed.keys() == {served.definition_version, "old", None}
    current, former, open_one = listed[served.definition_version], listed["old"], listed[None]
    assert (current.counts, current.active, current.drained) == ({"PENDING": 1, "CANCELLED": 1}, 1, False)
    assert (former.served, former.active, former.oldest_created_at is None) == (False, 1, False)
    assert open_one.served
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(old), tx)
    former = {each.definition_version: each for each in await list_versions(hand, "single")}["old"]
    assert (former.drained, former.oldest_created_at) == (True, None)
    assert pinned


async def test_another_tenants_runs_are_not_counted(hand: HandWorker, other_tenant: UUID) -> None:
    await HandWorker(hand.database, other_tenant).create("single")
    assert all(each.counts == {} for each in await list_versions(hand, "single"))
