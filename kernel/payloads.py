"""JSON text as the database stores it: what goes in is checked, so that what comes out is the same.

Refused are NaN and infinities, NUL characters, lone surrogates, keys that are no strings, nesting beyond `MAX_DEPTH`
levels and whatever has no JSON form. The usual case costs one encoding and a few substring searches; a fault is looked
for, value by value, only when one of them hits.
"""

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from kernel.errors import PayloadError

MAX_DEPTH = 200
MAX_TEXT_BYTES = 8192
# Of a character in UTF-8.
MAX_CHAR_BYTES = 4
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_CONTAINERS = (dict, list, tuple)


def dump(value: object) -> str:
    """Encode a value of JSON's own types (and tuples) as JSON text.

    Raises:
        PayloadError: the value cannot be stored; `pointer` is relative to the value.
    """
    try:
        text = _encode(value)
    except (ValueError, TypeError, RecursionError) as error:
        _refuse(value)
        raise PayloadError("", "not_serializable", clean_text(str(error), 200)) from None
    if not _is_storable(text) or not _has_text_keys(value):
        _refuse(value)
    return text


def plain(value: object) -> object:
    """Return a model as the JSON value it stands for, by its aliases; anything else as it is.

    Raises:
        PayloadError: the model has no JSON form.
    """
    if not isinstance(value, BaseModel):
        return value
    try:
        return cast("object", value.model_dump(mode="json", by_alias=True, warnings=False))
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise PayloadError("", "not_serializable", clean_text(str(error), 200)) from None


def check(value: object) -> None:
    """Check a decoded value as `dump` does, and throw the text away.

    Raises:
        PayloadError: the value cannot be stored.
    """
    dump(value)


def dump_typed(adapter: TypeAdapter[Any], value: object) -> str:
    """Encode a value by Pydantic's JSON rules, aliases included, with the same checks.

    Raises:
        PayloadError: the value cannot be stored; NaN is refused here too, where Pydantic would write null.
    """
    try:
        data = adapter.dump_json(value, by_alias=True, warnings=False)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise PayloadError("", "not_serializable", clean_text(str(error), 200)) from None
    # Pydantic writes null for what is not finite, also inside of values it knows nothing about.
    if b"null" in data:
        _refuse_not_finite(adapter.dump_python(value, by_alias=True, warnings=False))
    text = data.decode()
    if not _is_storable(text) or "NaN" in text or "Infinity" in text:
        _refuse(json.loads(text))
    return text


def clean_text(text: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return a text that Postgres can store: NUL and lone surrogates replaced, cut to `limit_bytes` of UTF-8."""
    if len(text) * MAX_CHAR_BYTES <= limit_bytes and text.isprintable():
        return text
    text = text[:limit_bytes].replace("\x00", REPLACEMENT)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        text = "".join(REPLACEMENT if "\ud800" <= char <= "\udfff" else char for char in text)
        data = text.encode()
    return text if len(data) <= limit_bytes else data[:limit_bytes].decode(errors="ignore")


def pointer_token(key: str | int) -> str:
    """Return one escaped step of a JSON Pointer (RFC 6901), the leading slash included."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


def _is_storable(text: str) -> bool:
    """Whether encoded text is beyond suspicion; a false alarm is settled by `_refuse`."""
    if "\\u0000" in text or text.count("[") + text.count("{") > MAX_DEPTH:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_text_keys(value: object) -> bool:
    """Whether all keys are strings: the encoder would turn others into strings without a word."""
    if not isinstance(value, _CONTAINERS):
        return True
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            mapping = cast("dict[object, object]", item)
            if not all(isinstance(key, str) for key in mapping):
                return False
            pending.extend(_nested(mapping.values()))
        else:
            pending.extend(_nested(cast("list[object]", item)))
    return True


def _nested(values: Iterable[object]) -> list[object]:
    return [child for child in values if isinstance(child, _CONTAINERS)]


def _refuse(value: object) -> None:
    """Raise for the first fault of a value, depth first; return when there is none."""
    pending: list[tuple[str, int, object]] = [("", 1, value)]
    while pending:
        pointer, depth, item = pending.pop()
        if isinstance(item, _CONTAINERS):
            if depth > MAX_DEPTH:
                raise PayloadError(pointer, "too_deep", f"nested more than {MAX_DEPTH} levels deep")
            pending.extend(reversed([(at, depth + 1, child) for at, child in _children(pointer, cast("object", item))]))
        else:
            _refuse_scalar(pointer, item)


def _children(pointer: str, item: object) -> list[tuple[str, object]]:
    if not isinstance(item, dict):
        return [(f"{pointer}/{index}", child) for index, child in enumerate(cast("list[object]", item))]
    children: list[tuple[str, object]] = []
    for key, child in cast("dict[object, object]", item).items():
        if not isinstance(key, str):
            raise PayloadError(pointer, "bad_key", f"has a key of type {type(key).__name__}; keys are strings")
        if fault := _text_fault(key):
            raise PayloadError(pointer, fault[0], f"has a key that {fault[1]}")
        children.append((pointer + pointer_token(key), child))
    return children


def _refuse_scalar(pointer: str, item: object) -> None:
    if isinstance(item, str):
        if fault := _text_fault(item):
            raise PayloadError(pointer, *fault)
    elif isinstance(item, float):
        if not isfinite(item):
            raise PayloadError(pointer, "not_finite", "is not a finite number")
    elif item is not None and not isinstance(item, int):
        raise PayloadError(pointer, "not_serializable", f"a {type(item).__name__} has no JSON form")


def _text_fault(text: str) -> tuple[str, str] | None:
    if "\x00" in text:
        return "nul_character", "contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "lone_surrogate", "contains a lone surrogate"
    return None


def _refuse_not_finite(value: object, pointer: str = "") -> None:
    """Raise for a float that is not finite in what `dump_python` made of a value (at most a few hundred levels)."""
    if isinstance(value, float):
        _refuse_scalar(pointer, value)
    elif isinstance(value, dict):
        for key, child in cast("dict[object, object]", value).items():
            _refuse_not_finite(child, pointer + pointer_token(str(key)))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, child in enumerate(cast("list[object]", value)):
            _refuse_not_finite(child, f"{pointer}/{index}")
