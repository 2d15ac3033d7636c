"""What the time of a step was spent on: its attempts, and the pauses between them.

The ledger's row has when a step began and ended and how many attempts it took; when each of them was, the run's spans
tell. Where it was not traced, or a worker died with what it knew, that much is said instead of drawn.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kernel.queries.run_get import StageView
from kernel.queries.run_trace import StepTry
from kernel.queries.step_list import StepView
from kernel.states import TERMINAL_STAGE_STATUSES
from service.console.stretches import DONE, FAILED, RUNNING, STOPPED, UNTOLD, WAITING, Stretch

# By so much the clocks of a worker and of the database may differ for its spans to be taken for those of the row.
CLOCKS_APART: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step and what is known of its time: its stage, and the attempts that were traced.

    `until` is when its stage ended, or now; `leased_at` when the stage's present execution began, None without one.
    """

    step: StepView
    stage: StageView
    tries: Sequence[StepTry]
    until: datetime
    leased_at: datetime | None = None

    @property
    def end(self) -> datetime:
        """When it ended; `until`, while it has not."""
        return max(self.step.completed_at or self.until, self.step.created_at)

    @property
    def present(self) -> str:
        """What its last attempt is at, or what it came to."""
        if self.step.status == "completed":
            return DONE
        if self.step.status == "failed":
            return FAILED
        if self.stage.status in TERMINAL_STAGE_STATUSES:
            return STOPPED
        return RUNNING if self.step.status == "running" else WAITING


def was_tried_again(step: StepView) -> bool:
    """Whether there is more to draw of a step than one bar."""
    return step.kind == "run" and (step.attempt > 1 or (step.status == "pending" and step.attempt > 0))


def stretches_of(time: StepTime) -> list[Stretch]:
    """Return the stretches of a step, in order, without a gap between them."""
    step = time.step
    if step.kind != "run":
        return [Stretch(WAITING, step.created_at, time.end, step.step_id)]
    if not was_tried_again(step):
        return [Stretch(time.present, step.created_at, time.end, step.step_id)]
    return list(_Attempts(time).stretches())


class _Attempts:
    """Lays attempts, pauses and what is not known out from the first claim on."""

    def __init__(self, time: StepTime) -> None:
        self._time = time
        self._step = time.step
        self._at = time.step.created_at
        # The number of the first attempt that is not laid out yet.
        self._next = 1

    def stretches(self) -> Iterator[Stretch]:
        for known in _in_order(self._time):
            began = min(max(known.began_at, self._at), self._time.end)
            if known.attempt == 1:
                # From its claim on.
                began = self._at
            yield from self._before(known.attempt, began)
            yield self._attempt(known)
        yield from self._rest()

    def _before(self, number: int, began: datetime) -> Iterator[Stretch]:
        """Yield what lies between what is laid out and the beginning of an attempt: a pause, or more."""
        if self._at < began:
            is_pause = number == self._next
            note = f"Before attempt {number}" if is_pause else _named(self._next, number - 1)
            yield Stretch(WAITING if is_pause else UNTOLD, self._at, began, note)
        self._at, self._next = began, number

    def _attempt(self, known: StepTry) -> Stretch:
        is_last = known.attempt == self._step.attempt
        ended = min(max(known.ended_at, self._at), self._time.end)
        kind = FAILED if known.error_type is not None else STOPPED
        if is_last and self._step.completed_at is not None:
            ended, kind = self._time.end, self._time.present
        note = _named(known.attempt, known.attempt)
        stretch = Stretch(kind, self._at, ended, note, error=known.error_type or "")
        self._at, self._next = ended, known.attempt + 1
        return stretch

    def _rest(self) -> Iterator[Stretch]:
        """Yield what follows the last attempt that is known to have ended."""
        end, last = self._time.end, self._step.attempt
        if self._next > last:
            if self._at < end:
                kind = WAITING if self._time.present == WAITING else STOPPED
                yield Stretch(kind, self._at, end, f"Before attempt {last + 1}")
            return
        if self._time.present != RUNNING:
            yield Stretch(UNTOLD, self._at, end, _named(self._next, last))
            return
        # It has not ended, so nothing is told of it yet: it began within the present execution of its stage.
        yield from self._before(last, min(max(self._time.leased_at or self._at, self._at), end))
        yield Stretch(RUNNING, self._at, end, _named(last, last))


def _named(first: int, last: int) -> str:
    return f"Attempt {first}" if first == last else f"Attempts {first} to {last}"


def _in_order(time: StepTime) -> list[StepTry]:
    """Return the step's attempts that its row can have had, each once, in the order of their numbers.

    A redrive from the start begins a step anew, and counts anew: spans of the time before are left out.
    """
    earliest = time.step.created_at - CLOCKS_APART
    latest: dict[int, StepTry] = {}
    for each in time.tries:
        if 1 <= each.attempt <= time.step.attempt and each.ended_at >= earliest:
            latest[each.attempt] = each
    ordered: list[StepTry] = []
    for number in sorted(latest):
        if not ordered or ordered[-1].began_at <= latest[number].began_at:
            ordered.append(latest[number])
    return ordered


def by_step(tries: Iterable[StepTry]) -> dict[tuple[str, str], list[StepTry]]:
    """Return attempts by stage and step."""
    found: dict[tuple[str, str], list[StepTry]] = {}
    for each in tries:
        found.setdefault((each.stage_id, each.step_id), []).append(each)
    return found
