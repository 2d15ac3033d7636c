"""How the command line says things: durations, points in time, and text that comes from outside."""

import re
from datetime import UTC, datetime
from typing import Final

# C0 but for tab and line feed, DEL, and C1: what a terminal may take for a command. What turns the direction of writing
# around goes on behind the text that has it.
_CONTROLS: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))},
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_LENGTH: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def seconds_of(text: str) -> float:
    """Return the seconds of `250ms`, `30s`, `5m`, `24h` or `7d`.

    It is what the kernel reads too, which a command that only asks a server would load for nothing else.

    Raises:
        ValueError: the text is of no such form.
    """
    match = _LENGTH.fullmatch(text)
    if match is None:
        message = f"{text!r} is no duration; write one such as '250ms' '30s' '5m' '24h' '7d'"
        raise ValueError(message)
    number, unit = match.groups()
    return int(number) * _UNITS[unit]


def duration(seconds: float) -> str:
    """Return a length of time in the unit that a person would take."""
    for limit, divisor, unit in (
        (1.0, 0.001, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
        (172_800.0, 3600.0, "h"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}" if seconds else "0"
    return f"{seconds / 86_400:.3g} d"


def instant(text: str) -> str:
    """Return a time that the API told, to the second: `2026-12-03 14:02:07Z`."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def printable(text: str) -> str:
    """Return text of somebody else's with control characters spelled out, so that a terminal obeys none of them."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """Return it printable and on one line."""
    return printable(" ".join(text.split()))


def shortened(text: str, most: int) -> str:
    """Return the first `most` characters, and how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… and {len(text) - most:,} more characters, with --json"
