"""Where log records of the servers go: a line on stderr, JSON or text."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from opentelemetry import trace

from kernel.payloads import clean_text
from kernel.work import current_work
from service.cli.words import printable

# What every record has; the rest was given as `extra` and belongs in the line.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_IDENTITY: Final = frozenset({"tenant_id", "run_id", "trace_id", "span_id"})


def _correlate(record: logging.LogRecord) -> bool:
    """Say in a record on whose behalf it was written, and in which span.

    What it says itself stays, but for whose it is: a body could file its lines under another tenant otherwise.
    """
    work = current_work()
    span = trace.get_current_span().get_span_context()
    found: dict[str, object] = {}
    if work is not None:
        found = {
            "tenant_id": work.tenant_id, "run_id": work.run_id, "stage_id": work.stage, "step_id": work.step,
            "attempt": work.attempt,
        }  # fmt: skip
    if span.is_valid:
        found |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    for name, value in found.items():
        if value is not None and (name in _IDENTITY or not hasattr(record, name)):
            setattr(record, name, value)
    return True


def _told(value: object) -> object:
    if value is None or isinstance(value, bool | float | datetime):
        return value
    try:
        return clean_text(str(value))
    except Exception:  # noqa: BLE001 - foreign code
        return f"<{type(value).__name__}>"


class JsonLines(logging.Formatter):
    """A record as one JSON object: time, level, logger, event and its fields; a traceback is a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        own: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            own["exception"] = self.formatException(record.exc_info)
        said = {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in own}
        try:
            return orjson.dumps(own | said, default=str, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:
            # Lone surrogates, numbers beyond 64 bits, a value within itself or without a text: told as well as can be.
            told = {clean_text(name): _told(value) for name, value in (own | said).items()}
            return orjson.dumps(told, option=orjson.OPT_UTC_Z).decode()


class TextLines(logging.Formatter):
    """A record as a line for people: time, level, logger and event, then its fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end; a traceback stands below it."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        parts = [time, f"{record.levelname:7}", record.name, record.getMessage()]
        parts += [f"{name}={value}" for name, value in vars(record).items() if name not in _STANDARD]
        line = printable(" ".join(parts).replace("\n", " "))
        return f"{line}\n{printable(self.formatException(record.exc_info))}" if record.exc_info else line


FORMATS: Final[dict[str, type[logging.Formatter]]] = {"json": JsonLines, "text": TextLines}


def log_lines(form: str = "json", level: str = "info") -> None:
    """Write records of this level and above to stderr, one line each, as `json` or `text`; warnings of Python too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATS[form]())
    handler.addFilter(_correlate)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    # It tells of every plugin it loads, and is loaded to know the newest revision.
    logging.getLogger("alembic").setLevel(logging.WARNING)
