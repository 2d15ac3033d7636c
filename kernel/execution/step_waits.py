"""Steps that wait: sleeps, polls and signals, opened once with their times and left by `Suspension` until they end."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel.errors import StageAbortedError
from kernel.execution.leaving import Suspension, consists_of, is_cancelled
from kernel.execution.ledger import StepRow
from kernel.execution.outcome import error_text
from kernel.execution.script import ScriptedEnd
from kernel.execution.step_calls import Step, call, decode, encode, is_true
from kernel.execution.step_execution import StepExecution, StepUse
from kernel.step_errors import StepTimeoutError, error_type_of
from kernel.telemetry import on_step

logger = logging.getLogger(__name__)
QUIET_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Poll:
    """How a `wait_for` step polls; durations in seconds."""

    poll: Callable[..., Any]
    ready: Callable[[Any], object]
    every_s: float
    backoff_s: float


async def until_due(execution: StepExecution, use: StepUse, delay_s: float) -> None:
    """Return once the step, opened for so long, is due."""
    row = use.row or await _open(execution, use, delay_s=delay_s)
    if execution.is_ended(row):
        execution.end_of(row, None)
        return
    assert row.due_at is not None
    if (scripted := execution.scripted(use)) is not None:
        await _end_as(execution, use, scripted, None)
        return
    if row.due_at > execution.now(row):
        raise execution.suspended(use)
    execution.queue.put(execution.op("resolve", use, status="completed", result="null"))


async def until_ready(execution: StepExecution, use: StepUse, timeout_s: float, how: Poll) -> Any:
    """Poll if it is time to, and return the value that is ready."""
    row = use.row or await _open(execution, use, timeout_s=timeout_s)
    row = await _unless_timed_out(execution, use, row)
    if execution.is_ended(row):
        return execution.end_of(row, None)
    execution.abort.raise_if_aborted()
    if row.due_at is not None and row.due_at > execution.now(row):
        raise execution.suspended(use)
    if (scripted := execution.scripted(use)) is not None:
        return await _end_as(execution, use, scripted, None)
    return await _poll_once(execution, use, row, how)


async def until_signalled(execution: StepExecution, use: StepUse, opening: Mapping[str, Any], model: Any) -> Any:
    """Return the payload of a signal that has come."""
    row = use.row or await _open(execution, use, **opening)
    row = await _unless_timed_out(execution, use, row)
    if execution.is_ended(row):
        return execution.end_of(row, model)
    execution.abort.raise_if_aborted()
    if (scripted := execution.scripted(use)) is not None:
        return await _end_as(execution, use, scripted, model)
    raise execution.suspended(use)


async def _poll_once(execution: StepExecution, use: StepUse, row: StepRow, how: Poll) -> Any:
    step = Step(use.step_id, execution.external_key(use.step_id), 1, False, execution.abort, _no_lease)
    try:
        with on_step(use.step_id, "step.wait_for", 1):
            value = await call(how.poll, step, execution.threads, execution.on_thread)
        is_ready = await is_true(how.ready, value)
    except BaseException as error:
        if is_cancelled(error) or consists_of(error, Suspension) or consists_of(error, StageAbortedError):
            raise
        failures = row.failures + 1
        level = logging.DEBUG if failures <= QUIET_FAILURES else logging.WARNING
        logger.log(level, "poll_failed", extra={"step_id": use.step_id, "error": type(error).__name__})
        failed = {"failures": failures, "error": error_text(error)}
        execution.queue.put(execution.op("poll", use, delay_s=max(how.backoff_s, execution.least_wait_s), **failed))
        raise execution.suspended(use) from None
    if not is_ready:
        delay_s = max(how.every_s, execution.least_wait_s)
        execution.queue.put(execution.op("poll", use, delay_s=delay_s, failures=0))
        raise execution.suspended(use)
    text = encode(use.step_id, value, execution.max_result_bytes)
    execution.queue.put(execution.op("resolve", use, status="completed", result=text))
    return decode(use.step_id, text, None)


async def _end_as(execution: StepExecution, use: StepUse, scripted: ScriptedEnd, model: Any) -> Any:
    """End a wait as the script says; whoever ended it meanwhile comes first."""
    error = scripted.error
    if error is None:
        values = {"status": "completed", "result": encode(use.step_id, scripted.value)}
    else:
        values = {"status": "failed", "error": error_text(error), "error_type": error_type_of(error)}
    row = execution.row_of(await execution.write(execution.op("resolve", use, **values)), use)
    if error is not None and row.status == "failed":
        raise error
    return execution.end_of(row, model)


async def _open(execution: StepExecution, use: StepUse, **values: Any) -> StepRow:
    op = execution.op("open", use, stage_attempt=execution.owner.stage_attempt, **values)
    return execution.row_of(await execution.write(op), use)


async def _unless_timed_out(execution: StepExecution, use: StepUse, row: StepRow) -> StepRow:
    """Fail a wait whose deadline has passed; whoever completed it meanwhile comes first."""
    if execution.is_ended(row) or row.deadline_at is None or row.deadline_at > execution.now(row):
        return row
    error = StepTimeoutError(use.step_id, f"its deadline, {row.deadline_at:%Y-%m-%dT%H:%M:%SZ}, has passed")
    failed = {"error": error_text(error), "error_type": error_type_of(error)}
    return execution.row_of(await execution.write(execution.op("resolve", use, status="failed", **failed)), use)


async def _no_lease() -> None:
    """Do nothing: a poll has no lease to extend."""
