"""What pages draw, without pages: the scale of time, the waterfall, forms of schemas, JSON as it is stored."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from kernel.queries.run_events import EventView
from kernel.queries.run_get import RunSummary, RunView, StageView, WaitView
from kernel.queries.run_trace import SpanView, StepTry
from kernel.queries.stage_active import ActiveStage
from kernel.queries.step_list import StepView
from kernel.states import RunStatus, StageStatus
from service.console import json_text, waterfall, words
from service.console.engine import template_config
from service.console.forms import Form
from service.console.runs import doing_of
from service.console.schema_form import field_of, filled, value_of
from service.console.stage import attempts_of
from service.console.step_stretches import StepTime, stretches_of
from service.console.timescale import Interval, Timescale, note_on
from service.console.trace import trace_of
from service.console.waterfall import Record
from service.problems import ProblemError
from tests.support.console import Order

START = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(sequence: int, name: str, seconds: float, stage: str = "a", data: str = '{"attempt": 1}') -> EventView:
    return EventView(sequence, f"stage:{name}", stage, data, at(seconds))


def stage(stage_id: str, status: StageStatus, group: int = 1, end: float | None = None) -> StageView:
    completed = at(end) if end is not None else None
    return StageView(stage_id, group, group, status, 1, 3, None, at(0), completed, None, None)


def run_of(status: RunStatus, *stages: StageView, end: float | None = None) -> RunView:
    completed = at(end) if end is not None else None
    summary = RunSummary(
        UUID(int=1), "w", "v", status, 5, None, (), 0, at(0), at(0), at(0), completed, None
    )  # fmt: skip
    return RunView(summary, "{}", "{}", None, stages)


class TestTimescale:
    def test_time_is_even_without_long_pauses(self) -> None:
        scale = Timescale(Interval(at(0), at(10)), [Interval(at(0), at(3)), Interval(at(8), at(10))])
        assert [scale.at(at(second)) for second in (-1, 0, 5, 10, 11)] == [0, 0, 50, 100, 100]
        assert scale.breaks == ()
        assert [tick.label for tick in scale.ticks()] == ["0", "2 s", "4 s", "6 s", "8 s", "10 s"]

    def test_a_week_of_sleep_is_a_short_break(self) -> None:
        week = 7 * 86_400
        scale = Timescale(Interval(at(0), at(week)), [Interval(at(0), at(2)), Interval(at(week - 2), at(week))])
        assert note_on(scale.breaks) == "The timeline is cut where nothing was done for long: 6 d 23 h."
        assert [tick.label for tick in scale.ticks()][-1] == "6 d 23 h", "where it goes on"
        assert [each.has_label for each in scale.breaks] == [True]
        # What was done keeps its proportions and takes most of the width.
        assert scale.at(at(2)) == pytest.approx(100 - scale.at(at(week - 2)))
        assert scale.at(at(2)) > 35
        assert scale.at(at(1)) == pytest.approx(scale.at(at(2)) / 2)

    def test_work_keeps_most_of_the_width_however_many_pauses_there_are(self) -> None:
        work = [Interval(at(60 * n), at(60 * n + 1)) for n in range(50)]
        scale = Timescale(Interval(at(0), at(60 * 49 + 1)), work)
        assert len(scale.breaks) == 49
        assert sum(each.width for each in scale.breaks) < 35
        assert note_on(scale.breaks).endswith("cut in 49 places where nothing was done for long, 48 m 11 s in all.")

    def test_the_longest_pauses_are_broken_and_no_others(self) -> None:
        work = [Interval(at(0), at(10)), Interval(at(30), at(40)), Interval(at(5000), at(5010))]
        scale = Timescale(Interval(at(0), at(5010)), work)
        assert [each.pause for each in scale.breaks] == [Interval(at(40), at(5000))]

    def test_order_is_kept_and_nothing_lies_outside(self) -> None:
        work = [Interval(at(second), at(second + 1)) for second in (0, 100, 1000, 50_000)]
        scale = Timescale(Interval(at(0), at(50_001)), work)
        places = [scale.at(at(second)) for second in (0, 1, 50, 100, 101, 999, 1000, 50_000, 50_001)]
        assert places == sorted(places)
        assert (places[0], places[-1]) == (0, 100)

    @pytest.mark.parametrize("length", [0, 1e-6, 0.004, 3, 61, 4000, 90_000, 4e7])
    def test_ticks_are_few_and_within(self, length: float) -> None:
        ticks = Timescale(Interval(at(0), at(length)), [Interval(at(0), at(length))]).ticks()
        assert 1 <= len(ticks) <= 12
        assert all(0 <= tick.x <= 100 for tick in ticks)


class TestWaterfall:
    def test_a_stage_is_drawn_by_its_events(self) -> None:
        events = [
            event(1, "started", 1), event(2, "retrying", 2), event(3, "started", 4, data='{"attempt": 2}'),
            event(4, "suspended", 5), event(5, "completed", 9),
        ]  # fmt: skip
        run = run_of(RunStatus.COMPLETED, stage("a", StageStatus.COMPLETED, end=9), end=9)
        drawn = waterfall.draw(run, {"a": "First"}, Record(events), at(100))
        assert drawn is not None
        (line,) = drawn.lines
        assert [bar.kind for bar in line.bars] == ["queued", "failed", "backoff", "done", "waiting"]
        assert line.name == "First"
        assert "Attempt 2" in line.bars[3].title
        assert [round(bar.x) for bar in line.bars] == [0, 11, 22, 44, 56]

    def test_what_goes_on_reaches_to_now_and_what_was_cancelled_stops(self) -> None:
        events = [event(1, "started", 0), event(2, "started", 0, "b")]
        run = run_of(RunStatus.RUNNING, stage("a", StageStatus.RUNNING), stage("b", StageStatus.CANCELLED, end=2))
        drawn = waterfall.draw(run, {}, Record(events), at(4))
        assert drawn is not None
        (first,), (second,) = (line.bars for line in drawn.lines)
        assert (first.kind, first.x + first.width) == ("running", 100)
        assert (second.kind, second.x + second.width) == ("stopped", 50)

    def test_what_was_at_work_when_its_sibling_failed_stopped_then(self) -> None:
        def of_run(sequence: int, name: str, seconds: float) -> EventView:
            return EventView(sequence, f"workflow:{name}", None, "{}", at(seconds))

        events = [
            of_run(1, "started", 0), event(2, "started", 0), event(3, "started", 0, "b"), event(4, "failed", 1, "b"),
            of_run(5, "failed", 1), of_run(6, "started", 6), event(7, "started", 8, data='{"attempt": 2}'),
        ]  # fmt: skip
        run = run_of(RunStatus.RUNNING, stage("a", StageStatus.RUNNING), stage("b", StageStatus.PENDING))
        drawn = waterfall.draw(run, {}, Record(events), at(10))
        assert drawn is not None
        first, second = ([(bar.kind, bar.x, bar.width) for bar in line.bars] for line in drawn.lines)
        assert first == [("stopped", 0, 10), ("running", 80, 20)]
        assert second == [("failed", 0, 10), ("queued", 60, 40)], "reopened by the redrive"
        attempts = attempts_of(each for each in events if each.stage_id in {None, "a"})
        assert [(each.number, each.outcome, each.ended_at) for each in attempts] == [
            (1, "CANCELLED", at(1)), (2, "RUNNING", None),
        ]  # fmt: skip

    def test_a_step_that_its_stage_left_behind_waits_for_nothing(self) -> None:
        step = StepView("a", "nap", 1, "sleep", "pending", 0, None, None, None, None, None, at(1), None)
        run = run_of(RunStatus.CANCELLED, stage("a", StageStatus.CANCELLED, end=2), end=2)
        drawn = waterfall.draw(run, {}, Record([event(1, "started", 0)], [step]), at(9))
        assert drawn is not None
        assert drawn.lines[1].status == "CANCELLED"

    def test_what_later_events_would_tell_is_not_drawn_as_if_nothing_had_happened(self) -> None:
        events = [event(1, "started", 0), event(2, "suspended", 4)]
        run = run_of(RunStatus.RUNNING, stage("a", StageStatus.COMPLETED, end=8), stage("b", StageStatus.RUNNING, 2))
        drawn = waterfall.draw(run, {}, Record(events, is_cut=True), at(10))
        assert drawn is not None
        first, second = ([(bar.kind, bar.x, bar.width) for bar in line.bars] for line in drawn.lines)
        assert first == [("done", 0, 40), ("untold", 40, 40)]
        assert second == [("untold", 80, 20)]

    def test_a_later_group_waits_from_the_end_of_the_one_before(self) -> None:
        run = run_of(RunStatus.RUNNING, stage("a", StageStatus.COMPLETED, end=5), stage("b", StageStatus.PENDING, 2))
        drawn = waterfall.draw(run, {}, Record([event(1, "started", 0), event(2, "completed", 5)]), at(10))
        assert drawn is not None
        (bar,) = drawn.lines[1].bars
        assert (bar.kind, bar.x, bar.width) == ("queued", 50, 50)
        assert [line.is_first_of_group for line in drawn.lines] == [True, True]

    def test_steps_are_lines_of_their_own(self) -> None:
        def step(name: str, kind: Any, status: Any, end: float | None) -> StepView:
            ended = at(end) if end is not None else None
            return StepView("a", name, 1, kind, status, 1, None, None, None, None, None, at(1), ended)

        steps = [
            step("pay", "run", "completed", 2),
            step("ask", "signal", "pending", None),
            step("no", "run", "failed", 3),
        ]
        run = run_of(RunStatus.RUNNING, stage("a", StageStatus.SUSPENDED))
        drawn = waterfall.draw(run, {}, Record([event(1, "started", 0), event(2, "suspended", 3)], steps), at(5))
        assert drawn is not None
        assert [(line.step_id, line.bars[0].kind) for line in drawn.lines[1:]] == [
            ("pay", "done"), ("ask", "waiting"), ("no", "failed"),
        ]  # fmt: skip

    def test_a_run_that_has_not_begun_has_none(self) -> None:
        assert waterfall.draw(run_of(RunStatus.PENDING), {}, Record(), at(1)) is None

    def test_attempts_tell_how_each_ended(self) -> None:
        events = [
            event(1, "started", 0), event(2, "retrying", 1, data='{"attempt": 1, "error": "no"}'),
            event(3, "started", 2, data='{"attempt": 2}'), event(4, "suspended", 3),
        ]  # fmt: skip
        found = [(attempt.number, attempt.outcome, attempt.error) for attempt in attempts_of(events, is_suspended=True)]
        assert found == [(1, "FAILED", "no"), (2, "SUSPENDED", None)]


class TestTrace:
    def span(self, span_id: str, parent: str | None, second: float, took: float = 1, **more: Any) -> SpanView:
        given = {"trace_id": "t", "kind": "INTERNAL", "status": "OK", "attributes": "{}", "links": "[]", **more}
        return SpanView(
            span_id=span_id, parent_span_id=parent, name=span_id, start_time=at(second), end_time=at(second + took), **given
        )  # fmt: skip

    def test_spans_stand_behind_their_parents_and_rings_end(self) -> None:
        spans = [self.span("root", None, 0), self.span("late", "root", 2), self.span("inner", "early", 2)]
        spans += [self.span("early", "root", 1), self.span("ring-a", "ring-b", 3), self.span("ring-b", "ring-a", 3)]
        trace = trace_of([*spans, self.span("orphan", "gone", 4)])
        assert trace is not None
        (tree,) = trace.trees
        found = [(line.span.span_id, line.depth) for line in tree.lines]
        assert found[:4] == [("root", 0), ("early", 1), ("inner", 2), ("late", 1)]
        assert sorted(name for name, _ in found) == sorted([each.span_id for each in spans] + ["orphan"])
        assert trace_of([]) is None

    def test_traces_are_told_apart_and_say_what_they_are_linked_to(self) -> None:
        linked = {"trace_id": "u", "links": '[{"trace_id": "t", "span_id": "create"}]', "kind": "CONSUMER"}
        again = '{"tenantry.attempt": 2, "tenantry.replay": true}'
        spans = [
            self.span("create", None, 0),
            self.span("started", "create", 0.5, 0),
            self.span("retry", None, 100, attributes=again, **linked),
            self.span("finished", "create", 101, 0),
        ]
        trace = trace_of(spans)
        assert trace is not None
        assert [(tree.number, tree.is_first, tree.linked_to, len(tree.lines)) for tree in trace.trees] == [
            (1, True, None, 2), (2, True, 1, 1), (1, False, None, 1),
        ]  # fmt: skip
        assert (trace.count, trace.note) == (2, "The timeline is cut where nothing was done for long: 1 m 39 s.")
        assert trace.trees[1].lines[0].notes == ("attempt 2", "replay")

    def test_a_marker_has_a_moment_and_no_duration(self) -> None:
        trace = trace_of([self.span("create", None, 0, 4), self.span("started", "create", 1.5, 0)])
        assert trace is not None
        _, marker = trace.trees[0].lines
        assert (marker.is_moment, marker.took, marker.began) == (True, "", "+1.5 s")

    def test_an_error_is_named(self) -> None:
        trace = trace_of([self.span("job", None, 0, status="ERROR", attributes='{"error.type": "LookupError"}')])
        assert trace is not None
        assert trace.trees[0].lines[0].notes == ("LookupError",)


class TestAttemptsOfSteps:
    def step(self, attempt: int, status: Any, end: float | None = None) -> StepView:
        ended = at(end) if end is not None else None
        return StepView("a", "pay", 1, "run", status, attempt, None, None, None, None, None, at(0), ended)

    def tried(self, attempt: int, began: float, ended: float, error: str | None = "OSError") -> StepTry:
        return StepTry("a", "pay", attempt, at(began), at(ended), error)

    def drawn(
        self,
        step: StepView,
        *tries: StepTry,
        stage_status: StageStatus = StageStatus.RUNNING,
        leased: float | None = None,
    ) -> list[tuple[str, str, float]]:
        leased_at = at(leased) if leased is not None else None
        stretches = stretches_of(StepTime(step, stage("a", stage_status), tries, at(10), leased_at))
        # Side by side from the first claim to the end.
        assert stretches[0].start == at(0)
        assert stretches[-1].end == (step.completed_at or at(10))
        assert all(before.end == after.start for before, after in pairwise(stretches))
        return [(each.kind, each.note, each.seconds) for each in stretches]

    def test_each_attempt_is_what_it_came_to_and_pauses_are_waits(self) -> None:
        tries = [self.tried(1, 0.5, 1), self.tried(2, 3, 4), self.tried(3, 8, 8.5, None)]
        assert self.drawn(self.step(3, "completed", 9), *tries) == [
            ("failed", "Attempt 1", 1), ("waiting", "Before attempt 2", 2), ("failed", "Attempt 2", 1),
            ("waiting", "Before attempt 3", 4), ("done", "Attempt 3", 1),
        ]  # fmt: skip
        (first, *_) = stretches_of(
            StepTime(self.step(3, "completed", 9), stage("a", StageStatus.RUNNING), tries, at(10))
        )
        assert first.title == "Attempt 1: failed with OSError, 1.0 s"
        assert [kind for kind, _, _ in self.drawn(self.step(2, "failed", 4), *tries)] == ["failed", "waiting", "failed"]

    def test_a_pause_goes_on_until_the_next_attempt_or_the_end_of_the_stage(self) -> None:
        paused = self.step(1, "pending")
        assert self.drawn(paused, self.tried(1, 0, 4)) == [
            ("failed", "Attempt 1", 4),
            ("waiting", "Before attempt 2", 6),
        ]
        left = self.drawn(paused, self.tried(1, 0, 4), stage_status=StageStatus.CANCELLED)
        assert left == [("failed", "Attempt 1", 4), ("stopped", "Before attempt 2", 6)]

    def test_an_attempt_that_goes_on_began_within_the_present_execution(self) -> None:
        # It has no span before it ends.
        known = self.tried(1, 0, 2)
        assert self.drawn(self.step(2, "running"), known, leased=7) == [
            ("failed", "Attempt 1", 2), ("waiting", "Before attempt 2", 5), ("running", "Attempt 2", 3),
        ]  # fmt: skip
        assert self.drawn(self.step(2, "running"), known) == [("failed", "Attempt 1", 2), ("running", "Attempt 2", 8)]

    def test_what_is_not_told_is_said_and_not_drawn_as_work(self) -> None:
        assert self.drawn(self.step(3, "completed", 9)) == [("untold", "Attempts 1 to 3", 9)]
        assert self.drawn(self.step(1, "pending")) == [("untold", "Attempt 1", 10)]
        assert self.drawn(self.step(3, "running"), leased=6) == [
            ("untold", "Attempts 1 to 2", 6),
            ("running", "Attempt 3", 4),
        ]
        # A worker died with its second attempt.
        tries = [self.tried(1, 0, 1), self.tried(3, 6, 8, None)]
        assert self.drawn(self.step(3, "completed", 9), *tries) == [
            ("failed", "Attempt 1", 1), ("untold", "Attempt 2", 5), ("done", "Attempt 3", 3),
        ]  # fmt: skip

    def test_spans_that_cannot_be_of_the_row_are_left_out(self) -> None:
        # A redrive from the start counts anew; a body may forge what it likes; clocks differ.
        tries = [self.tried(1, -60, -50), self.tried(2, -40, -30), self.tried(1, -1, 2), self.tried(2, 1, 70, None)]
        tries += [self.tried(7, 3, 4), self.tried(0, 3, 4)]
        assert self.drawn(self.step(2, "completed", 9), *tries) == [
            ("failed", "Attempt 1", 2),
            ("done", "Attempt 2", 7),
        ]
        assert self.drawn(self.step(2, "completed", 9), self.tried(1, 5, 6), self.tried(2, 1, 2)) == [
            ("failed", "Attempt 1", 6), ("untold", "Attempt 2", 3),
        ]  # fmt: skip

    def test_a_step_without_a_second_attempt_is_one_bar(self) -> None:
        assert self.drawn(self.step(1, "completed", 9), self.tried(1, 2, 3, None)) == [("done", "pay", 9)]

    def test_the_waterfall_has_a_bar_for_each_and_says_in_the_legend_what_is_not_told(self) -> None:
        run = run_of(RunStatus.COMPLETED, stage("a", StageStatus.COMPLETED, end=10), end=10)
        steps = [self.step(2, "completed", 10)]
        tries = {("a", "pay"): [self.tried(1, 0, 2), self.tried(2, 4, 10, None)]}
        told = waterfall.draw(run, {}, Record([event(1, "started", 0)], steps, tries), at(10))
        untold = waterfall.draw(run, {}, Record([event(1, "started", 0)], steps), at(10))
        assert told is not None
        assert untold is not None
        line = told.lines[1]
        assert [(bar.kind, bar.x, bar.width) for bar in line.bars] == [
            ("failed", 0, 20), ("waiting", 20, 20), ("done", 40, 60),
        ]  # fmt: skip
        assert (line.took, line.note) == ("10 s", "attempt 2")
        assert [dict(each.legend).get("untold") for each in (told, untold)] == [None, "not told"]


class TestTables:
    def test_every_part_of_every_table_says_what_it_is(self) -> None:
        engine = template_config().instance.engine
        assert engine.loader is not None
        parts = 0
        for name in engine.list_templates():
            text = engine.preprocess(engine.loader.get_source(engine, name)[0], name)
            found = re.findall(r"<(?:table|thead|tbody|tfoot|tr|th|td)\b[^>]*", text)
            assert [part for part in found if ' role="' not in part] == [], name
            parts += len(found)
        assert parts > 100

    def test_a_heading_without_a_scope_is_refused(self) -> None:
        with pytest.raises(KeyError):
            template_config().instance.engine.from_string("<table><tr><th>Of what?</th></tr></table>")


class TestRunList:
    def test_a_run_says_what_its_stages_are_at(self) -> None:
        wait = WaitView("signal", "approval", at(9))
        stages = [
            ActiveStage("pay", StageStatus.SUSPENDED, 1, wait),
            ActiveStage("pack", StageStatus.RUNNING, 2, None),
            ActiveStage("tell", StageStatus.PENDING, 0, None),
        ]
        assert doing_of(stages) == "pay: waits for a signal, pack: runs, attempt 2, …"
        assert doing_of(stages[2:]) == "tell: is in line"


class TestForms:
    def test_a_schema_becomes_fields(self) -> None:
        field = field_of(Order.model_json_schema(), "/input", "Input")
        found = {child.pointer: (child.kind, child.is_required) for child in field.children}
        assert found == {
            "/input/order_id": ("text", True), "/input/total": ("integer", True), "/input/ship_to": ("group", False),
            "/input/lines": ("json", False), "/input/notes": ("lines", False), "/input/due": ("date", False),
            "/input/is_gift": ("switch", False),
        }  # fmt: skip
        (ship_to,) = [child for child in field.children if child.kind == "group"]
        assert [child.choices for child in ship_to.children] == [(), ('"DE"', '"FR"', '"GB"')]

    def test_what_is_left_empty_is_left_out(self) -> None:
        field = field_of(Order.model_json_schema(), "/input", "Input")
        sent = {"/input/order_id": ["a"], "/input/total": ["1"], "/input/ship_to/street": [""], "/input/notes": [" "]}
        assert value_of(field, Form(sent)) == {"order_id": "a", "total": 1}
        sent["/input/ship_to/country"] = ['"FR"']
        assert value_of(field, Form(sent))["ship_to"] == {"street": "", "country": "FR"}

    @pytest.mark.parametrize(
        ("schema", "text", "value"),
        [
            ({"type": "number"}, "1.5", 1.5), ({"type": "number"}, "2", 2), ({"type": "integer"}, " 3 ", 3),
            ({"type": "array", "items": {"type": "integer"}}, "1\n\n2", [1, 2]), ({"type": "boolean"}, "false", False),
            ({"enum": ["a", 1]}, "1", 1), ({}, '{"a": [1]}', {"a": [1]}), ({"type": "string"}, "", ""),
            ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "", None),
            ({"type": "string", "format": "date-time"}, "2026-12-01T09:30", "2026-12-01T09:30:00Z"),
        ],
    )  # fmt: skip
    def test_fields_give_values(self, schema: dict[str, Any], text: str, value: Any) -> None:
        assert value_of(field_of(schema, "/input", "x"), Form({"/input": [text]})) == value

    @pytest.mark.parametrize(
        ("schema", "text"),
        [({"type": "integer"}, "1.5"), ({"type": "number"}, "x"), ({"enum": ["a"]}, '"b"'), ({}, "{"), ({}, "NaN")],
    )
    def test_faults_point_to_their_field(self, schema: dict[str, Any], text: str) -> None:
        with pytest.raises(ProblemError) as caught:
            value_of(field_of(schema, "/input", "x"), Form({"/input": [text]}))
        assert [fault.pointer for fault in caught.value.errors] == ["/input"]

    def test_a_schema_that_contains_itself_ends_in_json(self) -> None:
        schema = {
            "$defs": {"Tree": {"type": "object", "properties": {"child": {"$ref": "#/$defs/Tree"}}}},
            "$ref": "#/$defs/Tree",
        }
        field = field_of(schema, "/input", "Tree")
        depth = 0
        while field.kind == "group":
            (field,) = field.children
            depth += 1
        assert (field.kind, depth) == ("json", 5)

    def test_a_value_goes_back_into_its_fields(self) -> None:
        order = {"order_id": "a", "total": 1, "notes": ["x", "y"], "lines": [{"sku": "p", "count": 1}]}
        shown = filled(field_of(Order.model_json_schema(), "/input", "Input"), order)
        values = {child.field.pointer: child.value for child in shown.children}
        assert values["/input/notes"] == "x\ny"
        assert '"sku": "p"' in values["/input/lines"]


class TestJson:
    @pytest.mark.parametrize(
        "text",
        [
            "{}",
            "[]",
            "null",
            '{"a":1.10,"b":[1,{"c":"x:y,{"}],"d":[]}',
            '"\\"<b>&"',
            "12345678901234567890",
            '{"a" : "é\\u0000"}',
        ],
    )
    def test_every_digit_and_letter_is_shown(self, text: str) -> None:
        shown = json_text.shown(text)
        assert shown is not None
        plain = unescape(re.sub(r"</?span[^>]*>", "", shown.markup))
        assert "".join(plain.split()) == "".join(text.split())

    def test_markup_is_none(self) -> None:
        shown = json_text.shown('{"<script>": "</pre><img>"}')
        assert shown is not None
        assert "<script>" not in shown.markup
        assert "<img>" not in shown.markup

    def test_long_texts_are_cut(self) -> None:
        shown = json_text.shown('{"csv": "' + "x" * 1_000_000)
        assert shown is not None
        assert shown.is_cut
        assert len(shown.markup) < json_text.MAX_SHOWN + 500


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, words.NOTHING), (0, "0 ms"), (0.0002, "< 1 ms"), (120, "2 m"), (86_400, "1 d"), (0.84, "840 ms"), (3.21, "3.2 s"), (42.4, "42 s"), (125, "2 m 5 s"), (7_500, "2 h 5 m"), (100_000, "1 d 3 h")],
)  # fmt: skip
def test_durations_are_told_as_one_says_them(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text
