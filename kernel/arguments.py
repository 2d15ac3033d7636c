"""What the fields that commands share by name may hold.

A value that no statement takes is refused before anything is sent: an SQL error would abort the caller's transaction.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeAlias
from uuid import UUID

from kernel.errors import FieldError, InvalidRequestError
from kernel.payloads import clean_text

MAX_COUNT = 2**31 - 1
MAX_NAME_LENGTH = 255


def check_arguments(command: object) -> None:
    """Refuse a command whose fields hold what cannot be theirs; None may stand where it is the default.

    Raises:
        InvalidRequestError: with a pointer to each such field.
    """
    faults: list[FieldError] = []
    for checked in _checked_fields(type(command)):
        value = getattr(command, checked.name)
        if value is None and checked.default is None:
            continue
        is_right, says = _RULES[checked.name]
        if not is_right(value):
            faults.append(FieldError(f"/{checked.name}", "invalid", says))
    if faults:
        raise InvalidRequestError(faults)


def check_run_id(run_id: object) -> None:
    """Refuse what is no run's id, for calls that are no command.

    Raises:
        InvalidRequestError: it is no `uuid.UUID`.
    """
    is_right, says = _RULES["run_id"]
    if not is_right(run_id):
        raise InvalidRequestError([FieldError("/run_id", "invalid", says)])


def is_name(value: object) -> bool:
    """Whether a value is a text of 1 to 255 characters that can be stored."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_NAME_LENGTH and clean_text(value) == value


def _checked_fields(kind: Any) -> tuple[Field[Any], ...]:
    known = _fields_of.get(kind)
    if known is None:
        known = _fields_of[kind] = tuple(one for one in fields(kind) if one.name in _RULES)
    return known


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


_fields_of: dict[type[object], tuple[Field[Any], ...]] = {}
_Rule: TypeAlias = tuple[Callable[[object], bool], str]
_ID: _Rule = (lambda value: isinstance(value, UUID), "must be a uuid.UUID")
_COUNT = (_is_count, f"must be a whole number from 0 to {MAX_COUNT}")
_NAME: _Rule = (is_name, f"must have 1 to {MAX_NAME_LENGTH} storable characters")
_RULES: Mapping[str, _Rule] = {
    "run_id": _ID,
    "after": _ID,
    "limit": _COUNT,
    "lease_ahead": _COUNT,
    "worker_id": _NAME,
    "stage_id": _NAME,
    "reason": (lambda value: isinstance(value, str), "must be a text"),
}
