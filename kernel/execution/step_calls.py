"""Calls what a user gave to a step, coroutine function or not, and turns what it returns into JSON and back.

A function may take the `Step` that it is called for.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kernel.errors import PayloadError
from kernel.execution.abort import AbortSignal
from kernel.payloads import clean_text, dump_typed
from kernel.step_errors import StepModelMismatchError, StepResultNotSerializableError

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_bytes="base64"))


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
class _Raised:
    """What a function in a thread raised: some exceptions cannot travel through a future."""

    error: BaseException


async def call(
    function: Callable[..., Any], argument: object, threads: Executor | None, on_thread: Callable[[Any], None]
) -> Any:
    """Call `function`, with `argument` if it takes a positional one, and return what it, or its awaitable, returns.

    A coroutine function runs on the loop, anything else in a thread with the caller's context variables.
    """
    manner = _manner(function)
    arguments = (argument,) if manner.takes_argument else ()
    if manner.is_coroutine:
        return await function(*arguments)
    context = copy_context()

    def run() -> object:
        try:
            return context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - a future carries neither StopIteration nor SystemExit safely
            return _Raised(error)

    if threads is None:
        result: Any = await asyncio.to_thread(run)
    else:
        future: Future[object] = threads.submit(run)
        on_thread(future)
        result = await asyncio.wrap_future(future)
    if isinstance(result, _Raised):
        raise result.error
    return await result if inspect.isawaitable(result) else result


async def is_true(function: Callable[[Any], object], value: object) -> bool:
    """Ask a function, coroutine function or not, about a value."""
    answer = function(value)
    return bool(await answer if inspect.isawaitable(answer) else answer)


def in_this_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return what does something in the running loop, wherever it is awaited: a thread may have a loop of its own."""
    loop = asyncio.get_running_loop()

    async def go() -> None:
        if asyncio.get_running_loop() is loop:
            await work()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))

    return go


@dataclass(frozen=True, slots=True)
class _Manner:
    """How a function is called: with the step or without, and whether calling it makes a coroutine."""

    takes_argument: bool
    is_coroutine: bool


# By what they follow from: looking at a signature costs more than all else that a step does before its function.
_MANNERS: Final[dict[object, _Manner]] = {}
MAX_MANNERS: Final = 4096


def _manner(function: Callable[..., Any]) -> _Manner:
    shape = _shape(function)
    known = None if shape is None else _MANNERS.get(shape)
    if known is not None:
        return known
    manner = _Manner(takes_argument(function), is_coroutine_function(function))
    if shape is not None:
        if len(_MANNERS) >= MAX_MANNERS:
            # Somebody compiles functions as he goes.
            _MANNERS.clear()
        _MANNERS[shape] = manner
    return manner


def _shape(function: Callable[..., Any]) -> object | None:
    """Return what the manner of a function, a method or a partial of them follows from; None for anything else.

    The lambdas that a line makes share their code. What somebody has said of a function lies in its dictionary, as
    `functools.wraps` does.
    """
    kind = type(function)
    if kind is FunctionType and not function.__dict__:
        return function.__code__, len(function.__defaults__ or ())
    if isinstance(function, MethodType):
        inner = _shape(function.__func__)
        return None if inner is None else (MethodType, inner)
    if isinstance(function, functools.partial) and kind is functools.partial and not function.__dict__:
        inner = _shape(function.func)
        return None if inner is None else (len(function.args), tuple(function.keywords), inner)
    return None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine: a function, a method, a partial of one or an object with such a call."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def takes_argument(function: Callable[..., Any]) -> bool:
    """Whether it has a positional parameter to give the step to.

    One with a default is not asked to be filled (`lambda item=item: …` in a loop), unless it is called `step`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL
        or (parameter.kind in _POSITIONAL and (parameter.default is parameter.empty or parameter.name == "step"))
        for parameter in parameters
    )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def encode(step_id: str, value: object, max_bytes: int | None = None) -> str:
    """Return a result as the JSON text that is stored, by Pydantic's rules.

    Raises:
        StepResultNotSerializableError: it has no JSON form, or none that can be stored.
    """
    try:
        text = dump_typed(_ANYTHING, value)
    except PayloadError as error:
        raise StepResultNotSerializableError(step_id, f"its result cannot be stored: {error}") from None
    except Exception as error:  # noqa: BLE001 - a model's serializers are foreign code
        text = clean_text(f"{type(error).__name__}: {error}", 1_000)
        raise StepResultNotSerializableError(step_id, f"its result cannot be stored: {text}") from None
    size_bytes = len(text.encode()) if max_bytes is not None and len(text) * 4 > max_bytes else 0
    if max_bytes is not None and size_bytes > max_bytes:
        raise StepResultNotSerializableError(
            step_id, f"its result has {size_bytes} bytes, at most {max_bytes} are kept"
        )
    return text


def decode(step_id: str, text: str | None, model: Any) -> Any:
    """Return a stored result as plain JSON data, or as `model` where one is given.

    Raises:
        StepResultNotSerializableError: it holds a number that Python does not read.
        StepModelMismatchError: what is stored does not fit the model.
    """
    data = "null" if text is None else text
    if model is None:
        try:
            return json.loads(data)
        except ValueError as error:
            # An integer of more digits than Python reads (sys.set_int_max_str_digits).
            raise StepResultNotSerializableError(step_id, f"its result cannot be read back: {error}") from None
    try:
        return _adapter(model).validate_json(data)
    except ValidationError as error:
        raise StepModelMismatchError(step_id, clean_text(f"does not fit its model: {error}", 4_000)) from None


def check_model(model: object) -> None:
    """Check a model that results are to be read as.

    Raises:
        ValueError: Pydantic knows no such type.
    """
    try:
        if model is not None:
            _adapter(model)
    except Exception as error:  # noqa: BLE001 - whatever Pydantic makes of it
        text = clean_text(f"{type(error).__name__}: {error}", 1_000)
        message = f"model: {model!r:.100} is no type that results can be read as: {text}"
        raise ValueError(message) from None


def _adapter(model: Any) -> TypeAdapter[Any]:
    try:
        return _kept_adapter(model)
    except TypeError:
        # Not hashable, as an Annotated with a dictionary is not.
        return TypeAdapter(model)


@functools.lru_cache(maxsize=256)
def _kept_adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)
