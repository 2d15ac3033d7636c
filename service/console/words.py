"""How pages put things into words: times, durations, counts and states; and the filters of templates made of them."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson
from markupsafe import Markup

from kernel.queries.queue_get import WaitReason
from kernel.queries.tenant_get import MAX_COUNT

_LEAST: Final = 0.0005
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_DOUBLE_DIGITS: Final = 10
_SHORT_ID: Final = 8
_LINE: Final = 160
_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
NOTHING: Final = "\N{EN DASH}"
_NO_TIME: Final = Markup('<span class="nothing">{}</span>').format(NOTHING)
# What each reason of the queue means to somebody who wonders.
REASONS: Final[Mapping[WaitReason, str]] = {
    WaitReason.TENANT_SUSPENDED: "The tenant is suspended: nothing new is claimed.",
    WaitReason.VERSION_NOT_SERVED: "No build that answers here serves this version of the workflow.",
    WaitReason.RUN_AT: "It is to start later.",
    WaitReason.BACKOFF: "An attempt failed; the next one follows after a pause.",
    WaitReason.TENANT_CAP: "As many jobs run as the tenant may have at once.",
    WaitReason.PRIORITY: "It is in line and due: the next free worker takes it.",
}
LEFT: Final = "It is due, and no worker takes it: is one up that serves this version, or are all of them busy?"


def duration(seconds: float | None) -> str:
    """Return a duration with two figures or units, as one says it: `840 ms`, `3.2 s`, `2 m 5 s`, `3 d 4 h`."""
    if seconds is None:
        return NOTHING
    seconds = max(seconds, 0.0)
    if 0 < seconds < _LEAST:
        return "< 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < _DOUBLE_DIGITS else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return _two(whole // _MINUTE, "m", whole % _MINUTE, "s")
    if whole < _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "m")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def between(start: datetime | None, end: datetime | None) -> str:
    """Return how long something lasted; so far, when it has no end."""
    if start is None:
        return NOTHING
    return duration(((end or datetime.now(UTC)) - start).total_seconds())


def clock(instant: datetime | None) -> str:
    """Return a point in time, in UTC, to the second."""
    return NOTHING if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def precise_clock(instant: datetime) -> str:
    """Return the time of day to the millisecond, for things that follow each other closely."""
    utc = instant.astimezone(UTC)
    return f"{utc:%H:%M:%S}.{utc.microsecond // 1000:03d}"


def day(instant: datetime) -> str:
    """Return the day of a point in time, in UTC, with the name of the weekday."""
    utc = instant.astimezone(UTC)
    return f"{_WEEKDAYS[utc.weekday()]} {utc:%Y-%m-%d}"


def relative(instant: datetime, now: datetime | None = None) -> str:
    """Return how long ago a point in time was, or how far ahead it is."""
    seconds = ((now or datetime.now(UTC)) - instant).total_seconds()
    size = abs(seconds)
    if size < 1:
        return "now"
    unit, word = next(
        (each for each in ((_YEAR, "y"), (_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")) if size >= each[0]), (1, "s")
    )
    text = f"{size // unit:.0f} {word}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def ago(instant: datetime | None) -> Markup:
    """Return a point in time relative to now; the script keeps it true, the exact time is its title."""
    if instant is None:
        return _NO_TIME
    return Markup('<time datetime="{}" title="{} UTC" data-relative>{}</time>').format(
        instant.astimezone(UTC).isoformat(), clock(instant), relative(instant)
    )


def exact(instant: datetime | None) -> Markup:
    """Return a point in time as such."""
    if instant is None:
        return _NO_TIME
    return Markup('<time datetime="{}">{}</time>').format(instant.astimezone(UTC).isoformat(), clock(instant))


def short(value: UUID | str) -> str:
    """Return the end of an id: ids made of time begin alike."""
    return str(value)[-_SHORT_ID:]


def version(text: str | None) -> str:
    """Return a definition version to be read: a digest is cut, a declared one is what it is."""
    if not text:
        return "not pinned"
    return text.removeprefix("sha256-")[:_SHORT_ID] if text.startswith("sha256-") else text


def percent(fraction: float) -> str:
    """Return a share as whole percent; what is not all of it is not a hundred."""
    return f"{int(fraction * 100)} %"


def counted(count: int) -> str:
    """Return a count as it is shown: above 10,000 nothing is counted on."""
    return f"{count:,}" if count <= MAX_COUNT else f"{MAX_COUNT:,}+"


def cut(text: str, length: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= length else f"{text[:length]}…"


def error_line(text: str) -> str:
    """Return the first line of a run's error, which is JSON text."""
    message = str(orjson.loads(text).get("message") or "")
    return cut(message.partition("\n")[0], _LINE)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "ago": ago,
    "clock": clock,
    "cut": cut,
    "error_line": error_line,
    "counted": counted,
    "day": day,
    "duration": duration,
    "exact": exact,
    "percent": percent,
    "precise_clock": precise_clock,
    "short": short,
    "took": between,
    "version": version,
}
