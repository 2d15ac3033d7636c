"""Models as the kernel uses them: adapters, JSON Schemas, and faults as JSON Pointers into what was sent.

Everything is validated from JSON text, so that a run means the same whether it came over HTTP, from Python or from SQL.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, cast, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from kernel.errors import AnnotationError, FieldError
from kernel.payloads import clean_text, pointer_token

JsonSchema: TypeAlias = dict[str, Any]
Adapter: TypeAlias = TypeAdapter[Any]

MAX_ERRORS = 50
_MAX_MESSAGE_BYTES = 500
# Types without a config of their own carry bytes as base64: their raw form need not be UTF-8.
_PLAIN = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_KEY = "[key]"
_MAX_ENDS = 16


def make_adapter(annotation: object, what: str, names: Mapping[str, object]) -> Adapter:
    """Return the adapter of an annotation; `what` names it in errors, `names` are those its models may refer to.

    Raises:
        AnnotationError: Pydantic cannot make a schema of it.
    """
    try:
        _complete(annotation, names)
        adapter = _adapter(annotation)
    except PydanticUserError as error:
        message = f"{what}: {error.message}"
        raise AnnotationError(message) from None
    except Exception as error:
        message = f"{what}: {type(error).__name__}: {error}"
        raise AnnotationError(message) from error
    return adapter


def input_schema(adapter: Adapter, what: str) -> JsonSchema:
    """Return the JSON Schema of what the adapter accepts.

    Raises:
        AnnotationError: it has none.
    """
    try:
        return adapter.json_schema(mode="validation")
    except PydanticUserError as error:
        message = f"{what}: {error.message}"
        raise AnnotationError(message) from None


def output_schema(adapter: Adapter, what: str) -> JsonSchema:
    """Return the JSON Schema of what the adapter writes.

    Raises:
        AnnotationError: it has none.
    """
    try:
        return adapter.json_schema(mode="serialization")
    except PydanticUserError as error:
        message = f"{what}: {error.message}"
        raise AnnotationError(message) from None


def parse(adapter: Adapter, text: str, prefix: str) -> tuple[Any, list[FieldError]]:
    """Validate JSON text: return the value and no errors, or None and at least one error below `prefix`.

    A validator that raises something unexpected is a fault of the value like any other: one value must not stop a
    batch.
    """
    try:
        return adapter.validate_json(text), []
    except ValidationError as error:
        return None, field_errors(error, text, prefix)
    except Exception as error:  # noqa: BLE001 - a model's validators are foreign code
        message = clean_text(f"{type(error).__name__}: {_text_of(error)}", _MAX_MESSAGE_BYTES)
        return None, [FieldError(prefix, "validator_failed", message)]


def field_errors(error: ValidationError, text: str, prefix: str) -> list[FieldError]:
    """Return the faults of a validation of JSON `text`, at most `MAX_ERRORS`, with pointers below `prefix`."""
    details = error.errors(include_url=False)[:MAX_ERRORS]
    if details[0]["type"] == "json_invalid":
        return [FieldError(prefix, "json_invalid", clean_text(details[0]["msg"], _MAX_MESSAGE_BYTES))]
    return _faults(details, cast("object", json.loads(text)), prefix)


def output_errors(error: ValidationError, value: object, prefix: str) -> list[FieldError]:
    """Return the faults of a validation of a Python value, as `field_errors` does."""
    return _faults(error.errors(include_url=False)[:MAX_ERRORS], value, prefix)


def _faults(details: list[ErrorDetails], document: object, prefix: str) -> list[FieldError]:
    faults = [
        FieldError(
            prefix + "".join(map(pointer_token, _path(document, detail))),
            detail["type"],
            clean_text(detail["msg"], _MAX_MESSAGE_BYTES),
        )
        for detail in details
    ]
    return list(dict.fromkeys(faults))


def _complete(annotation: object, names: Mapping[str, object]) -> None:
    """Finish models that were left unfinished because they refer to models defined after them, in a function."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not annotation.__pydantic_complete__:
        annotation.model_rebuild(raise_errors=False, _types_namespace=dict(names))
    for argument in get_args(annotation):
        _complete(argument, names)


def _adapter(annotation: object) -> Adapter:
    try:
        return TypeAdapter(cast("type[Any]", annotation), config=_PLAIN)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    return TypeAdapter(cast("type[Any]", annotation))


def _path(document: object, detail: ErrorDetails) -> list[str | int]:
    """Map Pydantic's location onto the document.

    Kept are the segments that lead further into it, and the name of what is missing. Dropped are labels of unions
    and of validators. A fault of an object's key is the object's.
    """
    location, given = detail["loc"], detail["input"]
    is_key_fault = bool(location) and location[-1] == _KEY and isinstance(given, str)
    is_missing = detail["type"] == "missing" and bool(location) and not is_key_fault
    ends = _ends(document, location[:-2] if is_key_fault else location[:-1] if is_missing else location)
    path = next(iter(ends))
    if len(ends) > 1 and not is_key_fault:
        # A label may be the name of a key as well: the right end is the one at which what was refused stands.
        path = next((end for end, at in ends.items() if at == given), path)
    if is_missing:
        return [*path, location[-1]]
    if detail["type"] in {"union_tag_not_found", "union_tag_invalid"} and isinstance(ends[path], dict):
        return [*path, *_discriminator(detail)]
    return list(path)


def _ends(document: object, location: Sequence[str | int]) -> dict[tuple[str | int, ...], object]:
    """Return what a location may lead to by path, first those that take the earliest segments for keys."""
    ends: dict[tuple[str | int, ...], object] = {(): document}
    for segment in location:
        further = dict[tuple[str | int, ...], object]()
        for path, at in ends.items():
            if _leads_on(at, segment):
                further[*path, segment] = cast("Any", at)[segment]
            further.setdefault(path, at)
        ends = dict(islice(further.items(), _MAX_ENDS))
    return ends


def _leads_on(at: object, segment: str | int) -> bool:
    if isinstance(at, dict):
        return segment in at
    return isinstance(at, list) and isinstance(segment, int) and 0 <= segment < len(cast("list[object]", at))


def _discriminator(detail: ErrorDetails) -> Sequence[str]:
    """Return the field that tells the members of a union apart, if it is a plain field."""
    quoted = str(detail.get("ctx", {}).get("discriminator", ""))
    name = quoted[1:-1]
    return [name] if quoted == f"'{name}'" and "'" not in name else []


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - foreign code
        return "its text cannot be read"
