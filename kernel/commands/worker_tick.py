"""`worker.tick`: everything a worker takes from one tenant, in one transaction of two or three messages.

Promote what came due, take back lapsed leases, lease ready jobs, start pending runs with their first jobs leased.
Jobs come before runs: what has begun is brought to its end first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kernel.blobs import with_inputs
from kernel.capacity import room_for, standing_call
from kernel.changes import Changes
from kernel.command import Command, Scope, handles
from kernel.commands import job_claim, lease_reap_stale, run_claim_pending
from kernel.commands.due_promote import promotions
from kernel.commands.job_claim import GhostJob
from kernel.commands.lease_reap_stale import LeasesReaped
from kernel.commands.run_claim_pending import RunsClaimed
from kernel.draft import RunDraft
from kernel.jobs import LeasedJob
from kernel.lanes import EVERYWHERE, NOTHING_SEEN, Look, Sight
from kernel.opening import LeaseBudget
from tenancy import Call, Row, TenantTransaction

REAP_LIMIT = 100
NO_ANSWERS: Mapping[str, Sequence[Row]] = {"runs_due": (), "jobs_due": (), "lapsed": (), "jobs": (), "runs": ()}


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a tick brought.

    `is_capped`: the tenant has a running cap, so a settle may lease ahead at most what it takes out of RUNNING.
    `is_blocked`: nothing was
    claimed because of the cap, the tenant's standing or another worker's claim. `promoted` counts rows that came due.
    `job_lanes` and `run_lanes` are what the claims saw: below it the next ones need not look again.
    """

    leased: tuple[LeasedJob, ...] = ()
    runs: RunsClaimed = field(default_factory=lambda: RunsClaimed(()))
    ghosts: tuple[GhostJob, ...] = ()
    reaped: LeasesReaped = field(default_factory=lambda: LeasesReaped(0, 0))
    promoted: int = 0
    is_capped: bool = False
    is_blocked: bool = False
    job_lanes: Sight = NOTHING_SEEN
    run_lanes: Sight = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class WorkerTick(Command[Ticked]):
    """Lease up to `limit` jobs of this tenant to `worker_id`.

    Take lapsed leases back when `reap`, make ready what came due when `promote`. Never waits for a row.
    `job_lanes` and `run_lanes` say where to look for jobs and for runs.
    """

    name: ClassVar[str] = "worker.tick"
    worker_id: str
    limit: int
    reap: bool = True
    promote: bool = True
    job_lanes: Look = EVERYWHERE
    run_lanes: Look = EVERYWHERE


@handles(WorkerTick)
async def worker_tick(command: WorkerTick, tx: TenantTransaction, scope: Scope) -> Ticked:
    """Ask for everything in one message.

    What the tenant's standing forbids is locked for a moment and left as it was.
    """
    is_serving = bool(scope.registry.served) and command.limit > 0
    calls = _calls(command, scope, is_serving=is_serving)
    answers = {**NO_ANSWERS, **dict(zip(calls, await tx.fetch_batch(list(calls.values())), strict=True))}
    standing = answers["standing"][0]
    changes = Changes()
    reaped = await lease_reap_stale.reap(answers["lapsed"], changes, tx, scope) if command.reap else LeasesReaped(0, 0)
    allowed = await room_for(command.limit, standing, tx) if is_serving else 0
    budget = LeaseBudget(command.worker_id, allowed, scope.limits.replay_margin)
    resumed: list[RunDraft] = []
    ghosts: tuple[GhostJob, ...] = ()
    started: list[RunDraft] = []
    if allowed > 0:
        # A run of which a lease was taken back has been decided about: what else it has due is the next tick's.
        decided = {row["run_id"] for row in answers["lapsed"]}
        due = [row for row in answers["jobs"] if row["run_id"] not in decided]
        resumed, ghosts = await job_claim.lease_jobs(due[:allowed], budget, changes, tx, scope)
        pending = await with_inputs(scope.blobs, tx, answers["runs"][: budget.left])
        started = run_claim_pending.start_runs(pending, scope.registry, budget, changes, tx.tenant_id)
    await changes.write(tx)
    runs_due, jobs_due = answers["runs_due"], answers["jobs_due"]
    return Ticked(
        leased=job_claim.leased_of([*resumed, *started]),
        runs=run_claim_pending.claimed_of(started),
        ghosts=ghosts,
        reaped=reaped,
        promoted=len(runs_due) + len(jobs_due),
        is_capped=standing["running_jobs"] is not None,
        is_blocked=is_serving and allowed <= 0,
        job_lanes=job_claim.sight(answers["jobs"], resumed, ghosts, jobs_due),
        run_lanes=run_claim_pending.sight(answers["runs"], started, runs_due),
    )


def _calls(command: WorkerTick, scope: Scope, *, is_serving: bool) -> dict[str, Call]:
    """Return what the tick asks, in the order in which it is asked."""
    calls: dict[str, Call] = {"standing": standing_call()}
    if command.promote:
        calls["runs_due"], calls["jobs_due"] = promotions()
    if command.reap:
        calls["lapsed"] = lease_reap_stale.lapsed_call(scope.limits, REAP_LIMIT)
    if is_serving and command.job_lanes.pairs != ():
        calls["jobs"] = job_claim.claim_call(scope.registry, command.limit, command.job_lanes)
    if is_serving and command.run_lanes.pairs != ():
        calls["runs"] = run_claim_pending.claim_call(scope.registry, command.limit, command.run_lanes)
    return calls
