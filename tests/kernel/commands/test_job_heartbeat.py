"""`job.heartbeat` answers for each job that it is asked about, in the order it was asked."""

from uuid import UUID

from kernel import JobHeartbeat, RunCancel, RunStatus
from tests.support.looking import Look
from tests.support.workflows import HandWorker


async def test_jobs_are_named_as_they_were_leased_or_by_their_fences(
    hand: HandWorker, tenant: UUID, look: Look
) -> None:
    for _ in range(3):
        await hand.create("chain")
    first, second, third = sorted(await hand.tick(), key=lambda job: job.run_id, reverse=True)
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(second.run_id), tx)
    async with hand.transaction() as tx:
        beats = await hand.kernel.dispatch(JobHeartbeat([third.fence, first, second, first]), tx)
    assert [beat.run_id for beat in beats] == [job.run_id for job in (third, first, second, first)]
    running, cancelled = (RunStatus.RUNNING, True), (RunStatus.CANCELLED, True)
    assert [(beat.run_status, beat.lease_held) for beat in beats] == [running, running, cancelled, running]
