"""Lines of the servers' log: one record a line, JSON or text, fields and tracebacks included."""

import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator

import pytest

from service.cli.logs import JsonLines, TextLines, log_lines


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def record(message: str, *, error: BaseException | None = None, **fields: object) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("tenantry.test", logging.WARNING, __file__, 1, message, (), info)
    vars(made).update(fields)
    return made


def test_a_json_line_holds_time_level_logger_event_and_fields() -> None:
    line = JsonLines().format(record("job\ntaken", run_id="r-1", lanes={1: "a"}))
    assert "\n" not in line
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", found.pop("time"))
    assert found == {
        "level": "warning", "logger": "tenantry.test", "event": "job\ntaken", "run_id": "r-1", "lanes": {"1": "a"},
    }  # fmt: skip


def test_a_text_line_holds_the_same_for_people() -> None:
    line = TextLines().format(record("job\ntaken", run_id="r-1"))
    assert re.fullmatch(r"\S+\+00:00 WARNING tenantry\.test job taken run_id=r-1", line)


@pytest.mark.parametrize("form", [JsonLines, TextLines])
def test_a_traceback_belongs_to_its_record(form: type[logging.Formatter]) -> None:
    text = form().format(record("failed", error=ValueError("broken")))
    assert "ValueError: broken" in text
    if form is JsonLines:
        assert "ValueError: broken" in json.loads(text)["exception"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_levels_below_the_setting_are_dropped_and_warnings_of_python_are_records(
    form: str, restored: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_lines(form, "warning")
    logging.getLogger("tenantry.test").info("quiet")
    logging.getLogger("tenantry.test").warning("loud", extra={"run_id": "r-1"})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("{") == (form == "json") for line in lines)
    assert "r-1" in lines[0]
    assert "DeprecationWarning" in lines[1]
    assert sys.stderr is not None


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("form", [JsonLines, TextLines])
@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], 2**80, CIRCLE, {"\ud800": 1}, "a\0b"], ids=repr)
def test_whatever_a_record_holds_there_is_a_line_of_it(form: type[logging.Formatter], value: object) -> None:
    line = form().format(record("told \ud800", field=value))
    assert "told" in line
    assert "field" in line
    if form is JsonLines:
        assert json.loads(line)["level"] == "warning"


def test_what_has_no_text_is_told_by_its_kind() -> None:
    assert json.loads(JsonLines().format(record("told", field=Unspeakable())))["field"] == "<Unspeakable>"


def test_fields_do_not_pass_for_what_the_line_itself_says() -> None:
    said = {"level": "info", "logger": "kernel", "event": "all is well", "time": "never"}
    line = json.loads(JsonLines().format(record("told", **said)))
    assert (line["level"], line["logger"], line["event"]) == ("warning", "tenantry.test", "told")


def test_a_text_line_is_one_line_that_no_terminal_obeys() -> None:
    line = TextLines().format(record("told\r\x1b[2J", field="\x9b31m\n2026-12-03T00:00:00 INFO forged"))
    assert not set(line) & {"\r", "\n", "\x1b", "\x9b"}
