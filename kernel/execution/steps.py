"""`ctx.step`: durable steps of one execution of a stage. Completed ones are answered from the ledger.

A stage resumes by running its body again from the top. Whatever must wait leaves the body with `Suspension`; what the
execution comes to in the end is `conclude`'s to say.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from kernel.counts import COUNTS
from kernel.errors import StageAbortedError
from kernel.execution.abort import AbortSignal
from kernel.execution.durations import Duration, parse_duration
from kernel.execution.leaving import Suspension, consists_of, is_cancelled
from kernel.execution.ledger import StepOp, StepRow, Wait
from kernel.execution.outcome import error_text, failure_of
from kernel.execution.script import ScriptedEnd
from kernel.execution.step_calls import call, check_model, decode, encode, in_this_loop, is_true
from kernel.execution.step_execution import LANDING_S, StepExecution, StepUse
from kernel.execution.step_options import OnReclaim, RunOptions, check_callable, external_key, run_options
from kernel.step_errors import (
    StepError,
    StepLeaseLostError,
    StepResultNotSerializableError,
    StepTimeoutError,
    error_type_of,
    stored_error,
)
from kernel.telemetry import on_step

logger = logging.getLogger(__name__)
QUIET_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Step:
    """What a step's function is given; `external_key` is the same in every execution of this step."""

    step_id: str
    external_key: str
    attempt: int
    is_reclaim: bool
    abort_signal: AbortSignal
    _beat: Callable[[], Any]

    async def heartbeat(self) -> None:
        """Extend the step's lease by its full length from now.

        Raises:
            StepLeaseLostError: another execution has taken the step over.
        """
        await self._beat()


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A `run` step that this execution has claimed, and what it is to do."""

    use: StepUse
    fn: Callable[..., Any]
    options: RunOptions
    row: StepRow
    claim_id: UUID
    model: Any


@dataclass(frozen=True, slots=True)
class _Poll:
    """How a `wait_for` step polls; durations in seconds."""

    poll: Callable[..., Any]
    ready: Callable[[Any], object]
    every_s: float
    backoff_s: float


class Steps(StepExecution):
    """The durable steps of one execution. Ids are the caller's, each used once in an execution."""

    # -- what bodies call ---------------------------------------------------------------------------------------------

    async def run(  # noqa: PLR0913 - the public signature
        self,
        id: str,  # noqa: A002 - the public name
        fn: Callable[..., Any],
        *,
        lease: Duration = "5m",
        retries: int = 0,
        retry_delay: Duration = 0,
        retry_backoff: Mapping[str, object] | None = None,
        heartbeat: Duration | None = None,
        on_reclaim: OnReclaim = "rerun",
        model: Any = None,
    ) -> Any:
        """Call `fn` once and return its result as JSON gives it back; a replay returns the recorded result.

        `fn` takes the step if it has a positional parameter. Retries wait retry_delay * factor^(n-1), the stage
        suspended. `on_reclaim` says what becomes of a step whose worker vanished: `rerun`, or `fail`.

        Raises:
            ValueError: a bad option; nothing was recorded.
            StepError: see its subclasses; whatever `fn` raises when its retries are spent, in replays too.
        """
        options = run_options(
            lease=lease,
            retries=retries,
            retry_delay=retry_delay,
            retry_backoff=retry_backoff,
            heartbeat=heartbeat,
            on_reclaim=on_reclaim,
        )
        check_callable("fn", fn)
        check_model(model)
        use = await self._use(id, "run")
        if use.row is not None and self._is_ended(use.row):
            return self._ended(use.row, model)
        return await self._fly(use, options.lease_s, self._claim(use, fn, options, model))

    async def sleep(self, id: str, duration: Duration) -> None:  # noqa: A002 - the public name
        """Wait for a duration from the first use on; the stage is suspended, its worker free."""
        delay_s = parse_duration(duration)
        use = await self._use(id, "sleep")
        if use.row is not None and self._is_ended(use.row):
            self._ended(use.row, None)
            return
        await self._fly(use, LANDING_S, self._sleep(use, delay_s))

    async def wait_for(  # noqa: PLR0913 - the public signature
        self,
        id: str,  # noqa: A002 - the public name
        *,
        poll: Callable[..., Any],
        ready: Callable[[Any], object],
        every: Duration,
        timeout: Duration,  # noqa: ASYNC109 - durable: it outlives the process
        poll_backoff: Duration | None = None,
    ) -> Any:
        """Poll until `ready(value)` and return the value; between polls the stage is suspended.

        Raises:
            StepTimeoutError: the deadline, `timeout` after the first use, has passed.
        """
        every_s = parse_duration(every, name="every")
        backoff_s = every_s if poll_backoff is None else parse_duration(poll_backoff, name="poll_backoff")
        timeout_s = parse_duration(timeout, name="timeout")
        check_callable("poll", poll)
        check_callable("ready", ready)
        use = await self._use(id, "wait")
        if use.row is not None and self._is_ended(use.row):
            return self._ended(use.row, None)
        return await self._fly(use, LANDING_S, self._wait(use, timeout_s, _Poll(poll, ready, every_s, backoff_s)))

    async def wait_for_signal(
        self,
        id: str,  # noqa: A002 - the public name
        *,
        timeout: Duration,  # noqa: ASYNC109 - durable: it outlives the process
        keepalive: Duration = "5m",
        model: Any = None,
    ) -> Any:
        """Wait for `step.signal` and return its payload; one that came before counts.

        Raises:
            StepTimeoutError: no signal came within `timeout` of the first use.
            StepModelMismatchError: the payload does not fit `model`.
        """
        timeout_s = parse_duration(timeout, name="timeout")
        keepalive_s = parse_duration(keepalive, name="keepalive", allow_zero=False)
        check_model(model)
        use = await self._use(id, "signal")
        if use.row is not None and self._is_ended(use.row):
            return self._ended(use.row, model)
        opening = {"timeout_s": timeout_s, "wait_state": {"keepalive_s": keepalive_s}}
        return await self._fly(use, LANDING_S, self._wait_for_signal(use, opening, model))

    # -- one step -----------------------------------------------------------------------------------------------------

    async def _claim(self, use: StepUse, fn: Callable[..., Any], options: RunOptions, model: Any) -> Any:
        claim_id, asked_at = uuid4(), monotonic()
        asked = self._queue.ask(
            self._op(
                "claim",
                use,
                claim_id=claim_id,
                lease_s=options.lease_s,
                external_key=external_key(self._owner, use.step_id),
                on_reclaim=options.on_reclaim,
                stage_attempt=self._owner.stage_attempt,
            )
        )
        try:
            answer = await asyncio.shield(asked)
            self._queue.raise_failure()
            is_vain = self._abort.aborted or self._state.is_abandoned or monotonic() - asked_at >= options.lease_s
        except asyncio.CancelledError:
            answer, is_vain = await asked, True
        if answer.verdict == "mine" and is_vain:
            # Told to stop, or told of the claim when its lease had run out. Nothing has begun: whoever goes on finds
            # the step as it was.
            assert answer.row is not None
            claim = {"attempt": answer.row.attempt, "claim_id": claim_id}
            self._queue.put(self._op("outcome", use, **claim, status="pending", delay_s=0.0))
            self._abort.raise_if_aborted()
            raise self._suspended(use)
        self._check(answer)
        row = self._row_of(answer, use)
        if answer.verdict == "mine":
            return await self._execute(_Claimed(use, fn, options, row, claim_id, model))
        if self._owner.is_first:
            # There was an execution after all, whose attempt was given back: the rest is read at once.
            self._rows = None
        if self._is_ended(row):
            return self._ended(row, model)
        raise self._suspended(use)

    async def _execute(self, claimed: _Claimed) -> Any:
        began = monotonic()
        self._hold(claimed.options.lease_s)
        use, options, row = claimed.use, claimed.options, claimed.row
        claim = {"attempt": row.attempt, "claim_id": claimed.claim_id}
        own = asyncio.current_task()
        threads: list[Any] = []

        def on_thread(future: Any) -> None:
            threads.append(future)
            self.on_thread(future)

        async def beat() -> None:
            answer = await self._queue.write(
                self._op("outcome", use, **claim, status="running", lease_s=options.lease_s)
            )
            if answer.verdict != "done":
                raise StepLeaseLostError(use.step_id, "another execution has taken it over")
            self._hold(options.lease_s, own)

        step = Step(use.step_id, str(row.external_key), row.attempt, row.is_reclaim, self._abort, in_this_loop(beat))
        beating = self._beating(beat, options.heartbeat_s)
        try:
            scripted = self._scripted(use)
            function = claimed.fn if scripted is None else scripted.play
            COUNTS.step_attempts += 1
            with on_step(use.step_id, "step.run", row.attempt):
                result = await call(function, step, self.threads, on_thread)
            text = encode(use.step_id, result, self.max_result_bytes)
            value = None if claimed.model is not None else decode(use.step_id, text, None)
            self._end_function()
        except BaseException as error:
            if is_cancelled(error):
                if all(future.done() for future in threads):
                    # It has verifiably ended: whoever goes on need not wait for its lease.
                    self._queue.put(self._op("outcome", use, **claim, status="running", lease_s=0.0))
                raise
            self._end_function()
            await self._failed(use, options, row, claim, error)
            if isinstance(error, Exception):
                raise
            # What ends a process, a task or a generator ends this step only, and is what a replay raises.
            raise stored_error(use.step_id, error_text(error), error_type_of(error)) from error
        finally:
            if beating is not None:
                beating.cancel()
        await self._record(self._op("outcome", use, **claim, status="completed", result=text), began, options.lease_s)
        return value if claimed.model is None else decode(use.step_id, text, claimed.model)

    async def _failed(
        self, use: StepUse, options: RunOptions, row: StepRow, claim: dict[str, Any], error: BaseException
    ) -> None:
        if consists_of(error, Suspension):
            # A step inside of this one waits: this one is run again when that one is due, and is no news before.
            self._hear(Wait(use.step_id, use.kind), always=True)
            self._queue.put(self._op("outcome", use, **claim, status="pending", delay_s=0.0))
            raise Suspension from None
        if consists_of(error, StageAbortedError) and self._abort.reason in ("shutdown", "lease-lost"):
            # It was told to leave, which is no failure, and has: whoever goes on need not wait for its lease.
            self._queue.put(self._op("outcome", use, **claim, status="running", lease_s=0.0))
            return
        failures = row.failures + 1
        failed = {**claim, "error": error_text(error), "error_type": error_type_of(error), "failures": failures}
        is_final = isinstance(error, StepResultNotSerializableError) or not failure_of(error).retryable
        if failures > options.retries or is_final or self._abort.reason == "cancelled":
            await self._record(self._op("outcome", use, **failed, status="failed"), 0.0, 0.0)
            return
        delay_s = options.delay_s(failures)
        await self._record(self._op("outcome", use, **failed, status="pending", delay_s=delay_s), 0.0, 0.0)
        raise self._suspended(use) from None

    async def _record(self, op: StepOp, began: float, lease_s: float) -> None:
        """Queue an outcome; write it now where nothing may linger or the lease could run out meanwhile."""
        if self._linger_s is not None and (not lease_s or monotonic() - began < lease_s * 2 / 3):
            self._queue.put(op)
            return
        self._heard(op, await self._queue.write(op))
        if self._state.is_abandoned:
            raise Suspension

    def _beating(self, beat: Callable[[], Any], every_s: float | None) -> "asyncio.Task[None] | None":
        if every_s is None:
            return None

        async def go_on() -> None:
            with suppress(StepError):
                while True:
                    await asyncio.sleep(every_s)
                    await beat()

        return asyncio.get_running_loop().create_task(go_on())

    async def _sleep(self, use: StepUse, delay_s: float) -> None:
        row = use.row or await self._open(use, delay_s=delay_s)
        if self._is_ended(row):
            self._ended(row, None)
            return
        assert row.due_at is not None
        if (scripted := self._scripted(use)) is not None:
            await self._end_as(use, scripted, None)
            return
        if row.due_at > self._now(row):
            raise self._suspended(use)
        self._queue.put(self._op("resolve", use, status="completed", result="null"))

    async def _wait(self, use: StepUse, timeout_s: float, how: _Poll) -> Any:
        row = use.row or await self._open(use, timeout_s=timeout_s)
        row = await self._unless_timed_out(use, row)
        if self._is_ended(row):
            return self._ended(row, None)
        self._abort.raise_if_aborted()
        if row.due_at is not None and row.due_at > self._now(row):
            raise self._suspended(use)
        if (scripted := self._scripted(use)) is not None:
            return await self._end_as(use, scripted, None)
        return await self._poll_once(use, row, how)

    async def _wait_for_signal(self, use: StepUse, opening: Mapping[str, Any], model: Any) -> Any:
        row = use.row or await self._open(use, **opening)
        row = await self._unless_timed_out(use, row)
        if self._is_ended(row):
            return self._ended(row, model)
        self._abort.raise_if_aborted()
        if (scripted := self._scripted(use)) is not None:
            return await self._end_as(use, scripted, model)
        raise self._suspended(use)

    async def _poll_once(self, use: StepUse, row: StepRow, how: _Poll) -> Any:
        step = Step(use.step_id, external_key(self._owner, use.step_id), 1, False, self._abort, _no_lease)
        try:
            with on_step(use.step_id, "step.wait_for", 1):
                value = await call(how.poll, step, self.threads, self.on_thread)
            is_ready = await is_true(how.ready, value)
        except BaseException as error:
            if is_cancelled(error) or consists_of(error, Suspension) or consists_of(error, StageAbortedError):
                raise
            failures = row.failures + 1
            level = logging.DEBUG if failures <= QUIET_FAILURES else logging.WARNING
            logger.log(level, "poll_failed", extra={"step_id": use.step_id, "error": type(error).__name__})
            self._queue.put(self._op("poll", use, delay_s=how.backoff_s, failures=failures, error=error_text(error)))
            raise self._suspended(use) from None
        if not is_ready:
            self._queue.put(self._op("poll", use, delay_s=how.every_s, failures=0))
            raise self._suspended(use)
        text = encode(use.step_id, value, self.max_result_bytes)
        self._queue.put(self._op("resolve", use, status="completed", result=text))
        return decode(use.step_id, text, None)

    async def _end_as(self, use: StepUse, scripted: ScriptedEnd, model: Any) -> Any:
        """End a wait as the script says; whoever ended it meanwhile comes first."""
        error = scripted.error
        if error is None:
            values = {"status": "completed", "result": encode(use.step_id, scripted.value)}
        else:
            values = {"status": "failed", "error": error_text(error), "error_type": error_type_of(error)}
        row = self._row_of(await self._write(self._op("resolve", use, **values)), use)
        if error is not None and row.status == "failed":
            raise error
        return self._ended(row, model)

    async def _open(self, use: StepUse, **values: Any) -> StepRow:
        answer = await self._write(self._op("open", use, stage_attempt=self._owner.stage_attempt, **values))
        return self._row_of(answer, use)

    async def _unless_timed_out(self, use: StepUse, row: StepRow) -> StepRow:
        """Fail a wait whose deadline has passed; whoever completed it meanwhile comes first."""
        if self._is_ended(row) or row.deadline_at is None or row.deadline_at > self._now(row):
            return row
        error = StepTimeoutError(use.step_id, f"its deadline, {row.deadline_at:%Y-%m-%dT%H:%M:%SZ}, has passed")
        answer = await self._write(
            self._op("resolve", use, status="failed", error=error_text(error), error_type=error_type_of(error))
        )
        return self._row_of(answer, use)


async def _no_lease() -> None:
    """Do nothing: a poll has no lease to extend."""
