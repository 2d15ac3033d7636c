"""Stretches of time on a page: what something that takes time was at, from when to when."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from service.console.words import duration

# What something is that takes time; the names are classes of the style.
QUEUED, RUNNING, DONE, FAILED, WAITING, BACKOFF, STOPPED, UNTOLD = (
    "queued", "running", "done", "failed", "waiting", "backoff", "stopped", "untold",
)  # fmt: skip
WORDS: Final[Mapping[str, str]] = {
    QUEUED: "in the queue", RUNNING: "running", DONE: "ran", FAILED: "failed", WAITING: "waiting",
    BACKOFF: "pause before the next attempt", STOPPED: "stopped", UNTOLD: "no more is told of it",
}  # fmt: skip
# What is drawn as long as it was, however long: in all else nothing is done.
WORK: Final = frozenset({RUNNING, DONE, FAILED, STOPPED, UNTOLD})


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something that takes time; `note` says more than its kind does, `error` names what it failed with."""

    kind: str
    start: datetime
    end: datetime
    note: str = ""
    error: str = ""

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.end - self.start).total_seconds()

    @property
    def title(self) -> str:
        """Return it in words."""
        kind = f"{WORDS[self.kind]} with {self.error}" if self.error else WORDS[self.kind]
        words = f"{kind}, {duration(self.seconds)}"
        return f"{self.note}: {words}" if self.note else words
