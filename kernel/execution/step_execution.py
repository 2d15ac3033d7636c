"""One execution's account of its steps: which ids it used, what it waits for, and what it comes to in the end."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from opentelemetry import trace

from kernel.errors import RunNotFoundError
from kernel.execution.abort import AbortSignal
from kernel.execution.flights import Flights
from kernel.execution.leaving import Suspension
from kernel.execution.ledger import Ledger, StepAnswer, StepKind, StepOp, StepOwner, StepRow, Wait
from kernel.execution.outcome import StageCompleted, StageOutcome, StageSuspended, failure_of
from kernel.execution.script import ScriptedEnd, StepScript
from kernel.execution.step_calls import decode
from kernel.execution.step_options import ExternalKeys, check_step_id
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
# How soon a wait may need its body again: each replay costs three writes, whatever a body asks for.
LEAST_WAIT_S = 0.1
# How long steps whose bodies were told to stop may take to end before their leases are left to lapse.
STOP_S = 0.5
UNSAFE = error_name_of(StepNotReplaySafeError)


@dataclass(slots=True)
class StepUse:
    """One step of this execution: its place and, in a replay, its row."""

    step_id: str
    seq: int
    kind: StepKind
    row: StepRow | None


class StepExecution:
    """What the steps of one execution share: their order of use, the ledger, the queue of writes and the end.

    A host makes one for a body, says who runs it (`attend`) and concludes or stops it; what each kind of step does with
    it is in `step_effects.py` and `step_waits.py`.
    """

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
        self.least_wait_s = LEAST_WAIT_S
        self.threads: Executor | None = None
        self.on_thread: Callable[[Any], None] = lambda _future: None
        self.remaining: tuple[StepOp, ...] = ()
        self.owner = owner
        self.abort = abort
        self.linger_s = linger_s
        self.flights = Flights(abort)
        self.queue = StepQueue(ledger, linger_s or 0.0, self.heard)
        self.is_abandoned = False
        self._ledger = ledger
        self._keys: ExternalKeys | None = None
        self._rows: dict[str, StepRow] | None = {} if owner.is_first else None
        self._rows_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._used: dict[str, StepKind] = {}
        self._waits: list[Wait] = []
        self._fatal: StepError | None = None
        self._replayed = 0
        self._has_warned = False

    # -- what hosts call ----------------------------------------------------------------------------------------------

    def attend(self, threads: Executor | None, on_thread: Callable[[Any], None]) -> None:
        """Take the calling task for the body's, and `threads` for the functions of its steps that are plain."""
        self.threads, self.on_thread, self.flights.body = threads, on_thread, asyncio.current_task()

    async def conclude(self, outcome: StageOutcome | None) -> StageOutcome:
        """Return what the execution comes to, its body having ended with `outcome`, or None for a suspension.

        Waits for the steps in flight, so that their outcomes are recorded first; what the settle is to write together
        with its own is left in `remaining`.
        """
        if self._replayed:
            trace.get_current_span().add_event("steps.replayed", {"tenantry.steps": self._replayed})
        is_swallowed = self.flights.has_suspended and isinstance(outcome, StageCompleted)
        await self.flights.land(is_suspending=outcome is None or is_swallowed)
        self.remaining = await self.queue.settle()
        try:
            self.queue.raise_failure()
        except StepError as failure:
            return failure_of(failure)
        if self._fatal is not None:
            return failure_of(self._fatal)
        if self.is_abandoned:
            return StageSuspended(())
        if is_swallowed:
            logger.warning("suspension_swallowed", extra={"stage_id": self.owner.fence.stage_id})
        elif outcome is not None:
            return outcome
        # News is due at once.
        return StageSuspended((*self._waits, *self.flights.news()))

    async def stop(self) -> None:
        """Stop the steps in flight, the body having been cancelled, and give back the leases of those that ended."""
        under_way: list[asyncio.Task[Any]] = self.flights.cancel()
        if self._reading is not None:
            self._reading.cancel()
            under_way.append(self._reading)
        if under_way:
            await asyncio.wait(under_way, timeout=STOP_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                self.remaining = await self.queue.settle()

    # -- what steps call ----------------------------------------------------------------------------------------------

    async def use(self, step_id: object, kind: StepKind) -> StepUse:
        """Return a step's place in this execution, and its row where it has one.

        Raises:
            ValueError: what is no id.
            StepError: asked for twice, as another kind than is stored, or elsewhere than in the body's event loop.
            StageAbortedError: the body was told to stop.
        """
        name = check_step_id(step_id)
        if self._is_elsewhere():
            message = (
                "asked for in another event loop than its body's; a thread reaches that by run_coroutine_threadsafe"
            )
            raise StepError(name, message)
        self._raise_if_over()
        self.queue.raise_failure()
        self.abort.raise_if_aborted()
        first = self._used.get(name)
        if first is not None:
            self._fatal = DuplicateStepKeyError(name, f"asked for twice in one execution, as {first} and as {kind}")
            raise self._fatal
        self._used[name] = kind
        self.flights.moves += 1
        seq = len(self._used)
        row = (await self._ledger_rows()).get(name)
        self._replayed += row is not None and row.status == "completed"
        self._raise_if_over()
        if row is not None:
            self._check_kind(name, kind, row)
            self._check_order(row, seq)
        return StepUse(name, seq, kind, row)

    def fly(self, use: StepUse, lasts_s: float, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Return what does a step's work in a task of its own and returns what that returns; see `Flights.fly`."""
        return self.flights.fly(Wait(use.step_id, use.kind), lasts_s, work)

    def scripted(self, use: StepUse) -> ScriptedEnd | None:
        """Return how a test wants the step to end."""
        return None if self.script is None else self.script.end_of(use.step_id, use.kind)

    def is_ended(self, row: StepRow) -> bool:
        """Whether the row is an answer; a `run` that failed in an earlier attempt of the stage is open again."""
        if row.status == "completed":
            return True
        if row.status != "failed":
            return False
        return row.kind != "run" or row.stage_attempt >= self.owner.stage_attempt or _is_unsafe(row)

    def end_of(self, row: StepRow, model: Any) -> Any:
        """Return, or raise, what a step has ended with."""
        if row.is_lost:
            # Its effect has happened: no body may take this for a step that failed, and go on.
            self._fatal = StepResultLostError(row.step_id, "its result is not in the blob store")
            raise self._fatal
        if row.status == "completed":
            return decode(row.step_id, row.result, model)
        raise stored_error(row.step_id, str(row.error), row.error_type)

    def now(self, row: StepRow) -> datetime:
        """Return the database's clock: as the row was read, and what has passed here since, for one read earlier."""
        passed_s = monotonic() - self._rows_at if self._rows and self._rows.get(row.step_id) is row else 0.0
        assert row.now is not None, "a claim that was just made is not asked for the time"
        return row.now + timedelta(seconds=passed_s)

    def op(self, op: Any, use: StepUse, **values: Any) -> StepOp:
        """Return a move of a step under the fence of its stage's job."""
        return StepOp(op, self.owner.fence, use.step_id, {"kind": use.kind, "seq": use.seq, **values})

    def external_key(self, step_id: str) -> str:
        """Return the key under which a step's effect is known outside."""
        if self._keys is None:
            self._keys = ExternalKeys(self.owner)
        return self._keys.of(step_id)

    async def write(self, op: StepOp) -> StepAnswer:
        """Write an op that needs the stage's lease, together with everything queued before it."""
        answer = await self.queue.write(op)
        self.check(answer)
        return answer

    def check(self, answer: StepAnswer) -> None:
        """Leave when an answer says that this execution does not count any more."""
        if answer.verdict in ("lost", "gone"):
            # Whoever has the stage now goes on with it.
            self.abort.abort("lease-lost" if answer.verdict == "gone" or _is_running(answer) else "cancelled")
            self.abort.raise_if_aborted()
        if self.is_abandoned:
            raise Suspension

    def row_of(self, answer: StepAnswer, use: StepUse) -> StepRow:
        """Return the row of an answer, which is of the kind asked for."""
        assert answer.row is not None
        self._check_kind(use.step_id, use.kind, answer.row)
        return answer.row

    def suspended(self, use: StepUse) -> Suspension:
        """Return what leaves the body, which waits for this step from now on."""
        self._waits.append(Wait(use.step_id, use.kind))
        return Suspension()

    def heard(self, op: StepOp, answer: StepAnswer) -> None:
        """Take the answer of an op that nobody waited for: an outcome refused ends this execution without a result."""
        if answer.verdict in ("done", "kept", "gone") or op.values.get("status") == "running":
            return
        self.is_abandoned = True
        logger.warning("step_outcome_refused", extra={"step_id": op.step_id, "verdict": answer.verdict})

    def forget_first(self) -> None:
        """Have the ledger read after all: it was thought to be empty, and is not."""
        if self.owner.is_first:
            self._rows = None

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _is_elsewhere(self) -> bool:
        body = self.flights.body
        return body is not None and body.get_loop() is not asyncio.get_running_loop()

    def _raise_if_over(self) -> None:
        if self._fatal is not None:
            # The stage fails with it, whatever its body makes of it: nothing more begins.
            raise self._fatal
        if self.is_abandoned or not self.flights.may_begin:
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
            self.abort.abort("lease-lost")
            self.abort.raise_if_aborted()
        finally:
            self._reading = None

    def _check_kind(self, step_id: str, kind: StepKind, row: StepRow) -> None:
        if row.kind != kind:
            raise StepKindMismatchError(step_id, f"is stored as {row.kind!r}, asked for as {kind!r}")

    def _check_order(self, row: StepRow, seq: int) -> None:
        if row.seq is not None and row.seq != seq and not self._has_warned:
            self._has_warned = True
            logger.warning("step_order_changed", extra={"step_id": row.step_id, "was": row.seq, "now": seq})


def _is_running(answer: StepAnswer) -> bool:
    return answer.run_status is RunStatus.RUNNING


def _is_unsafe(row: StepRow) -> bool:
    return row.error_type == UNSAFE
