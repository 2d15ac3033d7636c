"""`run` steps: claimed under a lease before their functions are called, their outcomes recorded under the claim."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from kernel.counts import COUNTS
from kernel.errors import StageAbortedError
from kernel.execution.leaving import Suspension, consists_of, is_cancelled
from kernel.execution.ledger import StepAnswer, StepOp, StepRow, Wait
from kernel.execution.outcome import error_text, failure_of
from kernel.execution.step_calls import Step, call, decode, encode, in_this_loop
from kernel.execution.step_execution import StepExecution, StepUse
from kernel.execution.step_options import RunOptions
from kernel.step_errors import (
    StepError,
    StepLeaseLostError,
    StepLeaseTooShortError,
    StepResultNotSerializableError,
    error_type_of,
    stored_error,
)
from kernel.telemetry import on_step

# How often in a row a lease may have run out before its function could begin: one that is longer than a write takes may
# lapse when the process or the database stands still, and is claimed again.
MOST_LAPSES = 5


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A step that this execution has claimed, and what it is to do; `claim` names the claim in its outcome."""

    execution: StepExecution
    use: StepUse
    fn: Callable[..., Any]
    options: RunOptions
    model: Any
    row: StepRow
    claim: dict[str, Any]

    def outcome(self, **values: Any) -> StepOp:
        """Return what records an outcome of the claim; a status of `running` moves its lease."""
        return self.execution.op("outcome", self.use, **self.claim, **values)


async def run(execution: StepExecution, use: StepUse, fn: Callable[..., Any], options: RunOptions, model: Any) -> Any:
    """Claim a step and call its function, unless its row has the answer or somebody else has the step."""
    claim_id, asked_at = uuid4(), monotonic()
    asked = execution.queue.ask(
        execution.op(
            "claim",
            use,
            claim_id=claim_id,
            lease_s=options.lease_s,
            external_key=execution.external_key(use.step_id),
            on_reclaim=options.on_reclaim,
            stage_attempt=execution.owner.stage_attempt,
        )
    )
    try:
        answer = await asyncio.shield(asked)
    except asyncio.CancelledError:
        # Nobody waits for it any more, however often it is cancelled: what it turns out to have claimed is given back.
        asked.add_done_callback(partial(_give_back_unheard, execution, use, claim_id))
        raise
    if answer.verdict == "mine":
        row = execution.row_of(answer, use)
        claimed = _Claimed(execution, use, fn, options, model, row, _name_of_claim(row, claim_id))
        if _is_in_vain(execution):
            raise _given_back(claimed)
        if monotonic() - asked_at >= options.lease_s:
            raise _lapsed(claimed)
        return await _execute(claimed)
    execution.queue.raise_failure()
    execution.check(answer)
    row = execution.row_of(answer, use)
    # There was an execution before a first one after all, whose attempt was given back: the rest is read at once.
    execution.forget_first()
    if execution.is_ended(row):
        return execution.end_of(row, model)
    raise execution.suspended(use)


def _name_of_claim(row: StepRow, claim_id: UUID) -> dict[str, Any]:
    return {"attempt": row.attempt, "claim_id": claim_id}


def _is_in_vain(execution: StepExecution) -> bool:
    """Whether nothing may begin any more: the body was told to stop, or what came before is not recorded."""
    return execution.abort.aborted or execution.is_abandoned or execution.queue.has_failed


def _given_back(claimed: _Claimed) -> BaseException:
    """Give a claim back whose function has not begun, for whoever goes on to find the step as it was."""
    execution = claimed.execution
    execution.queue.put(claimed.outcome(status="pending", delay_s=0.0))
    execution.queue.raise_failure()
    execution.abort.raise_if_aborted()
    return execution.suspended(claimed.use)


def _give_back_unheard(
    execution: StepExecution, use: StepUse, claim_id: UUID, asked: "asyncio.Future[StepAnswer]"
) -> None:
    if asked.cancelled() or asked.exception() is not None:
        return
    answer = asked.result()
    if answer.verdict == "mine" and answer.row is not None:
        claim = _name_of_claim(answer.row, claim_id)
        execution.queue.put(execution.op("outcome", use, **claim, status="pending", delay_s=0.0))


def _lapsed(claimed: _Claimed) -> BaseException:
    """Give a claim back that was told of when its lease had run out; fail the step when that is all that happens to it.

    Somebody else may have the step by then, so its function does not begin. That is no failure of the function's, and
    the row counts how often in a row it happened.
    """
    execution, use = claimed.execution, claimed.use
    was_so_before = use.row is not None and use.row.status == "pending"
    lapses = 1 + (use.row.lapses if use.row is not None and was_so_before else 0)
    if lapses < MOST_LAPSES:
        execution.queue.put(claimed.outcome(status="pending", delay_s=0.0, lapses=lapses))
        return execution.suspended(use)
    message = (
        f"its lease of {claimed.options.lease_s:g} s had run out before its function could begin, {lapses} times in a"
        " row; give it a longer lease"
    )
    error = StepLeaseTooShortError(use.step_id, message)
    execution.queue.put(claimed.outcome(status="failed", error=error_text(error), error_type=error_type_of(error)))
    return error


async def _execute(claimed: _Claimed) -> Any:
    began = monotonic()
    execution, use, options, row = claimed.execution, claimed.use, claimed.options, claimed.row
    flights = execution.flights
    flights.hold(options.lease_s)
    own = asyncio.current_task()
    threads: list[Any] = []

    def on_thread(future: Any) -> None:
        threads.append(future)
        execution.on_thread(future)

    async def beat() -> None:
        answer = await execution.queue.write(claimed.outcome(status="running", lease_s=options.lease_s))
        if answer.verdict != "done":
            raise StepLeaseLostError(use.step_id, "another execution has taken it over")
        flights.hold(options.lease_s, own)

    step = Step(use.step_id, str(row.external_key), row.attempt, row.is_reclaim, execution.abort, in_this_loop(beat))
    beating = _beating(beat, options.heartbeat_s)
    try:
        scripted = execution.scripted(use)
        function = claimed.fn if scripted is None else scripted.play
        COUNTS.step_attempts += 1
        with on_step(use.step_id, "step.run", row.attempt):
            result = await call(function, step, execution.threads, on_thread)
        text = encode(use.step_id, result, execution.max_result_bytes)
        value = None if claimed.model is not None else decode(use.step_id, text, None)
        flights.end_function()
    except BaseException as error:
        if is_cancelled(error):
            if all(future.done() for future in threads):
                # It has verifiably ended: whoever goes on need not wait for its lease.
                execution.queue.put(claimed.outcome(status="running", lease_s=0.0))
            raise
        flights.end_function()
        await _failed(claimed, error)
        if isinstance(error, Exception):
            raise
        # What ends a process, a task or a generator ends this step only, and is what a replay raises.
        raise stored_error(use.step_id, error_text(error), error_type_of(error)) from error
    finally:
        if beating is not None:
            beating.cancel()
    may_linger = monotonic() - began < options.lease_s * 2 / 3
    await _record(execution, claimed.outcome(status="completed", result=text), may_linger=may_linger)
    return value if claimed.model is None else decode(use.step_id, text, claimed.model)


async def _failed(claimed: _Claimed, error: BaseException) -> None:
    """Record what the function raised; returns when that is how the step ends, and leaves the body otherwise."""
    execution, use, options = claimed.execution, claimed.use, claimed.options
    if consists_of(error, Suspension):
        # A step inside of this one waits: this one is run again when that one is due, and is no news before.
        execution.flights.hear(Wait(use.step_id, use.kind), always=True)
        execution.queue.put(claimed.outcome(status="pending", delay_s=0.0))
        raise Suspension from None
    if consists_of(error, StageAbortedError) and execution.abort.reason in ("shutdown", "lease-lost"):
        # It was told to leave, which is no failure, and has: whoever goes on need not wait for its lease.
        execution.queue.put(claimed.outcome(status="running", lease_s=0.0))
        return
    failures = claimed.row.failures + 1
    failed = {"error": error_text(error), "error_type": error_type_of(error), "failures": failures}
    is_final = isinstance(error, StepResultNotSerializableError) or not failure_of(error).retryable
    if failures > options.retries or is_final or execution.abort.reason == "cancelled":
        await _record(execution, claimed.outcome(**failed, status="failed"))
        return
    delay_s = options.delay_s(failures)
    await _record(execution, claimed.outcome(**failed, status="pending", delay_s=delay_s))
    raise execution.suspended(use) from None


async def _record(execution: StepExecution, op: StepOp, *, may_linger: bool = True) -> None:
    """Queue an outcome; write it now where nothing may linger or the lease could run out meanwhile."""
    if may_linger and execution.linger_s is not None:
        execution.queue.put(op)
        return
    execution.heard(op, await execution.queue.write(op))
    if execution.is_abandoned:
        raise Suspension


def _beating(beat: Callable[[], Any], every_s: float | None) -> "asyncio.Task[None] | None":
    if every_s is None:
        return None

    async def go_on() -> None:
        with suppress(StepError):
            while True:
                await asyncio.sleep(every_s)
                await beat()

    return asyncio.get_running_loop().create_task(go_on())
