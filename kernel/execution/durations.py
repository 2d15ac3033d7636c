"""Durations as users write them: a `timedelta`, a number of seconds, or `"250ms"`, `"30s"`, `"5m"`, `"24h"`, `"7d"`."""

import re
from datetime import timedelta
from math import isfinite
from typing import TypeAlias

from kernel.errors import InvalidDurationError

Duration: TypeAlias = timedelta | float | str

MAX_SECONDS = 100 * 365 * 86_400.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_TEXT = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def parse_duration(value: Duration, *, name: str = "duration", allow_zero: bool = True) -> float:
    """Return a duration in seconds.

    Raises:
        InvalidDurationError: a `ValueError`; the value is of no known form, negative, not finite, longer than a
        century, or zero where that makes no sense. The text names the option.
    """
    seconds = _seconds(value)
    if seconds is None:
        message = (
            f"{name}: {value!r} is no duration; write a timedelta, seconds, or one of '250ms' '30s' '5m' '24h' '7d'"
        )
        raise InvalidDurationError(message)
    if not 0 <= seconds <= MAX_SECONDS:
        message = f"{name}: {value!r} is out of range"
        raise InvalidDurationError(message)
    if seconds == 0 and not allow_zero:
        message = f"{name}: must be longer than zero"
        raise InvalidDurationError(message)
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            seconds = float(value)
        except OverflowError:
            return None
        return seconds if isfinite(seconds) else None
    if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        number, unit = match.groups()
        return int(number) * _UNITS[unit]
    return None
