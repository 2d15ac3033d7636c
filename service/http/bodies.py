"""Reads request bodies: bounded, strict JSON, checked against a model, with JSON Pointers to every fault."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NoReturn, TypeVar

from litestar.types import Receive
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from kernel import FieldError
from service.problems import ProblemError, invalid, malformed

M = TypeVar("M", bound=BaseModel)
# A body holds the payload and little else: key, tags, names. The payload's own limit is the kernel's to check.
ENVELOPE_BYTES: Final = 64 * 1024
# RFC 3339: a full date, a full time and an offset. Years that survive priorities, offsets and every driver.
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9998


class Body(BaseModel):
    """What request bodies have in common: unknown fields are refused, nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def parse_instant(value: object) -> datetime:
    """Read an RFC 3339 date-time with an offset.

    Raises:
        ValueError: it is none, or lies outside the years that can be kept.
    """
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        raise ValueError("must be a date-time of RFC 3339 with an offset, such as 2026-12-01T09:30:00Z")
    try:
        instant = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("there is no such date or time") from None
    if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
        raise ValueError(f"must lie between the years {_FIRST_YEAR} and {_LAST_YEAR}")
    return instant


Instant = Annotated[datetime, BeforeValidator(parse_instant)]


async def read_body(receive: Receive, headers: Mapping[str, str], limit_bytes: int) -> bytes:
    """Read a body of at most `limit_bytes`, without reading more than that of a longer one.

    Raises:
        ProblemError: 413 when it is longer, 415 when it says it is no JSON.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not _is_json_suffix(media_type):
        raise ProblemError("unsupported_media_type", "The body must be application/json.")
    if headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
        raise ProblemError("unsupported_media_type", "The body must not be compressed.")
    return await read_bytes(receive, headers, limit_bytes)


async def read_bytes(receive: Receive, headers: Mapping[str, str], limit_bytes: int) -> bytes:
    """Read a body of any type of at most `limit_bytes`.

    Raises:
        ProblemError: 413 when it is longer, 400 when it ends early.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        _refuse_size(limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise malformed("The body ended early.")
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            _refuse_size(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_json(body: bytes) -> object:
    """Parse strict JSON.

    Raises:
        ProblemError: 400 for what is not JSON (NaN and Infinity included), 422 for JSON that nobody could keep.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise malformed("The body is not UTF-8.") from None
    if not text.strip():
        raise malformed("The body is empty.")
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        raise malformed(f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise invalid(FieldError("", "too_deep", "is nested too deeply")) from None
    except ValueError:
        # Python refuses to read integers of thousands of digits.
        raise invalid(FieldError("", "number_too_long", "holds a number with too many digits")) from None


def parse_body(model: type[M], body: bytes) -> M:
    """Parse a body and check it against a model.

    Raises:
        ProblemError: 400 when it is not JSON, 422 with a pointer to each field that is unacceptable.
    """
    value = parse_json(body)
    if not isinstance(value, dict):
        raise invalid(FieldError("", "wrong_type", "must be an object"))
    try:
        return model.model_validate(value)
    except ValidationError as refused:
        raise invalid(*map(_field_error, refused.errors(include_url=False, include_input=False))) from None


def pointer(*path: str | int) -> str:
    """Return the JSON Pointer of a path (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _field_error(error: Any) -> FieldError:
    message: str = error["msg"].removeprefix("Value error, ")
    code = {"missing": "missing", "extra_forbidden": "unknown_field"}.get(error["type"], error["type"])
    return FieldError(pointer(*error["loc"]), code, message[:1].lower() + message[1:])


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no JSON number", "", 0)


_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _is_json_suffix(media_type: str) -> bool:
    return media_type.startswith("application/") and media_type.endswith("+json")


def _refuse_size(limit_bytes: int) -> NoReturn:
    raise ProblemError("payload_too_large", f"The body is larger than {limit_bytes} bytes.")
