"""What a body says while it runs: log lines, progress and annotations, kept until the host takes them.

Calls are plain, cheap and safe from any thread; nothing here waits. What is not drained in time is bounded: the newest
log lines over the bound are counted, not kept.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from threading import Lock
from time import monotonic
from typing import Literal, TypeAlias, get_args

from pydantic_core import to_json

from kernel.errors import PayloadTooLargeError
from kernel.payloads import clean_text, dump

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]

# Of an execution, between two looks of its host. A statement takes those of many executions.
MAX_BUFFERED_LOGS = 1_000
MAX_BUFFERED_CHARACTERS = 1_048_576
MAX_FIELDS_BYTES = 16_384
# Of an attempt: they are stored with its outcome, in one statement.
MAX_ANNOTATIONS = 1_000
MAX_ANNOTATED_BYTES = 4_194_304
MAX_KEY_LENGTH = 255
# Progress is written at most once a second a stage; less, because whoever asks every second may be a little early.
PROGRESS_EVERY_S = 0.95
_LEVELS = frozenset(get_args(LogLevel))


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One log line; `fields` is the JSON text of an object."""

    level: LogLevel
    message: str
    fields: str
    logged_at: datetime

    @property
    def size(self) -> int:
        """How many characters it has."""
        return len(self.message) + len(self.fields)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a body is, `fraction` from 0 to 1."""

    fraction: float
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a body has said since it was last asked."""

    logs: tuple[LogRecord, ...] = ()
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation; `value` and `payload` are JSON texts."""

    key: str
    value: str
    payload: str | None

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return sum(len(text.encode()) for text in (self.key, self.value, self.payload or ""))


class StageJournal:
    """Collects what one execution says. The body writes, its host drains."""

    __slots__ = (
        "_annotated_bytes", "_annotations", "_dropped_logs", "_lock", "_logged", "_logs", "_progress", "_told_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = Lock()
        self._logs: list[LogRecord] = []
        self._logged = 0
        self._dropped_logs = 0
        self._progress: Progress | None = None
        self._told_at: float | None = None
        self._annotations: list[Annotation] = []
        self._annotated_bytes = 0

    @property
    def has_reports(self) -> bool:
        """Whether log lines or progress wait to be written."""
        return bool(self._logs or self._dropped_logs) or self._progress is not None

    def log(self, level: LogLevel, message: str, fields: dict[str, object]) -> None:
        """Add a log line. Fields without a JSON form are written as their text.

        Raises:
            ValueError: the level is none of debug, info, warning, error, critical.
        """
        if level not in _LEVELS:
            error = f"log level {level!r} is none of {', '.join(get_args(LogLevel))}"
            raise ValueError(error)
        record = LogRecord(level, clean_text(str(message)), _fields_text(fields), _now())
        with self._lock:
            if len(self._logs) < MAX_BUFFERED_LOGS and self._logged + record.size <= MAX_BUFFERED_CHARACTERS:
                self._logs.append(record)
                self._logged += record.size
            else:
                self._dropped_logs += 1

    def progress(self, fraction: float, message: str = "") -> None:
        """Replace what is known of the progress.

        Raises:
            ValueError: the fraction is not between 0 and 1.
        """
        if not isfinite(fraction) or not 0 <= fraction <= 1:
            error = f"progress {fraction!r} is not between 0 and 1"
            raise ValueError(error)
        progress = Progress(float(fraction), clean_text(str(message), 1_000))
        with self._lock:
            self._progress = progress

    def annotate(self, key: str, value: object, payload: object = None) -> None:
        """Add an annotation, to be stored with the stage's outcome.

        Raises:
            ValueError: the key has not 1 to 255 characters, or there are too many annotations.
            PayloadError: value or payload cannot be stored.
            PayloadTooLargeError: with it, the attempt's annotations are more than an attempt may have.
        """
        if not 1 <= len(key) <= MAX_KEY_LENGTH or clean_text(key) != key:
            error = f"an annotation's key has 1 to {MAX_KEY_LENGTH} characters, none of them NUL"
            raise ValueError(error)
        annotation = Annotation(key, dump(value), None if payload is None else dump(payload))
        with self._lock:
            if len(self._annotations) >= MAX_ANNOTATIONS:
                error = f"an attempt has at most {MAX_ANNOTATIONS} annotations"
                raise ValueError(error)
            size_bytes = self._annotated_bytes + annotation.size_bytes
            if size_bytes > MAX_ANNOTATED_BYTES:
                raise PayloadTooLargeError(size_bytes, MAX_ANNOTATED_BYTES)
            self._annotations.append(annotation)
            self._annotated_bytes = size_bytes

    def drain_logs(self) -> list[LogRecord]:
        """Take the log lines since the last call; a last one says how many were dropped, if any."""
        with self._lock:
            logs, self._logs, self._logged = self._logs, [], 0
            dropped, self._dropped_logs = self._dropped_logs, 0
        if dropped:
            logs.append(LogRecord("warning", f"{dropped} log lines were dropped", "{}", _now()))
        return logs

    def take_progress(self) -> Progress | None:
        """Take the latest progress; None when there is no news, or some was taken within the last second."""
        with self._lock:
            if self._progress is None or not self._is_time():
                return None
            self._told_at = monotonic()
            progress, self._progress = self._progress, None
        return progress

    def take_report(self) -> Report:
        """Take what is left when the body has ended; progress that comes too soon after the last is given up."""
        report = Report(tuple(self.drain_logs()), self.take_progress())
        with self._lock:
            self._progress = None
        return report

    def _is_time(self) -> bool:
        return self._told_at is None or monotonic() - self._told_at >= PROGRESS_EVERY_S

    def annotations(self) -> list[Annotation]:
        """Return the annotations so far; they stay."""
        with self._lock:
            return list(self._annotations)


def _now() -> datetime:
    return datetime.now(UTC)


def _fields_text(fields: dict[str, object]) -> str:
    """Return fields as JSON text that can be stored, whatever they hold: a log line must not fail its body."""
    if not fields:
        return "{}"
    try:
        text = to_json(_storable(fields), inf_nan_mode="strings", bytes_mode="base64", fallback=_text).decode()
        if len(text.encode()) <= MAX_FIELDS_BYTES and "\\u0000" not in text:
            return text
    except Exception:  # noqa: BLE001 - fields may be anything
        text = ""
    return dump(_shortened(fields))


def _shortened(fields: dict[str, object]) -> dict[str, str]:
    """Return the first fields as texts, as many as there is room for."""
    shortened: dict[str, str] = {}
    room = MAX_FIELDS_BYTES
    for key, value in fields.items():
        name, text = clean_text(key, 200), clean_text(_text(value), 1_000)
        # As JSON: quotes and what must be escaped.
        room -= len(dump({name: text}).encode())
        if room < 0:
            break
        shortened[name] = text
    return shortened


def _storable(value: dict[str, object]) -> dict[str, object]:
    """Return plain texts cleaned; everything else is left to the encoder."""
    return {key: clean_text(item, MAX_FIELDS_BYTES) if isinstance(item, str) else item for key, item in value.items()}


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - foreign code
        return f"<{type(value).__name__}>"
