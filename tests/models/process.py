"""A worker process that the test lets go on gate by gate, and that dies or loses a reply where the test says.

Gates stand before and after each transaction of an execution, and wherever the body has one. A process that is left at its
gates stands still, as a machine does that swaps, or a packet that is late.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from kernel import (
    AbortSignal,
    JobBegin,
    JobHeartbeat,
    JobRelease,
    JobSettle,
    Kernel,
    LeasedJob,
    Settlement,
    StageFailed,
    StageInvocation,
    StageJournal,
    StageOutcome,
    StageReleased,
    StageSkipped,
    StepAnswer,
    StepOp,
    StepRow,
    StepWrite,
    WorkerTick,
    give_steps,
    invocation_of,
    read_steps,
    run_stage,
    run_when,
)
from kernel.command import Command
from tenancy import TenantTransaction
from tenancy.sql import Statement
from tests.models.clockwork import World

R = TypeVar("R")
LARGEST_OUTPUT = 1 << 20


class DeadError(Exception):
    """The process is no more: what it was about to do is not done."""


class LostReplyError(Exception):
    """COMMIT was carried out, and its reply never came."""


@dataclass(eq=False, slots=True)
class Execution:
    """One leased job under way.

    Of its steps, while the body was there to hear: which it asked for, which of those it has an answer to, and of which
    a function began.
    """

    job: LeasedJob
    abort: AbortSignal = field(default_factory=AbortSignal)
    journal: StageJournal = field(default_factory=StageJournal)
    asked: set[str] = field(default_factory=set)
    got: dict[str, Any] = field(default_factory=dict)
    began: set[str] = field(default_factory=set)
    is_over: bool = False
    task: asyncio.Task[None] | None = None
    body: asyncio.Task[Any] | None = None


@dataclass(frozen=True, slots=True)
class Here:
    """Where a body is executed: what its functions need to know of their process."""

    process: "Process"
    execution: Execution


HERE: ContextVar[Here] = ContextVar("here")


class Process:
    """Executes one job at a time. Its id is its own: one that was started anew after a death is somebody else."""

    numbers = count(1)

    def __init__(self, world: World, kernel: Kernel, linger_s: float | None, *, leases_ahead: bool = False) -> None:
        self.worker_id = f"worker-{next(self.numbers)}"
        self.execution: Execution | None = None
        self.gates: dict[asyncio.Future[None], str] = {}
        self.is_dead = False
        self.loses_reply = False
        self.statements_left: int | None = None
        self._needs_release = False
        self._world = world
        self._kernel = kernel
        self._linger_s = linger_s
        self._lease_ahead = int(leases_ahead)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._world.loop

    # -- what the test does -------------------------------------------------------------------------------------------

    async def take(self) -> bool:
        """Lease the job if it is due, after whatever a lost reply may have left; whether there was one."""
        held = [self.execution.job.fence] if self.execution is not None else []
        with self._mortal():
            if self._needs_release:
                await self._carry_out(JobRelease(self.worker_id, held))
                self._needs_release = False
            ticked = await self._carry_out(WorkerTick(self.worker_id, limit=1))
            self._start(ticked.leased)
        await self._world.quiet()
        return self.execution is not None

    async def open(self, which: int = 0) -> str | None:
        """Open one of the gates at which this process stands and let it go on from there; returns which it was."""
        if not self.gates:
            return None
        gate, name = list(self.gates.items())[which % len(self.gates)]
        gate.set_result(None)
        await self._world.quiet()
        return name

    async def beat(self) -> None:
        """Keep the lease alive, and tell the body what became of its run."""
        if self.execution is None:
            return
        with self._mortal():
            (told,) = await self._carry_out(JobHeartbeat([self.execution.job.fence]))
            if not told.lease_held:
                self.execution.abort.abort("lease-lost")
            elif told.run_status != "RUNNING":
                self.execution.abort.abort("cancelled")
        await self._world.quiet()

    async def leave(self) -> None:
        """Stop gracefully: the body is told and cancelled at once, its lease given back."""
        if self.execution is not None and self.execution.body is not None and not self.execution.abort.aborted:
            self.execution.abort.abort("shutdown")
            self.execution.body.cancel()
            await self._world.quiet()

    async def die(self) -> None:
        """End here and now. What stands at a gate does nothing more, whatever it goes on to try."""
        self.is_dead = True
        for gate in list(self.gates):
            gate.set_exception(DeadError())
        await self._world.quiet()
        if self.execution is not None:
            tasks = [task for task in (self.execution.task, self.execution.body) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # -- what bodies do -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to do anything for the dead."""
        if self.is_dead:
            raise DeadError

    async def gate(self, name: str) -> None:
        """Stand still until the test opens this gate."""
        self.check()
        gate = asyncio.get_running_loop().create_future()
        self.gates[gate] = name
        try:
            await gate
        finally:
            del self.gates[gate]

    async def gate_of_thread(self, name: str) -> None:
        """Let a thread stand still until the test opens this gate."""
        self._world.end_work()
        try:
            await self.gate(name)
        finally:
            self._world.begin_work()

    # -- an execution -------------------------------------------------------------------------------------------------

    def _start(self, jobs: Sequence[LeasedJob]) -> None:
        for job in jobs:
            execution = self.execution = Execution(job)
            execution.task = asyncio.get_running_loop().create_task(self._execute(execution))
            execution.task.add_done_callback(self._ended)

    async def _execute(self, execution: Execution) -> None:
        HERE.set(Here(self, execution))
        job = execution.job
        invocation = invocation_of(
            job, self._world.tenant_id, LARGEST_OUTPUT, abort=execution.abort, journal=execution.journal
        )
        with self._mortal():
            outcome = None if job.begun else await self._begin(execution, invocation)
            if outcome is not None or execution.job.begun:
                steps = give_steps(invocation, execution.job, _Ledger(self, job), linger_s=self._linger_s)
                if outcome is None:
                    outcome = await self._run(execution, run_stage(invocation, self._world.threads))
                await self._settle(
                    Settlement(execution.job, outcome, tuple(execution.journal.annotations()), steps.remaining)
                )
                return
        self.execution = None

    async def _begin(self, execution: Execution, invocation: StageInvocation) -> StageOutcome | None:
        """Return how the stage ends without its body; else begin it, unless it is somebody else's by now."""
        answer = await self._run(execution, run_when(invocation, self._world.threads))
        if answer is not True:
            return StageSkipped() if answer is False else answer
        (begun,) = await self.commit(f"begin {execution.job.stage_id}", JobBegin([execution.job], wait=True))
        if begun.status != "begun":
            return None
        execution.job = begun.job
        # Told while it was begun: a body that starts now would not be cancelled.
        reason = execution.abort.reason
        return StageReleased() if reason == "shutdown" else StageFailed(f"aborted: {reason}") if reason else None

    async def _run(self, execution: Execution, foreign: Coroutine[Any, Any, Any]) -> Any:
        """Await a body or its `when` in a task of its own; one that was told to leave has no outcome."""
        execution.body = asyncio.get_running_loop().create_task(foreign)
        try:
            return await execution.body
        except asyncio.CancelledError:
            if execution.abort.reason != "shutdown":
                raise
            return StageReleased()

    async def _settle(self, settlement: Settlement) -> None:
        """Settle, and go on with what was leased ahead."""
        command = JobSettle(self.worker_id, [settlement], lease_ahead=self._lease_ahead, wait=True)
        what = f"settle {settlement.job.stage_id} {type(settlement.outcome).__name__}"
        (settled,) = await self.commit(what, command)
        self.execution = None
        self._start(settled.next_jobs)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._world.errors.append(error)

    async def commit(self, what: str, command: Command[R]) -> R:
        """Carry a command out, again and again while the reply to its COMMIT is lost."""
        while True:
            await self.gate(f"before {what}")
            try:
                answer = await self._carry_out(command)
            except LostReplyError:
                self._needs_release = True
            else:
                await self.gate(f"after {what}")
                return answer

    async def _carry_out(self, command: Command[R]) -> R:
        async with self.transaction() as tx:
            return await self._kernel.dispatch(command, tx)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TenantTransaction]:
        """Open a transaction that breaks off where the process dies: before any statement, at COMMIT or after it."""
        self.check()
        async with self._world.transaction() as tx:
            yield _Mortal(self, tx)
            self.count()
        self.count()
        if self.loses_reply:
            self.loses_reply = False
            raise LostReplyError

    def count(self) -> None:
        """Count one more statement, or die before it."""
        self.check()
        if self.statements_left is not None:
            self.statements_left -= 1
            if self.statements_left < 0:
                self.is_dead = True
                raise DeadError

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        """Let what a process does for itself end with it; a tick whose reply is lost is followed by a release."""
        try:
            yield
        except DeadError:
            self.is_dead = True
        except LostReplyError:
            self._needs_release = True


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The steps of one execution, each write in a transaction of its own."""

    process: Process
    job: LeasedJob

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        what = ", ".join(f"{op.op} {op.fence.stage_id}/{op.step_id}" for op in ops)
        return await self.process.commit(what, StepWrite(ops, wait=True))

    async def read(self) -> Sequence[StepRow]:
        await self.process.gate("before read")
        async with self.process.transaction() as tx:
            rows = await read_steps(tx, self.job.run_id, self.job.stage_id)
        await self.process.gate("after read")
        return rows


@dataclass(frozen=True, slots=True)
class _Mortal:
    """A transaction each of whose statements may be the one that its process does not live to send."""

    process: Process
    tx: TenantTransaction

    @property
    def tenant_id(self) -> UUID:
        return self.tx.tenant_id

    async def confirm(self, *, writes: bool) -> None:
        await self.tx.confirm(writes=writes)

    def after_commit(self, tell: Callable[[], None]) -> None:
        self.tx.after_commit(tell)

    async def fetch_all(self, statement: Statement, **params: object) -> Any:
        self.process.count()
        return await self.tx.fetch_all(statement, **params)

    async def fetch_one(self, statement: Statement, **params: object) -> Any:
        self.process.count()
        return await self.tx.fetch_one(statement, **params)

    async def execute(self, statement: Statement, **params: object) -> int:
        self.process.count()
        return await self.tx.execute(statement, **params)

    async def fetch_batch(self, calls: Sequence[tuple[Statement, Mapping[str, object]]]) -> Any:
        for _ in calls:
            self.process.count()
        return await self.tx.fetch_batch(calls)

    async def send(self, calls: Sequence[tuple[Statement, Mapping[str, object]]]) -> None:
        for _ in calls:
            self.process.count()
        await self.tx.send(calls)
