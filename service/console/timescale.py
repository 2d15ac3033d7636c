"""Maps the time of a run onto the width of a page: evenly, but for long pauses in which nothing is done.

A run that works for two seconds and then sleeps for a week would be one hair and a void. Such pauses are drawn as short
breaks, so that what was done keeps its proportions.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from service.console.words import duration

# A pause is broken when it is long by itself, and the longest are until the others are not long beside what was done.
BROKEN_FROM: Final = timedelta(seconds=10)
BROKEN_RATIO: Final = 5
BREAK_SHARE: Final = 0.25
# However many breaks there are, together they take no more than this beside what was done.
ALL_BREAKS_SHARE: Final = 0.5
LEAST_WORK: Final = timedelta(milliseconds=20)
_TICKS: Final = 5
_ALL: Final = 100.0
_AS_GOOD_AS: Final = 0.999
_LEAST_ROOM: Final = 20.0
_LABEL_ROOM: Final = 9.0
_BREAK_LABEL_ROOM: Final = 15.0
_LAST_LABEL: Final = 94.0
_NAMED_BREAKS: Final = 3
_STEPS: Final = (1, 2, 5, 10)
_MINUTE: Final = 60


class Interval(NamedTuple):
    """From when to when."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis, in percent of the width, with the time since the start."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Break:
    """A pause that is drawn shorter than it was; place and width in percent of the width."""

    x: float
    width: float
    pause: Interval

    @property
    def seconds(self) -> float:
        """How long the pause was."""
        return (self.pause.end - self.pause.start).total_seconds()

    @property
    def has_label(self) -> bool:
        """Whether there is room to write over it how long it was."""
        return self.width >= _BREAK_LABEL_ROOM


class Timescale:
    """The mapping for one run; positions are in percent of the width."""

    def __init__(self, whole: Interval, work: Iterable[Interval]) -> None:
        """Lay out `whole`, with pauses between pieces of `work` broken where they are long."""
        merged = _merged(whole, work)
        done = max(sum((piece.end - piece.start for piece in merged), timedelta()), LEAST_WORK)
        self._times = [whole.start]
        self._widths = [0.0]
        broken = _broken(tuple(_pauses(whole, merged)), done)
        room = done.total_seconds() * min(BREAK_SHARE, ALL_BREAKS_SHARE / max(len(broken), 1))
        for piece in broken:
            self._add(piece.start)
            self._times.append(piece.end)
            self._widths.append(self._widths[-1] + room)
        self._add(whole.end)
        self._total = self._widths[-1] or 1.0
        self.breaks = tuple(self._break(piece) for piece in broken)

    def _add(self, at: datetime) -> None:
        self._widths.append(self._widths[-1] + (at - self._times[-1]).total_seconds())
        self._times.append(at)

    def _break(self, piece: Interval) -> Break:
        x = self.at(piece.start)
        return Break(x, self.at(piece.end) - x, piece)

    def at(self, instant: datetime) -> float:
        """Return the position of a point in time; what lies outside is at the edge."""
        if instant <= self._times[0]:
            return 0.0
        if instant >= self._times[-1]:
            return _ALL
        index = bisect_right(self._times, instant) - 1
        span = (self._times[index + 1] - self._times[index]).total_seconds()
        share = (instant - self._times[index]).total_seconds() / span if span else 0.0
        width = self._widths[index] + share * (self._widths[index + 1] - self._widths[index])
        return _ALL * width / self._total

    def ticks(self) -> tuple[Tick, ...]:
        """Return marks at round times since the start up to the first break, and one where it goes on behind each."""
        start = self._times[0]
        first_break = self.breaks[0].x if self.breaks else _ALL
        seconds = self._total * first_break / _ALL
        marks = [Tick(0.0, "0")]
        if seconds > 0:
            step = _round_step(seconds / _TICKS * _ALL / max(first_break, _LEAST_ROOM))
            count = math.floor(seconds / step)
            marks = [Tick(self.at(start + timedelta(seconds=n * step)), _label(n * step)) for n in range(count + 1)]
        for each in self.breaks:
            behind = each.x + each.width
            if marks[-1].x + _LABEL_ROOM <= behind <= _LAST_LABEL:
                marks.append(Tick(behind, duration((each.pause.end - start).total_seconds())))
        return tuple(mark for mark in marks if mark.x <= _ALL)


def note_on(breaks: Sequence[Break]) -> str:
    """Return a sentence on where the axis is broken; empty where it is not."""
    if not breaks:
        return ""
    if len(breaks) <= _NAMED_BREAKS:
        pauses = ", ".join(duration(each.seconds) for each in breaks)
        return f"The timeline is cut where nothing was done for long: {pauses}."
    whole = duration(sum(each.seconds for each in breaks))
    return f"The timeline is cut in {len(breaks)} places where nothing was done for long, {whole} in all."


def _merged(whole: Interval, work: Iterable[Interval]) -> Sequence[Interval]:
    pieces: list[Interval] = []
    for start, end in sorted(work):
        begin, finish = max(start, whole.start), min(end, whole.end)
        if begin >= finish:
            continue
        if pieces and begin <= pieces[-1].end:
            pieces[-1] = Interval(pieces[-1].start, max(pieces[-1].end, finish))
        else:
            pieces.append(Interval(begin, finish))
    return pieces


def _pauses(whole: Interval, merged: Sequence[Interval]) -> Iterable[Interval]:
    at = whole.start
    for piece in merged:
        if piece.start > at:
            yield Interval(at, piece.start)
        at = piece.end
    if whole.end > at:
        yield Interval(at, whole.end)


def _broken(pauses: Sequence[Interval], done: timedelta) -> Sequence[Interval]:
    """Return the longest pauses, without which the others are no longer than `BROKEN_RATIO` times what was done.

    Of pauses that are as good as equal, all are broken.
    """
    kept = timedelta()
    for lasted in sorted(pause.end - pause.start for pause in pauses):
        kept += lasted
        if lasted > BROKEN_FROM and kept > BROKEN_RATIO * done:
            return [pause for pause in pauses if pause.end - pause.start >= _AS_GOOD_AS * lasted]
    return ()


def _round_step(seconds: float) -> float:
    """Return the next round number of seconds: 1, 2 or 5 times a power of ten; minutes and hours from there on."""
    for size in (1, _MINUTE, _MINUTE * _MINUTE, 24 * _MINUTE * _MINUTE):
        scaled = seconds / size
        if scaled < _MINUTE / 2 or size > _MINUTE * _MINUTE:
            power = 10.0 ** math.floor(math.log10(scaled)) if scaled > 0 else 1.0
            factor = next(step for step in _STEPS if step >= scaled / power - 1e-9)
            return factor * power * size
    return seconds


def _label(seconds: float) -> str:
    if seconds == 0:
        return "0"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s" if seconds < _MINUTE else duration(seconds)
