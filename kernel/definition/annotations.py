"""Reads the models of a stage from its function's annotations, at build time.

Names are looked up in the function's module and in the frame that defined it, as that frame is at build time, so that
models local to a function work, also under `from __future__ import annotations`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, cast, get_args, get_origin

from typing_extensions import get_type_hints

from kernel.errors import AnnotationError
from kernel.execution.context import StageContext

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class StageAnnotations:
    """The types a stage is annotated with; `input` counts only when `takes_input`, `config` only when `has_config`."""

    takes_input: bool
    input: object
    output: object
    has_config: bool
    config: object


def defining_frame(depth: int) -> FrameType | None:
    """Return the frame `depth` calls above the caller if it is a function's or a class's; a module needs none."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame is not None else None
    return None if frame is None or frame.f_locals is frame.f_globals else frame


def read_annotations(function: Callable[..., object], stage_id: str, names: Mapping[str, object]) -> StageAnnotations:
    """Return the types of context, input and output of a stage's function; `names` are those of the defining frame.

    Raises:
        AnnotationError: one is missing or cannot be resolved, or the parameters are none that a stage can have.
    """
    context, value = _parameters(function, stage_id)
    hints = _hints(function, stage_id, names)
    for name in filter(None, (context, value, "return")):
        if name not in hints:
            what = "the return value" if name == "return" else f"parameter {name!r}"
            message = f"stage {stage_id!r}: {what} has no annotation"
            raise AnnotationError(message)
    has_config, config = _config_of(hints[context], stage_id)
    return StageAnnotations(
        takes_input=value is not None,
        input=hints[value] if value is not None else None,
        output=hints["return"],
        has_config=has_config,
        config=config,
    )


def _parameters(function: Callable[..., object], stage_id: str) -> tuple[str, str | None]:
    """Return the names of the context and the input parameter; further ones must have defaults."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        message = f"stage {stage_id!r}: its parameters cannot be read: {error}"
        raise AnnotationError(message) from None
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    if not positional:
        message = f"stage {stage_id!r}: the function must take a StageContext first"
        raise AnnotationError(message)
    for parameter in parameters:
        is_known = parameter in positional[:2] or parameter.kind in _VARIADIC
        if not is_known and parameter.default is inspect.Parameter.empty:
            message = f"stage {stage_id!r}: nothing can be given for parameter {parameter.name!r}"
            raise AnnotationError(message)
    return positional[0].name, positional[1].name if len(positional) > 1 else None


def _hints(function: Callable[..., object], stage_id: str, names: Mapping[str, object]) -> dict[str, object]:
    try:
        return cast("dict[str, object]", get_type_hints(function, localns=dict(names), include_extras=True))
    except NameError as error:
        message = f"stage {stage_id!r}: an annotation cannot be resolved: {error}"
        raise AnnotationError(message) from None
    except Exception as error:
        message = f"stage {stage_id!r}: its annotations cannot be read: {type(error).__name__}: {error}"
        raise AnnotationError(message) from error


def _config_of(annotation: object, stage_id: str) -> tuple[bool, object]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is StageContext:
        return False, None
    if get_origin(annotation) is StageContext:
        return True, get_args(annotation)[0]
    message = f"stage {stage_id!r}: the first parameter must be annotated StageContext or StageContext[Config]"
    raise AnnotationError(message)
