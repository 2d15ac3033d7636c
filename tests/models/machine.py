"""A random run of stages and steps, two workers and everything that can befall them.

The rules are what happens: a worker takes a job, goes on a little, dies at a statement, loses a reply, beats or stops; time
passes; leases are reaped; signals, a cancel and redrives come. After each commit the rows are compared with those before.
"""

import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernel import (
    Fence,
    InvalidRequestError,
    Kernel,
    LeaseReapStale,
    PostgresBlobs,
    RunCancel,
    RunCreate,
    RunReapStuck,
    RunRedrive,
    SignalRefusedError,
    Step,
    StepSignal,
)
from kernel.blobs import INLINE_BYTES
from kernel.command import Command
from tests.models.clockwork import World
from tests.models.play import Call, Play
from tests.models.process import HERE, Process
from tests.models.program import Name, Node, Program, programs
from tests.models.redrives import Redrive, broken_redrive, changes_of, is_reached
from tests.models.run_promises import (
    broken_history,
    broken_notes,
    broken_standing,
    broken_states,
    broken_wake_ups,
)
from tests.models.snapshot import QUERIES, Snapshot, moves
from tests.models.step_promises import broken_begin, broken_ledger, broken_telling, expected_output

WHO = st.integers(0, 1)
# Past nothing, a retry, a beat, a poll, a lease of a step, one of a job, a sleep, a deadline, the cap of a lease.
SECONDS = st.sampled_from((1, 6, 21, 61, 121, 301, 301, 601, 1201, 1201, 3601))
MOST_REDRIVES = 3


class StepsMachine(RuleBasedStateMachine):
    """One run that plays a random program, in the hands of two workers."""

    def __init__(self, world: World, seen: Counter[str]) -> None:
        super().__init__()
        self.world = world
        self.seen = seen
        self.run_id: UUID | None = None
        self.faults: list[str] = []
        self.latest = Snapshot(datetime.now(UTC))
        self.signals: dict[Name, int] = {}
        self.workers: list[Process] = []
        self.leases: set[Fence] = set()
        self.begun: set[Call] = set()
        self.keys: dict[tuple[str, str, int], str] = {}
        self.redriving: Redrive | None = None
        self.redrives = 0
        self._error_before = sys.exc_info()[1]

    # -- what happens -------------------------------------------------------------------------------------------------

    @initialize(
        program=programs(),
        max_attempts=st.sampled_from((100, 100, 3, 1)),
        linger_s=st.sampled_from((3600.0, 0.0, None)),
        may_cancel=st.booleans(),
        leases_ahead=st.booleans(),
        inline_bytes=st.sampled_from((INLINE_BYTES, 0)),
    )
    def start(  # noqa: PLR0913 - what is drawn
        self,
        *,
        program: Program,
        max_attempts: int,
        linger_s: float | None,
        may_cancel: bool,
        leases_ahead: bool,
        inline_bytes: int,
    ) -> None:
        self.program = program
        self.play = Play(program, self.seen)
        self.play.on_begin = self._function_begins
        self.max_attempts, self.linger_s, self.may_cancel = max_attempts, linger_s, may_cancel
        self.leases_ahead = leases_ahead
        self.waits = [node.name for node in program.nodes() if node.kind in ("signal", "hasty")]
        # Payloads all in their rows, or all in the blob store.
        self.kernel = Kernel(self.play.registry(max_attempts), blobs=PostgresBlobs(inline_bytes))
        self.world.run(self._start())

    @rule(who=WHO, gates=st.integers(1, 6), which=st.integers(0, 2))
    def work(self, who: int, gates: int, which: int) -> None:
        """Take the job if it is due; go on through a few gates."""
        self.world.run(self._work(who, gates, which))

    @rule(who=WHO)
    def finish(self, who: int) -> None:
        """Take the job if it is due; go on to its settle."""
        self.world.run(self._work(who, 300, 0))

    @precondition(lambda self: any(worker.execution for worker in self.workers))
    @rule(who=WHO)
    def die(self, who: int) -> None:
        self.world.run(self._replace(who))

    @precondition(lambda self: all(worker.statements_left is None for worker in self.workers))
    @rule(who=WHO, statements=st.integers(0, 8))
    def die_at_a_statement(self, who: int, statements: int) -> None:
        """End before one of the next statements, one of which is COMMIT, or after that."""
        self.workers[who].statements_left = statements

    @precondition(lambda self: not any(worker.loses_reply for worker in self.workers))
    @rule(who=WHO)
    def lose_the_next_reply(self, who: int) -> None:
        """Carry out a COMMIT whose reply never comes."""
        self.workers[who].loses_reply = True

    @precondition(lambda self: any(worker.execution for worker in self.workers))
    @rule(who=WHO)
    def beat(self, who: int) -> None:
        """Keep the lease of the job, and hear how its run stands."""
        self.world.run(self.workers[who].beat())

    @precondition(lambda self: any(worker.execution for worker in self.workers))
    @rule(who=WHO)
    def stop(self, who: int) -> None:
        """Tell a worker to stop: the job is given back once its body has ended."""
        self.world.run(self.workers[who].leave())

    @precondition(lambda self: any(worker.execution for worker in self.workers))
    @rule(who=WHO, seconds=st.sampled_from((301, 1201)), gates=st.integers(1, 6))
    def stand_still(self, who: int, seconds: int, gates: int) -> None:
        """Do nothing until the leases have run out, while the other worker takes the job over."""
        self.world.run(self.world.advance(seconds=seconds))
        self.world.run(self._dispatch(LeaseReapStale()))
        self.world.run(self._work(1 - who, gates, 0))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: int) -> None:
        self.world.run(self.world.advance(seconds=seconds))

    @precondition(lambda self: bool(self.latest.leases()))
    @rule()
    def maintain(self) -> None:
        """Reap leases that lapsed, and runs that are stuck: none ever is."""
        self.world.run(self._dispatch(LeaseReapStale()))
        stuck = self.world.run(self._dispatch(RunReapStuck()))
        assert (stuck.healed, stuck.failed) == (0, 0)

    @precondition(lambda self: len(self.signals) < len(self.waits))
    @rule(which=st.integers(0, 9), payload=st.integers(0, 9))
    def signal(self, which: int, payload: int) -> None:
        """Signal one of the steps that wait, or will wait, for it."""
        self.world.run(self._signal(self.waits[which % len(self.waits)], payload))

    @precondition(lambda self: self.may_cancel and len(self.latest.steps) > 1)
    @rule()
    def cancel(self) -> None:
        assert self.run_id is not None
        was_over = self.latest.is_over
        told = self.world.run(self._dispatch(RunCancel(self.run_id)))
        assert told.cancelled is not was_over

    @precondition(lambda self: self.latest.is_over and self.redrives < MOST_REDRIVES)
    @rule(kind=st.sampled_from(("last_failure", "last_failure", "start", "stage", "stage")), which=st.integers(0, 5))
    def redrive(self, kind: str, which: int) -> None:
        """Let the run go on: where it ended, from a stage or from its start."""
        stages = list(self.program.stages)
        stage_id = stages[which % len(stages)] if kind == "stage" else None
        self.world.run(self._redrive(Redrive(kind, stage_id)))

    # -- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def no_promise_is_broken(self) -> None:
        """What was found at the commits since the last rule, and at the beginnings of functions."""
        assert not self.faults, self.faults
        assert not self.world.errors, self.world.errors

    def teardown(self) -> None:
        """Bring everything to its end without further mishaps, unless something broke already."""
        try:
            if self.run_id is not None and sys.exc_info()[1] is self._error_before:
                self._end()
                # With nothing in its way any more it completes, once each step that fails an attempt has done so.
                for _ in self.program.nodes():
                    if self.latest.run["status"] != "COMPLETED":
                        self.world.run(self._redrive(Redrive("last_failure")))
                        self._end()
                assert self.latest.run["status"] == "COMPLETED"
        finally:
            for worker in self.workers:
                self.world.run(worker.die())

    def _end(self) -> None:
        self.world.run(self._come_to_an_end())
        self.no_promise_is_broken()
        self._is_right()

    # -- how it is done -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self.world.begin(self._look)
        self.workers = [self._process(), self._process()]
        async with self.world.transaction() as tx:
            self.run_id = (await self.kernel.dispatch(RunCreate("play", {}), tx)).run_id
        await self._look()

    def _process(self) -> Process:
        return Process(self.world, self.kernel, self.linger_s, leases_ahead=self.leases_ahead)

    async def _dispatch(self, command: Command[Any]) -> Any:
        async with self.world.transaction() as tx:
            return await self.kernel.dispatch(command, tx)

    async def _work(self, who: int, gates: int, which: int) -> None:
        if self.workers[who].execution is None:
            await self.workers[who].take()
        for _ in range(gates):
            worker = self.workers[who]
            if worker.is_dead:
                break
            opened = await worker.open(which)
            if opened is None:
                break
            note(f"  {worker.worker_id}: {opened}")
        if self.workers[who].is_dead:
            await self._replace(who)

    async def _replace(self, who: int) -> None:
        """Let a process die; another one is started in its place."""
        await self.workers[who].die()
        self.workers[who] = self._process()

    async def _signal(self, name: Name, payload: int) -> None:
        assert self.run_id is not None
        try:
            told = await self._dispatch(StepSignal(self.run_id, *name, payload))
        except SignalRefusedError:
            row = self.latest.steps.get(name)
            is_late = row is not None and row["deadline_at"] is not None and row["deadline_at"] <= self.world.now()
            assert is_late or self.latest.is_over
            return
        assert told.already_completed is (name in self.signals)
        self.signals.setdefault(name, payload)

    async def _redrive(self, redrive: Redrive) -> None:
        assert self.run_id is not None
        before, self.redriving = self.latest, redrive
        is_possible = redrive.stage_id is None or is_reached(self.program, before, redrive.stage_id)
        try:
            await self._dispatch(RunRedrive(self.run_id, redrive.kind, redrive.stage_id))  # type: ignore[arg-type]
        except InvalidRequestError:
            assert not is_possible
            return
        finally:
            self.redriving = None
        assert is_possible
        self.redrives += 1
        self.seen[f"redrive {redrive.kind} of {before.run['status']}"] += 1
        # Those that were waited for in what begins anew are to be sent again.
        self.signals = {name: payload for name, payload in self.signals.items() if name in self.latest.steps}

    async def _look(self) -> None:
        """Read the rows after a commit and compare them with those before."""
        if self.run_id is None:
            return
        before = self.latest
        rows = await self.world.look(
            *QUERIES, run_id=self.run_id, told=len(before.events), tenant_id=self.world.tenant_id
        )
        after = self.latest = Snapshot.of(self.world.now(), rows, before.events)
        self.leases |= after.leases()
        self.seen.update(event["type"] for event in after.events[len(before.events) :])
        self.faults += [
            *broken_history(after.events, self.program),
            *broken_notes(after.notes),
            *(f"the payload {stray['digest']} {stray['fault']}" for stray in after.strays),
        ]
        if self.redriving is not None:
            self.seen.update(changes_of(before, after, self.program, self.redriving))
            self.faults += [
                *broken_redrive(before, after, self.program, self.redriving),
                *broken_standing(after, self.program),
            ]
            return
        self.seen.update(moves(before, after))
        self.faults += [
            *broken_states(before, after, self.program),
            *broken_ledger(before, after, self.play),
            *broken_wake_ups(before, after, self.play.executions),
        ]

    def _function_begins(self, node: Node, step: Step) -> None:
        execution = HERE.get().execution
        key = self.keys.setdefault((*node.name, execution.job.generation), step.external_key)
        if key != step.external_key or len(set(self.keys.values())) != len(self.keys):
            self.faults.append(f"{node.name} has key {step.external_key}, had {key}, all are {self.keys}")
        call = (key, step.attempt)
        if call in self.begun:
            self.faults.append(f"a second body of attempt {step.attempt} of {node.name} begins")
        self.begun.add(call)
        self.faults += [
            *broken_begin(node, step.attempt, execution, self.latest, self.world.now()),
            *broken_telling(node, step, self.begun, self.play),
        ]

    async def _come_to_an_end(self) -> None:
        for worker in self.workers:
            worker.loses_reply, worker.statements_left = False, None
        for _ in range(200):
            is_over = self.latest.is_over and not self.latest.leases()
            for node in self.program.nodes():
                if node.kind == "signal" and node.name not in self.signals:
                    await self._signal(node.name, 7)
            for who in (0, 1):
                await self._work(who, 300, 0)
            if is_over:
                return
            await self.world.advance(seconds=121)
        stuck = [(worker.execution and worker.execution.job.fence, worker.gates) for worker in self.workers]
        standing = [self.latest.standing(stage_id) for stage_id in self.latest.stages]
        raise AssertionError(f"the run comes to no end, {standing}, workers {stuck}, errors {self.world.errors}")

    def _is_right(self) -> None:
        """Compare the end of the run with the model's."""
        run = self.latest.run
        if run["status"] == "COMPLETED":
            assert run["output"] == expected_output(self.play, self.latest, self.signals)
        elif run["status"] == "FAILED" and run["error"]["code"] != "LEASE_ABSOLUTE_CAP":
            # Each attempt that was spent was one lease, at least, that did not end well.
            stage_id = run["error"]["stage_id"]
            leased = [fence for fence in self.leases if fence.stage_id == stage_id]
            assert self.latest.jobs[stage_id]["attempt"] == self.max_attempts <= len(leased)
        elif run["status"] == "CANCELLED":
            assert self.may_cancel
