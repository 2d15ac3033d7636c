"""Where log records go: one JSON object a line on stderr from the servers, nowhere from commands that answer."""

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

import orjson

# What every record has; the rest was given as `extra` and belongs in the line.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one JSON object: time, level, logger, event and its fields; a traceback is a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS).decode()


def log_json(level: int = logging.INFO) -> None:
    """Write records of this level and above to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It tells of every plugin it loads, and is loaded to know the newest revision.
    logging.getLogger("alembic").setLevel(logging.WARNING)


def log_nothing() -> None:
    """Drop all records: a command says itself what went wrong, in one line. TENANTRY_DEBUG brings them back."""
    if not os.environ.get("TENANTRY_DEBUG"):
        logging.basicConfig(handlers=[logging.NullHandler()], force=True)
