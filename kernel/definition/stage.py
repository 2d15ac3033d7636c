"""A stage: a function with its options and the models that its annotations name."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import FrameType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from kernel.definition.annotations import StageAnnotations, defining_frame, read_annotations
from kernel.definition.schema import Adapter, JsonSchema, input_schema, make_adapter, output_schema, parse
from kernel.errors import InvalidOptionError, InvalidOutputError
from kernel.execution.context import StageContext
from kernel.execution.durations import Duration, parse_duration
from kernel.payloads import clean_text

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741 - the output of a stage

When: TypeAlias = Callable[[StageContext[Any]], bool | Awaitable[bool]]

MAX_ID_LENGTH = 255
MAX_ATTEMPTS = 1_000


def check_id(value: object, what: str) -> str:
    """Return an id of 1 to 255 printable characters.

    Raises:
        InvalidOptionError: it is none.
    """
    if (
        isinstance(value, str)
        and 1 <= len(value) <= MAX_ID_LENGTH
        and value.isprintable()
        and clean_text(value) == value
    ):
        return value
    message = f"{what}: an id is a string of 1 to {MAX_ID_LENGTH} printable characters, not {value!r}"
    raise InvalidOptionError(message)


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How a stage is executed; `timeout` in seconds, `requires` as stage ids."""

    id: str
    name: str
    max_attempts: int
    timeout: float | None
    when: When | None
    no_retry_on: tuple[type[BaseException], ...]
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageModels:
    """What a stage takes and returns; the adapter of an input or config that it has not is None."""

    input_adapter: Adapter | None
    output_adapter: Adapter
    config_adapter: Adapter | None
    input_schema: JsonSchema | None
    output_schema: JsonSchema
    config_schema: JsonSchema | None


class Stage(Generic[C, P, R, O]):
    """A decorated function: C is its config, P what it takes after the context, R what a call returns, O its output.

    Models are read when they are first asked for, at the latest when a workflow is built.
    """

    def __init__(
        self,
        function: Callable[Concatenate[StageContext[C], P], R],
        options: StageOptions,
        frame: FrameType | None,
    ) -> None:
        self.function = function
        self.options = options
        self.id = options.id
        self.is_async = inspect.iscoroutinefunction(function)
        self._frame = frame

    def __call__(self, ctx: StageContext[C], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as a test does."""
        return self.function(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        """Return the stage's id in brackets."""
        return f"<Stage {self.id!r}>"

    @property
    def name(self) -> str:
        """The name for people; the id unless given."""
        return self.options.name

    @property
    def max_attempts(self) -> int:
        """How often the stage is attempted in all."""
        return self.options.max_attempts

    @property
    def timeout(self) -> float | None:
        """How many seconds an attempt may take."""
        return self.options.timeout

    @property
    def when(self) -> When | None:
        """What decides, before an attempt, whether the stage runs at all."""
        return self.options.when

    @property
    def no_retry_on(self) -> tuple[type[BaseException], ...]:
        """The exceptions after which no attempt is left."""
        return self.options.no_retry_on

    @property
    def requires(self) -> tuple[str, ...]:
        """The ids of the stages that must be in an earlier group."""
        return self.options.requires

    @cached_property
    def annotations(self) -> StageAnnotations:
        """The types that the function's annotations name.

        Raises:
            AnnotationError: one is missing or cannot be resolved.
        """
        return read_annotations(self.function, self.id, {} if self._frame is None else self._frame.f_locals)

    @cached_property
    def models(self) -> StageModels:
        """The adapters and schemas of the stage.

        Raises:
            AnnotationError: an annotation is missing, cannot be resolved or has no JSON Schema.
        """
        found = self.annotations
        names = {} if self._frame is None else self._frame.f_locals
        label = f"stage {self.id!r}"
        taken = make_adapter(found.input, f"{label}, input", names) if found.takes_input else None
        returned = make_adapter(found.output, f"{label}, output", names)
        config = make_adapter(found.config, f"{label}, config", names) if found.has_config else None
        models = StageModels(
            input_adapter=taken,
            output_adapter=returned,
            config_adapter=config,
            input_schema=input_schema(taken, f"{label}, input") if taken else None,
            output_schema=output_schema(returned, f"{label}, output"),
            config_schema=input_schema(config, f"{label}, config") if config else None,
        )
        self._frame = None  # a frame keeps all its locals alive
        return models

    @property
    def takes_input(self) -> bool:
        """Whether the function has an input parameter."""
        return self.annotations.takes_input

    @property
    def input_adapter(self) -> Adapter | None:
        """The adapter of the input, None when the stage takes none."""
        return self.models.input_adapter

    @property
    def output_adapter(self) -> Adapter:
        """The adapter of the output."""
        return self.models.output_adapter

    @property
    def config_adapter(self) -> Adapter | None:
        """The adapter of the config, None when it is a plain dict."""
        return self.models.config_adapter

    def decode_output(self, text: str) -> O:
        """Return a stored output as the stage's output model.

        Raises:
            InvalidOutputError: it does not fit; not retryable.
        """
        value, errors = parse(self.models.output_adapter, text, "/output")
        if errors:
            raise InvalidOutputError(errors)
        return cast("O", value)


AnyStage: TypeAlias = Stage[Any, ..., Any, Any]


class StageDecorator(Protocol):
    """Makes a stage of a coroutine function or of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[StageContext[C], P], Coroutine[Any, Any, O]], /
    ) -> Stage[C, P, Coroutine[Any, Any, O], O]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[StageContext[C], P], O], /) -> Stage[C, P, O, O]: ...


def stage(  # noqa: PLR0913 - the options that users type
    id: str,  # noqa: A002 - the word that users type
    *,
    name: str | None = None,
    max_attempts: int = 3,
    timeout: Duration | None = None,
    when: When | None = None,
    no_retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
    requires: AnyStage | str | Iterable[AnyStage | str] = (),
) -> StageDecorator:
    """Declare the decorated function a stage.

    `timeout` fails an attempt that takes longer (retryable). `when` is asked before each attempt to begin and may skip
    the stage. `requires` names stages of earlier groups.

    Raises:
        InvalidOptionError: a `ValueError`; an option has a value it cannot have.
    """
    options = StageOptions(
        id=check_id(id, "stage"),
        name=_checked_name(name, id),
        max_attempts=_checked_attempts(max_attempts, id),
        timeout=None if timeout is None else parse_duration(timeout, name=f"stage {id!r}, timeout", allow_zero=False),
        when=_checked_when(when, id),
        no_retry_on=_checked_exceptions(no_retry_on, id),
        requires=_required_ids(requires, id),
    )
    frame = defining_frame(1)

    def decorate(function: Callable[Concatenate[StageContext[Any], ...], Any]) -> AnyStage:
        if (
            not callable(cast("object", function))
            or inspect.isasyncgenfunction(function)
            or inspect.isgeneratorfunction(function)
        ):
            message = f"stage {id!r}: a stage is a function or coroutine function, not {function!r}"
            raise InvalidOptionError(message)
        return Stage(function, options, frame)

    return cast("StageDecorator", decorate)


def _checked_name(name: object, stage_id: str) -> str:
    if name is None:
        return stage_id
    if isinstance(name, str) and 1 <= len(name) <= MAX_ID_LENGTH and clean_text(name) == name:
        return name
    message = f"stage {stage_id!r}: a name has 1 to {MAX_ID_LENGTH} characters"
    raise InvalidOptionError(message)


def _checked_attempts(max_attempts: object, stage_id: str) -> int:
    if isinstance(max_attempts, int) and not isinstance(max_attempts, bool) and 1 <= max_attempts <= MAX_ATTEMPTS:
        return max_attempts
    message = f"stage {stage_id!r}: max_attempts is a whole number from 1 to {MAX_ATTEMPTS}"
    raise InvalidOptionError(message)


def _checked_when(when: When | None, stage_id: str) -> When | None:
    if when is None or callable(cast("object", when)):
        return when
    message = f"stage {stage_id!r}: when is a function of the context"
    raise InvalidOptionError(message)


def _checked_exceptions(given: object, stage_id: str) -> tuple[type[BaseException], ...]:
    items = _several(given)
    if items is not None and all(isinstance(item, type) and issubclass(item, BaseException) for item in items):
        return cast("tuple[type[BaseException], ...]", items)
    message = f"stage {stage_id!r}: no_retry_on names exception classes"
    raise InvalidOptionError(message)


def _required_ids(given: AnyStage | str | Iterable[AnyStage | str], stage_id: str) -> tuple[str, ...]:
    items = _several(given)
    ids = [item if isinstance(item, str) else getattr(item, "id", None) for item in items or ()]
    if items is not None and all(isinstance(item, str) for item in ids):
        return cast("tuple[str, ...]", tuple(dict.fromkeys(ids)))
    message = f"stage {stage_id!r}: requires names stages"
    raise InvalidOptionError(message)


def _several(given: object) -> tuple[object, ...] | None:
    """Return one thing, or an iterable of things, as a tuple; None when it is neither."""
    if isinstance(given, type | str | Stage):
        return (cast("object", given),)
    return tuple(cast("Iterable[object]", given)) if isinstance(given, Iterable) else None
