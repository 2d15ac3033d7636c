"""Draws a run as a waterfall: a line for each stage with its attempts and waits, and below it one for each step.

Made of stages, steps and events alone, so that every run has one, whatever share of the traces is kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import orjson

from kernel.events import EventType
from kernel.execution.ledger import StepKind
from kernel.queries.run_events import EventView
from kernel.queries.run_get import RunView, StageView
from kernel.queries.run_trace import StepTry
from kernel.queries.step_list import StepView
from kernel.states import TERMINAL_STAGE_STATUSES, StageStatus
from service.console.step_stretches import StepTime, stretches_of
from service.console.stretches import (
    BACKOFF,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    STOPPED,
    UNTOLD,
    WAITING,
    WORK,
    Stretch,
)
from service.console.timescale import Break, Interval, Tick, Timescale, note_on
from service.console.words import between, duration

STAGE_TYPES: Final = (
    EventType.STAGE_STARTED,
    EventType.STAGE_COMPLETED,
    EventType.STAGE_SUSPENDED,
    EventType.STAGE_RETRYING,
    EventType.STAGE_FAILED,
    EventType.STAGE_SKIPPED,
)
# What ends every stage that is not over, without a word at each of them.
ENDING_TYPES: Final = (EventType.WORKFLOW_FAILED, EventType.WORKFLOW_CANCELLED)
# The events that a waterfall is made of: few, however long the history is.
TYPES: Final = (*STAGE_TYPES, *ENDING_TYPES, EventType.WORKFLOW_STARTED)
_LEGEND: Final = (
    (DONE, "ran"), (RUNNING, "running"), (FAILED, "failed"), (WAITING, "waits"), (QUEUED, "in the queue, or pause"),
    (STOPPED, "stopped"), (UNTOLD, "not told"),
)  # fmt: skip
_LEAST_WIDTH: Final = 0.4


@dataclass(frozen=True, slots=True)
class Record:
    """What a run is drawn from: its lifecycle `events` (`TYPES`), its first steps, and `tries` of those.

    `leased_at`: when the present executions of stages began, by stage. `is_cut` where there are more events: what
    stages did after the last one is not told.
    """

    events: Sequence[EventView] = ()
    steps: Sequence[StepView] = ()
    tries: Mapping[tuple[str, str], Sequence[StepTry]] = field(default_factory=dict[tuple[str, str], list[StepTry]])
    leased_at: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    is_cut: bool = False

    def told(self, stretches: Iterable[Stretch]) -> Iterator[Stretch]:
        """Yield a stage's stretches as far as they are told, and what is left of them as not told."""
        until = self.events[-1].occurred_at if self.is_cut else None
        for each in stretches:
            if until is None or each.end <= until:
                yield each
                continue
            if each.start < until:
                yield replace(each, end=until)
            yield Stretch(UNTOLD, max(each.start, until), each.end)

    def time_of(self, step: StepView, stage: StageView, until: datetime) -> StepTime:
        """Return what is known of a step's time; `until` is when its stage ended, or now."""
        tries = self.tries.get((step.stage_id, step.step_id), ())
        return StepTime(step, stage, tries, until, self.leased_at.get(step.stage_id))


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch on the page: percent of the width."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the waterfall: a stage, or, with `step_id`, a step of it."""

    stage_id: str
    name: str
    status: str
    note: str
    took: str
    bars: tuple[Bar, ...]
    step_id: str | None = None
    kind: StepKind | None = None
    group: int = 0
    is_first_of_group: bool = False


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The lines with their axis."""

    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    breaks: tuple[Break, ...]

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Return what the kinds of bars mean; that something is not told, only where it is so."""
        is_told = all(bar.kind != UNTOLD for line in self.lines for bar in line.bars)
        return tuple((kind, words) for kind, words in _LEGEND if kind != UNTOLD or not is_told)

    @property
    def note(self) -> str:
        """Say where the timeline is cut; empty where it is not."""
        return note_on(self.breaks)


@dataclass(slots=True)
class _Track:
    """One line before it is laid out."""

    stage: StageView
    stretches: list[Stretch] = field(default_factory=list[Stretch])
    step: StepView | None = None


def draw(run: RunView, names: Mapping[str, str], record: Record, now: datetime) -> Waterfall | None:
    """Return the waterfall of a run; None while nothing of it has begun."""
    start, end = run.summary.started_at, run.summary.completed_at or now
    if start is None or not run.stages:
        return None
    tracks = list(_tracks(run, record, end))
    every = [stretch for track in tracks for stretch in track.stretches]
    whole = Interval(
        min([start, *(stretch.start for stretch in every)]), max([end, *(stretch.end for stretch in every)])
    )
    scale = Timescale(whole, [Interval(each.start, each.end) for each in every if each.kind in WORK])
    lines: list[Line] = []
    for track in tracks:
        is_first = track.step is None and (not lines or lines[-1].group != track.stage.group)
        lines.append(_line(track, names, scale, is_first=is_first, is_redriven=run.summary.redrive_count > 0))
    return Waterfall(tuple(lines), scale.ticks(), scale.breaks)


def _tracks(run: RunView, record: Record, end: datetime) -> Iterator[_Track]:
    opened: dict[int, datetime | None] = {1: run.summary.started_at}
    for stage in run.stages:
        ended = opened.get(stage.group + 1)
        done = stage.completed_at
        opened[stage.group + 1] = max(filter(None, (ended, done)), default=None)
    for stage in run.stages:
        own = [event for event in record.events if event.stage_id in {None, stage.stage_id}]
        stage_end = stage.completed_at or end
        yield _Track(stage, list(record.told(_stretches(stage, own, opened.get(stage.group), stage_end))))
        for step in record.steps:
            if step.stage_id == stage.stage_id:
                yield _Track(stage, stretches_of(record.time_of(step, stage, stage_end)), step)


def _stretches(
    stage: StageView, events: Sequence[EventView], opened: datetime | None, end: datetime
) -> Iterator[Stretch]:
    """Yield what a stage's time was spent on, as its events, and those of its run, tell it."""
    state, since, note = QUEUED, opened, ""
    for event in events:
        at = event.occurred_at
        if event.stage_id is None and since is not None and at < since:
            # Of the time before a redrive, when the stage was not yet its group's turn.
            continue
        if event.type == EventType.WORKFLOW_STARTED:
            since = since if state else at
            continue
        if since is not None and state and at > since:
            yield Stretch(_ended(state, event.type), since, at, note)
        state, note = _after(event, note)
        since = at
    if not state and stage.status is StageStatus.PENDING:
        # A redrive has reopened it.
        state, note = QUEUED, ""
    if since is None or not state or end <= since:
        return
    if stage.status in TERMINAL_STAGE_STATUSES and state == RUNNING:
        state = STOPPED
    yield Stretch(state, since, end, note)


def _after(event: EventView, note: str) -> tuple[str, str]:
    """Return what a stage does after an event, and the name of the attempt it does it in."""
    if event.type == EventType.STAGE_STARTED:
        return RUNNING, f"Attempt {orjson.loads(event.data).get('attempt', '')}"
    if event.type == EventType.STAGE_SUSPENDED:
        return WAITING, note
    return (BACKOFF, note) if event.type == EventType.STAGE_RETRYING else ("", note)


def _ended(state: str, event_type: str) -> str:
    if event_type in {EventType.STAGE_RETRYING, EventType.STAGE_FAILED} and state == RUNNING:
        return FAILED
    if event_type in ENDING_TYPES and state == RUNNING:
        return STOPPED
    return DONE if state == RUNNING else state


def _line(track: _Track, names: Mapping[str, str], scale: Timescale, *, is_first: bool, is_redriven: bool) -> Line:
    stage, step = track.stage, track.step
    bars = tuple(_bar(stretch, scale) for stretch in track.stretches)
    if step is not None:
        took = duration((track.stretches[-1].end - track.stretches[0].start).total_seconds())
        note = f"attempt {step.attempt}" if step.attempt > 1 else ""
        return Line(
            stage.stage_id,
            step.step_id,
            _status_of(step, stage),
            note,
            took,
            bars,
            step.step_id,
            step.kind,
            stage.group,
        )
    note = f"attempt {stage.attempt}" if stage.attempt > 1 else ""
    if note and not is_redriven:
        # A redrive gives the whole budget again, while attempts are counted on.
        note = f"{note} of {stage.max_attempts}"
    took = "" if stage.started_at is None else between(stage.started_at, stage.completed_at)
    return Line(
        stage_id=stage.stage_id,
        name=names.get(stage.stage_id, stage.stage_id),
        status=str(stage.status),
        note=note,
        took=took,
        bars=bars,
        group=stage.group,
        is_first_of_group=is_first,
    )


def _status_of(step: StepView, stage: StageView) -> str:
    """Return a step's status in the words of stages: nobody goes on with what its stage left behind."""
    if step.status in {"completed", "failed"}:
        return step.status.upper()
    if stage.status in TERMINAL_STAGE_STATUSES:
        return StageStatus.CANCELLED
    return StageStatus.RUNNING if step.status == "running" else StageStatus.SUSPENDED


def _bar(stretch: Stretch, scale: Timescale) -> Bar:
    x = scale.at(stretch.start)
    width = max(scale.at(stretch.end) - x, _LEAST_WIDTH)
    return Bar(stretch.kind, round(min(x, 100.0 - _LEAST_WIDTH), 3), round(width, 3), stretch.title)
