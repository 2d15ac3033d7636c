"""Runs a stage's `when` and body, with no transaction open, and turns whatever happens into an outcome.

Foreign code runs here, so nothing but the cancellation of the caller's own task (and a real Ctrl-C) gets out: errors,
timeouts, bad inputs and outputs are outcomes.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from uuid import UUID

from pydantic import ValidationError

from kernel.definition.schema import output_errors, parse
from kernel.definition.workflow import PlacedStage, Workflow
from kernel.errors import (
    FieldError,
    InvalidConfigError,
    InvalidInputError,
    InvalidOutputError,
    PayloadError,
    PayloadTooLargeError,
    StageTimeoutError,
)
from kernel.execution.abort import AbortSignal
from kernel.execution.context import ContextSources, StageContext
from kernel.execution.journal import StageJournal
from kernel.execution.leaving import Suspension, consists_of
from kernel.execution.outcome import StageCompleted, StageFailed, StageOutcome, error_text, failure_of
from kernel.execution.step_execution import StepExecution
from kernel.execution.steps import Steps
from kernel.payloads import dump_typed, pointer_token


@dataclass(slots=True)
class StageInvocation:
    """One execution of a stage; JSON texts in `input`, `config` (the run's whole config) and `outputs` (by stage id).

    `threads` are those of plain functions, the body's and its steps', that have not returned: a timeout or cancellation
    leaves them running, and it is the host that must not reuse their slots before they are done.
    """

    tenant_id: UUID
    run_id: UUID
    workflow: Workflow
    placed: PlacedStage
    attempt: int
    input: str
    config: str = "{}"
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    abort: AbortSignal = field(default_factory=AbortSignal)
    journal: StageJournal = field(default_factory=StageJournal)
    steps: StepExecution | None = None
    max_output_bytes: int | None = None
    threads: "set[Future[object]]" = field(default_factory=set["Future[object]"])

    @property
    def has_running_thread(self) -> bool:
        """Whether a plain function of this execution still occupies a thread."""
        return bool(self.running_threads())

    def running_threads(self) -> "list[Future[object]]":
        """Return the threads that plain functions of this execution still occupy."""
        return [thread for thread in list(self.threads) if not thread.done()]

    def note_thread(self, thread: "Future[object]") -> None:
        """Keep account of a thread until it has returned."""
        self.threads.add(thread)
        # Called in that thread: taking one element out is safe there.
        thread.add_done_callback(self.threads.discard)


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a function in a thread raised: some exceptions cannot travel through a future."""

    error: BaseException


_Context: TypeAlias = StageContext[Any]
# What `_guarded` answers for a body that left to wait.
_SUSPENDED = object()


async def run_when(invocation: StageInvocation, threads: Executor | None = None) -> bool | StageFailed:
    """Ask the stage's `when`; True when it has none. One that raises, or outlasts the timeout, is a failed attempt."""
    when = invocation.placed.stage.when
    if when is None:
        return True
    context = _context(invocation, is_body=False)
    if isinstance(context, StageFailed):
        return context
    answer = await _guarded(invocation, lambda: _call_when(invocation, context, threads))
    return answer if isinstance(answer, StageFailed) else _truth(invocation, answer)


async def run_stage(invocation: StageInvocation, threads: Executor | None = None) -> StageOutcome:
    """Run the stage's body once and return its outcome.

    A coroutine function runs in the caller's task, a function in `threads` with the caller's context variables. Raises
    nothing but CancelledError, when the calling task itself is cancelled, and KeyboardInterrupt.
    """
    context = _context(invocation, is_body=True)
    if isinstance(context, StageFailed):
        return context
    steps = invocation.steps
    if steps is None:
        return _body_outcome(invocation, await _guarded(invocation, lambda: _call_body(invocation, context, threads)))
    steps.attend(threads, invocation.note_thread)
    try:
        result = await _guarded(invocation, lambda: _call_body(invocation, context, threads))
        return await steps.conclude(None if result is _SUSPENDED else _body_outcome(invocation, result))
    except asyncio.CancelledError:
        await steps.stop()
        raise


def _body_outcome(invocation: StageInvocation, result: object) -> StageOutcome:
    return result if isinstance(result, StageFailed) else _completed(invocation, result)


async def _call_body(invocation: StageInvocation, context: _Context, threads: Executor | None) -> object:
    stage = invocation.placed.stage
    inputs = (context.given_input,) if stage.takes_input else ()
    if stage.is_async:
        async with _Deadline(stage.timeout):
            return await stage.function(context, *inputs)
    return await _in_thread(invocation, threads, lambda: stage.function(context, *inputs))


async def _call_when(invocation: StageInvocation, context: _Context, threads: Executor | None) -> object:
    when = cast("Callable[[_Context], object]", invocation.placed.stage.when)
    if inspect.iscoroutinefunction(when):
        async with _Deadline(invocation.placed.stage.timeout):
            return await when(context)
    answer = await _in_thread(invocation, threads, lambda: when(context))
    if not asyncio.iscoroutine(answer):
        return answer
    async with _Deadline(invocation.placed.stage.timeout):
        return await answer


async def _guarded(invocation: StageInvocation, call: Callable[[], Any]) -> object:
    """Await foreign code; what it raises becomes a StageFailed. Nothing is awaited after it has raised."""
    stage = invocation.placed.stage
    task = asyncio.current_task()
    cancels_before = task.cancelling() if task is not None else 0
    try:
        return await call()
    except (KeyboardInterrupt, Suspension) as error:
        if isinstance(error, Suspension):
            return _SUSPENDED
        raise
    except asyncio.CancelledError as error:
        # Cancelled from outside, or a cancellation that the body raised by itself: that one is a failed attempt.
        if task is not None and task.cancelling() > cancels_before:
            raise
        return failure_of(error, stage.no_retry_on)
    except BaseException as error:  # noqa: BLE001 - SystemExit and GeneratorExit of a body must not end the worker
        # A task group wraps what its tasks raise: if all of them only wait, so does the body.
        if consists_of(error, Suspension):
            return _SUSPENDED
        return failure_of(_without_waits(error), stage.no_retry_on)


def _without_waits(error: BaseException) -> BaseException:
    """Return what failed in a group in which others only wait."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return group.split(Suspension)[1] or group


class _Deadline:
    """`asyncio.timeout` with two differences: it costs nothing without a limit, and a late return is a timeout too."""

    __slots__ = ("_scope", "_timeout_s")

    def __init__(self, timeout_s: float | None, *, is_started: bool = True) -> None:
        self._timeout_s = timeout_s
        self._scope = None if timeout_s is None else asyncio.timeout(timeout_s if is_started else None)

    async def __aenter__(self) -> Self:
        if self._scope is not None:
            await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scope is None or self._timeout_s is None:
            return
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise StageTimeoutError(self._timeout_s) from None
        # The body caught the cancellation. Its result, or another error of its clean-up, came too late all the same.
        if self._scope.expired() and not isinstance(error, asyncio.CancelledError):
            raise StageTimeoutError(self._timeout_s) from None

    def start(self) -> None:
        """Let the time run from now; for a limit that was entered without."""
        if self._scope is not None and self._timeout_s is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time() + self._timeout_s)


async def _in_thread(invocation: StageInvocation, threads: Executor | None, call: Callable[[], object]) -> object:
    """Run a function in a thread; its time runs from the moment it has one."""
    timeout_s = invocation.placed.stage.timeout
    loop = asyncio.get_running_loop()
    deadline = _Deadline(timeout_s, is_started=False)
    is_waiting = True

    def start() -> None:
        if is_waiting:
            deadline.start()

    def run() -> object:
        if timeout_s is not None:
            loop.call_soon_threadsafe(start)
        try:
            return call()
        except BaseException as error:  # noqa: BLE001 - a future carries neither StopIteration nor SystemExit safely
            return _Raised(error)

    context = copy_context()
    try:
        async with deadline:
            result = await asyncio.wrap_future(_submit(invocation, threads, lambda: context.run(run)))
    finally:
        is_waiting = False
    return failure_of(result.error, invocation.placed.stage.no_retry_on) if isinstance(result, _Raised) else result


def _submit(invocation: StageInvocation, threads: Executor | None, call: Callable[[], object]) -> "Future[object]":
    """Start a function in a thread of the host's, or in one of its own."""
    pool = ThreadPoolExecutor(1, "tenantry-stage") if threads is None else threads
    future = pool.submit(call)
    if threads is None:
        pool.shutdown(wait=False)
    invocation.note_thread(future)
    return future


def _context(invocation: StageInvocation, *, is_body: bool) -> _Context | StageFailed:
    """Validate input and config and return the context, or the failure that no retry can mend."""
    stage = invocation.placed.stage
    given: object = None
    if stage.input_adapter is not None:
        given, errors = parse(stage.input_adapter, invocation.input, "/input")
        if errors:
            return StageFailed(error_text(InvalidInputError(errors)), code="INVALID_INPUT", retryable=False)
    config, errors = _own_config(invocation)
    if errors:
        return StageFailed(error_text(InvalidConfigError(errors)), code="INVALID_CONFIG", retryable=False)
    return StageContext(
        tenant_id=invocation.tenant_id,
        run_id=invocation.run_id,
        workflow_id=invocation.workflow.id,
        stage_id=stage.id,
        attempt=invocation.attempt,
        config=config,
        abort_signal=invocation.abort,
        given_input=given,
        sources=ContextSources(
            outputs=invocation.outputs,
            journal=invocation.journal,
            is_async=stage.is_async,
            input_text=None if stage.takes_input else invocation.input,
            steps=Steps(invocation.steps) if is_body and invocation.steps is not None else None,
        ),
    )


def _own_config(invocation: StageInvocation) -> tuple[Any, list[FieldError]]:
    stage = invocation.placed.stage
    own: object = {}
    if invocation.config != "{}":
        config: object = json.loads(invocation.config)
        if not isinstance(config, dict):
            return None, [FieldError("/config", "dict_type", "Input should be an object")]
        own = cast("dict[str, object]", config).get(stage.id, {})
    if stage.config_adapter is None:
        return own, []
    text = "{}" if own == {} else json.dumps(own, ensure_ascii=False)
    return parse(stage.config_adapter, text, "/config" + pointer_token(stage.id))


def _completed(invocation: StageInvocation, result: object) -> StageOutcome:
    """Validate and encode what the body returned; an output that cannot be stored is not retried."""
    adapter = invocation.placed.stage.output_adapter
    limit = invocation.max_output_bytes
    try:
        text = dump_typed(adapter, adapter.validate_python(result))
        # Once more from the text: a model that was built or changed without validation passes the first time, and what
        # is stored must be readable for the stages to come.
        _, errors = parse(adapter, text, "/output")
        size_bytes = len(text.encode()) if limit is not None and len(text) * 4 > limit else 0
    except ValidationError as error:
        errors = output_errors(error, result, "/output")
    except PayloadError as error:
        errors = [error.below("/output")]
    except Exception as error:  # noqa: BLE001 - a model's validators and serializers are foreign code
        errors = [FieldError("/output", "not_serializable", error_text(error))]
    else:
        if not errors and limit is not None and size_bytes > limit:
            too_large = PayloadTooLargeError(size_bytes, limit)
            return StageFailed(error_text(too_large), code="INVALID_OUTPUT", retryable=False)
        if not errors:
            return StageCompleted(text)
    return StageFailed(error_text(InvalidOutputError(errors)), code="INVALID_OUTPUT", retryable=False)


def _truth(invocation: StageInvocation, answer: object) -> bool | StageFailed:
    try:
        return bool(answer)
    except Exception as error:  # noqa: BLE001 - foreign code
        return failure_of(error, invocation.placed.stage.no_retry_on)
