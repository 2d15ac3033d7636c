"""A worker played by hand that executes bodies: every write of the ledger is a transaction of its own, on one clock."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from kernel import (
    AbortSignal,
    JobSettle,
    LeasedJob,
    LeaseReapStale,
    Registry,
    RunCancel,
    Settled,
    Settlement,
    StageContext,
    StageJournal,
    StageOutcome,
    StageSuspended,
    StepAnswer,
    StepExecution,
    StepOp,
    StepRow,
    StepSignal,
    StepWrite,
    give_steps,
    invocation_of,
    read_steps,
    run_stage,
    stage,
    workflow,
)
from kernel.commands.step_signal import StepSignalled
from kernel.execution.ledger import Wait
from kernel.execution.stage_runner import StageInvocation
from tenancy import Database, TenantTransaction
from tenancy.sql import parse
from tests.support.looking import Look
from tests.support.workflows import HandWorker

Body = Callable[[StageContext[Any]], Coroutine[Any, Any, Any]]
Around = Callable[[Sequence[StepOp], Callable[[], Awaitable[Sequence[StepAnswer]]]], Awaitable[Sequence[StepAnswer]]]
Make = Callable[..., "Stagehand"]
LATER = timedelta(seconds=400)
PID = parse("-- name: pid\nselect pg_backend_pid() as pid", "pid")["pid"]


@dataclass(slots=True)
class Clock:
    """How far the engine's clock is ahead, for every hand that holds it."""

    offset: timedelta = timedelta(0)

    def advance(self, **times: float) -> None:
        self.offset += timedelta(**times)


@dataclass(slots=True)
class Act:
    """One execution of a body: the lease, what it came to and what its settle is to write."""

    job: LeasedJob
    abort: AbortSignal = field(default_factory=AbortSignal)
    journal: StageJournal = field(default_factory=StageJournal)
    steps: StepExecution | None = None
    invocation: StageInvocation | None = None
    outcome: StageOutcome | None = None

    @property
    def settlement(self) -> Settlement:
        assert self.outcome is not None
        assert self.steps is not None
        return Settlement(self.job, self.outcome, tuple(self.journal.annotations()), self.steps.remaining)


def play_of(body: Body, **options: Any) -> Registry:
    """One workflow `play` of one stage `act` with this body."""

    @stage("act", **options)
    async def act(ctx: StageContext) -> Any:
        return await body(ctx)

    return Registry([workflow("play", input=dict[str, Any]).pipe(act).build()])


class Stagehand(HandWorker):
    """Plays a worker that executes `play`; two of them with one clock are two workers."""

    def __init__(
        self,
        database: Database,
        tenant_id: UUID,
        body: Body | Registry,
        name: str = "hand",
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        registry = body if isinstance(body, Registry) else play_of(body, **options)
        super().__init__(database, tenant_id, registry, name)
        self.registry = registry
        self.clock = clock or Clock()
        self.around: Around | None = None

    def second(self, name: str = "second") -> "Stagehand":
        """Return another worker on the same clock."""
        return Stagehand(self.database, self.tenant_id, self.registry, name, self.clock)

    @asynccontextmanager
    async def transaction(self, offset: timedelta | None = None) -> AsyncIterator[TenantTransaction]:
        async with super().transaction(self.clock.offset if offset is None else offset) as tx:
            yield tx

    async def lease(self) -> LeasedJob:
        """Lease the one job that is due."""
        (job,) = await self.tick()
        return job

    async def perform(self, job: LeasedJob, act: Act | None = None, *, linger_s: float | None = 0.01) -> Act:
        """Execute the body of a leased job; nothing is settled."""
        act = act or Act(job)
        invocation = invocation_of(job, self.tenant_id, 1 << 24, abort=act.abort, journal=act.journal)
        act.invocation = invocation
        act.steps = give_steps(invocation, job, HandLedger(self, job), linger_s=linger_s)
        act.outcome = await run_stage(invocation)
        return act

    async def conclude(self, act: Act) -> Settled:
        """Settle what an execution came to."""
        async with self.transaction() as tx:
            (settled,) = await self.kernel.dispatch(JobSettle(self.worker_id, [act.settlement], wait=True), tx)
        return settled

    async def go(self) -> Settled:
        """Lease, perform, settle."""
        return await self.conclude(await self.perform(await self.lease()))

    async def later(self, **times: float) -> Settled:
        self.clock.advance(**times)
        return await self.go()

    async def suspend(self, job: LeasedJob, *waits: Wait) -> Settled:
        async with self.transaction() as tx:
            settlement = Settlement(job, StageSuspended(waits))
            (settled,) = await self.kernel.dispatch(JobSettle(self.worker_id, [settlement], wait=True), tx)
        return settled

    async def write(self, *ops: StepOp) -> tuple[StepAnswer, ...]:
        async with self.transaction() as tx:
            return await self.kernel.dispatch(StepWrite(ops, wait=True), tx)

    async def signal(self, run_id: UUID, step_id: str, payload: object = None) -> StepSignalled:
        async with self.transaction() as tx:
            return await self.kernel.dispatch(StepSignal(run_id, "act", step_id, payload), tx)

    async def cancel(self, run_id: UUID) -> None:
        async with self.transaction() as tx:
            await self.kernel.dispatch(RunCancel(run_id), tx)

    async def reap(self) -> None:
        """Take back every lease, as if its worker had been silent for the threshold; the clock stays."""
        async with self.transaction(self.clock.offset + LATER) as tx:
            await self.kernel.dispatch(LeaseReapStale(), tx)

    async def start(self) -> UUID:
        return await self.create("play", 1)


@dataclass(frozen=True, slots=True)
class HandLedger:
    """The steps of one execution; each write is a transaction of its own, with what the test puts around it."""

    hand: Stagehand
    job: LeasedJob

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        if self.hand.around is None:
            return await self.hand.write(*ops)
        return await self.hand.around(ops, lambda: self.hand.write(*ops))

    async def read(self) -> Sequence[StepRow]:
        async with self.hand.transaction() as tx:
            return await read_steps(tx, self.job.run_id, self.job.stage_id, self.hand.kernel.scope.blobs)


async def steps_of(look: Look, run_id: UUID) -> dict[str, dict[str, Any]]:
    """Return the rows of a run's steps by their ids."""
    rows = await look("select * from tenantry.workflow_steps where run_id = %s", run_id)
    return {row["step_id"]: row for row in rows}


async def run_of(look: Look, run_id: UUID) -> tuple[str, Any]:
    """Return status and output of a run."""
    (row,) = await look("select status, output from tenantry.workflow_runs where run_id = %s", run_id)
    return row["status"], row["output"]


async def output_of(look: Look, run_id: UUID) -> Any:
    """Return the output of a run that must have completed."""
    (row,) = await look("select status, output, error from tenantry.workflow_runs where run_id = %s", run_id)
    assert row["status"] == "COMPLETED", row
    return row["output"]


@asynccontextmanager
async def holding(hand: Stagehand) -> AsyncIterator[tuple[TenantTransaction, int]]:
    """A transaction of the first connection, with the process id of its server side."""
    async with hand.transaction() as tx:
        row = await tx.fetch_one(PID)
        assert row is not None
        yield tx, row["pid"]


async def finish(hand: Stagehand) -> None:
    """Execute whatever is due until nothing is."""
    while jobs := await hand.tick():
        for job in jobs:
            await hand.conclude(await hand.perform(job))
