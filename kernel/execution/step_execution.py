"""One execution's account of its steps: which ids it used, what it waits for, and what it comes to in the end."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from opentelemetry import trace

from kernel.errors import RunNotFoundError
from kernel.execution.abort import AbortSignal
from kernel.execution.leaving import Suspension
from kernel.execution.ledger import Ledger, StepAnswer, StepKind, StepOp, StepOwner, StepRow, Wait
from kernel.execution.outcome import StageCompleted, StageOutcome, StageSuspended, failure_of
from kernel.execution.script import ScriptedEnd, StepScript
from kernel.execution.step_calls import decode
from kernel.execution.step_options import check_step_id
from kernel.execution.step_queue import StepQueue
from kernel.states import RunStatus
from kernel.step_errors import (
    DuplicateStepKeyError,
    StepError,
    StepKindMismatchError,
    StepNotReplaySafeError,
    StepResultLostError,
    error_name_of,
    stored_error,
)

logger = logging.getLogger(__name__)
DEFAULT_LINGER_S = 0.01
# How long a body that leaves to wait lets a poll beside it take, which has no lease.
LANDING_S = 300.0
# For how long a wait holds its body when branches beside it do nothing with steps, and how often, while they do.
HOLD_S = 0.1
HOLDS = 10
# How long steps whose bodies were told to stop may take to end before their leases are left to lapse.
STOP_S = 0.5
UNSAFE = error_name_of(StepNotReplaySafeError)
# Whose step's function this is called from, if from one.
_WITHIN: ContextVar["StepExecution | None"] = ContextVar("tenantry_within_step", default=None)


@dataclass(slots=True)
class StepUse:
    """One step of this execution: its place and, in a replay, its row."""

    step_id: str
    seq: int
    kind: StepKind
    row: StepRow | None


@dataclass(slots=True)
class _State:
    """What became of this execution so far."""

    used: dict[str, StepKind] = field(default_factory=dict[str, StepKind])
    waits: list[Wait] = field(default_factory=list[Wait])
    unheard: list[Wait] = field(default_factory=list[Wait])
    has_suspended: bool = False
    fatal: StepError | None = None
    is_abandoned: bool = False
    is_over: bool = False
    has_landed: bool = False
    has_warned: bool = False
    replayed: int = 0
    moves: int = 0


@dataclass(slots=True)
class _Flight:
    """A step under way: what a body that leaves meanwhile waits for, and how long that is awaited (monotonic)."""

    wait: Wait
    lands_by: float
    has_ended: bool = False

    @property
    def has_effect(self) -> bool:
        """Whether it must come to its end: a poll may be cancelled and made again."""
        return self.wait.kind == "run"

    @property
    def is_outlasting(self) -> bool:
        """Whether its function is still at work, once nobody waits for it any more."""
        return self.has_effect and not self.has_ended


class StepExecution:
    """What the steps of one execution share: their order of use, the ledger, the queue of writes and the end."""

    def __init__(
        self,
        ledger: Ledger,
        owner: StepOwner,
        abort: AbortSignal,
        *,
        linger_s: float | None = DEFAULT_LINGER_S,
    ) -> None:
        """`linger_s`: how long an outcome may wait for what follows it; None writes it before the step returns."""
        self.script: StepScript | None = None
        self.max_result_bytes: int | None = None
        self.threads: Executor | None = None
        self.on_thread: Callable[[Any], None] = lambda _future: None
        self.body: asyncio.Task[Any] | None = None
        self._ledger = ledger
        self._owner = owner
        self._abort = abort
        self._linger_s = linger_s
        self._queue = StepQueue(ledger, linger_s or 0.0, self._heard)
        self._state = _State()
        self._rows: dict[str, StepRow] | None = {} if owner.is_first else None
        self._rows_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._in_flight: dict[asyncio.Task[Any], _Flight] = {}
        self.remaining: tuple[StepOp, ...] = ()

    # -- what hosts call ----------------------------------------------------------------------------------------------

    async def conclude(self, outcome: StageOutcome | None) -> StageOutcome:
        """Return what the execution comes to, its body having ended with `outcome`, or None for a suspension.

        Waits for the steps in flight, so that their outcomes are recorded first; what the settle is to write together
        with its own is left in `remaining`.
        """
        self._state.is_over = True
        if self._state.replayed:
            trace.get_current_span().add_event("steps.replayed", {"tenantry.steps": self._state.replayed})
        is_swallowed = self._state.has_suspended and isinstance(outcome, StageCompleted)
        await self._land(is_suspending=outcome is None or is_swallowed)
        self._state.has_landed = True
        self.remaining = await self._queue.settle()
        try:
            self._queue.raise_failure()
        except StepError as failure:
            return failure_of(failure)
        if self._state.fatal is not None:
            return failure_of(self._state.fatal)
        if self._state.is_abandoned:
            return StageSuspended(())
        if is_swallowed:
            logger.warning("suspension_swallowed", extra={"stage_id": self._owner.fence.stage_id})
        elif outcome is not None:
            return outcome
        # What the body was told too late to go on is news to it, like a signal that came meanwhile: it is due at once.
        # Not so a function that outlasts its lease: it would be called again and again beside itself.
        outlasting = {flight.wait for flight in self._in_flight.values() if flight.is_outlasting}
        news = [wait for wait in self._state.unheard if wait not in outlasting]
        return StageSuspended((*self._state.waits, *news))

    async def stop(self) -> None:
        """Stop the steps in flight, the body having been cancelled, and give back the leases of those that ended."""
        self._state.is_over = self._state.has_landed = True
        under_way = [*self._in_flight, *((self._reading,) if self._reading is not None else ())]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=STOP_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                self.remaining = await self._queue.settle()

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    async def _use(self, step_id: object, kind: StepKind) -> StepUse:
        name = check_step_id(step_id)
        if self._is_elsewhere():
            message = (
                "asked for in another event loop than its body's; a thread reaches that by run_coroutine_threadsafe"
            )
            raise StepError(name, message)
        self._raise_if_over()
        self._queue.raise_failure()
        self._abort.raise_if_aborted()
        first = self._state.used.get(name)
        if first is not None:
            self._state.fatal = DuplicateStepKeyError(
                name, f"asked for twice in one execution, as {first} and as {kind}"
            )
            raise self._state.fatal
        self._state.used[name] = kind
        self._state.moves += 1
        seq = len(self._state.used)
        row = (await self._ledger_rows()).get(name)
        self._state.replayed += row is not None and row.status == "completed"
        self._raise_if_over()
        if row is not None:
            self._check_kind(name, kind, row)
            self._check_order(row, seq)
        return StepUse(name, seq, kind, row)

    def _is_elsewhere(self) -> bool:
        return self.body is not None and self.body.get_loop() is not asyncio.get_running_loop()

    def _raise_if_over(self) -> None:
        if self._state.fatal is not None:
            # The stage fails with it, whatever its body makes of it: nothing more begins.
            raise self._state.fatal
        # Whose body has left, a step under way may still ask for others inside of it.
        is_over = self._state.is_over and (self._state.has_landed or _WITHIN.get() is not self)
        if is_over or self._state.is_abandoned:
            raise Suspension

    async def _ledger_rows(self) -> dict[str, StepRow]:
        """Return the ledger as this execution found it: read once, and not at all by a first execution.

        Whoever waits for it goes on at the same moment: no step is cancelled by one beside it that suspends first.
        """
        while self._rows is None:
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_task(self._read())
            await asyncio.shield(self._reading)
        return self._rows

    async def _read(self) -> None:
        try:
            self._rows = {row.step_id: row for row in await self._ledger.read()}
            self._rows_at = monotonic()
        except RunNotFoundError:
            # Purged between two statements of the read: as if a step had been asked for a moment later.
            self._abort.abort("lease-lost")
            self._abort.raise_if_aborted()
        finally:
            self._reading = None

    def _check_kind(self, step_id: str, kind: StepKind, row: StepRow) -> None:
        if row.kind != kind:
            raise StepKindMismatchError(step_id, f"is stored as {row.kind!r}, asked for as {kind!r}")

    def _check_order(self, row: StepRow, seq: int) -> None:
        if row.seq is not None and row.seq != seq and not self._state.has_warned:
            self._state.has_warned = True
            logger.warning("step_order_changed", extra={"step_id": row.step_id, "was": row.seq, "now": seq})

    def _scripted(self, use: StepUse) -> ScriptedEnd | None:
        return None if self.script is None else self.script.end_of(use.step_id, use.kind)

    def _is_ended(self, row: StepRow) -> bool:
        """Whether the row is an answer; a `run` that failed in an earlier attempt of the stage is open again."""
        if row.status == "completed":
            return True
        if row.status != "failed":
            return False
        return row.kind != "run" or row.stage_attempt >= self._owner.stage_attempt or _is_unsafe(row)

    def _ended(self, row: StepRow, model: Any) -> Any:
        if row.is_lost:
            # Its effect has happened: no body may take this for a step that failed, and go on.
            self._state.fatal = StepResultLostError(row.step_id, "its result is not in the blob store")
            raise self._state.fatal
        if row.status == "completed":
            return decode(row.step_id, row.result, model)
        raise stored_error(row.step_id, str(row.error), row.error_type)

    def _now(self, row: StepRow) -> datetime:
        """Return the database's clock: as the row was read, and what has passed here since, for one read earlier."""
        passed_s = monotonic() - self._rows_at if self._rows and self._rows.get(row.step_id) is row else 0.0
        return row.now + timedelta(seconds=passed_s)

    def _op(self, op: Any, use: StepUse, **values: Any) -> StepOp:
        return StepOp(op, self._owner.fence, use.step_id, {"kind": use.kind, "seq": use.seq, **values})

    async def _write(self, op: StepOp) -> StepAnswer:
        answer = await self._queue.write(op)
        self._check(answer)
        return answer

    def _check(self, answer: StepAnswer) -> None:
        if answer.verdict in ("lost", "gone"):
            # Whoever has the stage now goes on with it; nothing of this execution counts any more.
            self._abort.abort("lease-lost" if answer.verdict == "gone" or _is_running(answer) else "cancelled")
            self._abort.raise_if_aborted()
        if self._state.is_abandoned:
            raise Suspension

    def _row_of(self, answer: StepAnswer, use: StepUse) -> StepRow:
        assert answer.row is not None
        self._check_kind(use.step_id, use.kind, answer.row)
        return answer.row

    def _suspended(self, use: StepUse) -> Suspension:
        self._state.waits.append(Wait(use.step_id, use.kind))
        return Suspension()

    def _heard(self, op: StepOp, answer: StepAnswer) -> None:
        """Take the answer of an op that nobody waited for: an outcome refused ends this execution without a result."""
        if answer.verdict in ("done", "kept", "gone") or op.values.get("status") == "running":
            return
        self._state.is_abandoned = True
        logger.warning("step_outcome_refused", extra={"step_id": op.step_id, "verdict": answer.verdict})

    def _hold(self, lease_s: float, task: "asyncio.Task[Any] | None" = None) -> None:
        """Note that a step's lease lasts so long from now."""
        own = task or asyncio.current_task()
        if own in self._in_flight:
            self._in_flight[own].lands_by = monotonic() + lease_s

    def _end_function(self) -> None:
        """Note that the function of the step whose task this is has ended: its outcome is all that is left to write."""
        own = asyncio.current_task()
        if own in self._in_flight:
            self._in_flight[own].has_ended = True

    async def _fly(self, use: StepUse, lasts_s: float, work: Coroutine[Any, Any, Any]) -> Any:
        """Do a step's work in a task of its own, and return what it returns.

        A step beside it that suspends first may cancel this call, but no claim, effect or poll under way: what becomes
        of them is still heard when the execution concludes.
        """
        wait = Wait(use.step_id, use.kind)
        # It is the step around it that hears, and is waited for.
        is_inner = _WITHIN.get() is self
        context = copy_context()
        context.run(_WITHIN.set, self)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._in_flight[task] = _Flight(wait, monotonic() + lasts_s)
        task.add_done_callback(self._landed)
        self._state.unheard.append(wait)
        try:
            result = await asyncio.shield(task)
        except Suspension:
            await self._hold_back()
            self._state.has_suspended = True
            raise
        except Exception:
            self._hear(wait, always=is_inner)
            raise
        self._hear(wait, always=is_inner)
        return result

    async def _hold_back(self) -> None:
        """Let branches beside a wait come to their next steps, before it takes the body away from all of them.

        A body that awaits the wait by itself has none beside it. A branch that is cancelled meanwhile, by a timeout of
        its own for instance, leaves to wait too; one whose body is cancelled, as on a stop, is cancelled.
        """
        if asyncio.current_task() is self.body or self._state.is_over or self._abort.aborted:
            return
        try:
            for _ in range(HOLDS):
                moves = self._state.moves
                await asyncio.sleep(HOLD_S)
                if moves == self._state.moves:
                    return
        except asyncio.CancelledError:
            if self.body is not None and self.body.cancelling():
                raise

    def _hear(self, wait: Wait, *, always: bool = False) -> None:
        """Note that what a step came to is no news to the body, which has not been sent away before, or `always`."""
        if wait in self._state.unheard and (always or not self._state.has_suspended):
            self._state.unheard.remove(wait)

    def _landed(self, task: "asyncio.Task[Any]") -> None:
        self._in_flight.pop(task, None)
        self._state.moves += 1
        if not task.cancelled():
            task.exception()

    async def _land(self, *, is_suspending: bool) -> None:
        """Wait for the steps in flight, each at most until its lease has run out.

        Polls count only where the execution goes on: else they are cancelled.
        """
        if not is_suspending:
            self._cancel_polls()
        while self._in_flight:
            remaining_s = max(flight.lands_by for flight in self._in_flight.values()) - monotonic()
            if remaining_s <= 0:
                break
            await asyncio.wait(list(self._in_flight), timeout=remaining_s)
            await asyncio.sleep(0)
        self._cancel_polls()

    def _cancel_polls(self) -> None:
        for task, flight in self._in_flight.items():
            if not flight.has_effect:
                task.cancel()


def _is_running(answer: StepAnswer) -> bool:
    return answer.run_status is RunStatus.RUNNING


def _is_unsafe(row: StepRow) -> bool:
    return row.error_type == UNSAFE
