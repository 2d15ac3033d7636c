"""A run as a tree on a terminal: its stages in their groups, what each does and for how long, and how far it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from service.cli.output import STYLES, wait_of
from service.cli.words import duration, one_line

TERMINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_MARKS: Final = {
    "COMPLETED": "✓", "RUNNING": "▶", "FAILED": "✗", "CANCELLED": "✗", "SKIPPED": "↷", "SUSPENDED": "◌", "PENDING": "·",
}  # fmt: skip
_BAR: Final = 16
_LONGEST_NAME: Final = 30
_STATUS_WIDTH: Final = len("COMPLETED")
_TIME_WIDTH: Final = len("99.9 ms")
Stage = Mapping[str, Any]


@dataclass(slots=True)
class Watched:
    """A run as it was last seen, what its bodies said about their progress, and the stages its workflow has.

    `trouble` says why it cannot be looked at just now, `hint` why it has been waiting for a worker for a while.
    """

    run: dict[str, Any]
    plan: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    progress: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    title: str = ""
    trouble: str = ""
    hint: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.run["status"] in TERMINAL

    @property
    def excuse(self) -> str:
        """What to say about the trouble."""
        return f"{one_line(self.trouble).rstrip('.')}. Trying again." if self.trouble else ""

    def stages(self) -> list[dict[str, Any]]:
        """Return every stage of the workflow, those that were not reached yet included."""
        known = {stage["id"]: stage for stage in self.run.get("stages") or []}
        planned = [known.pop(stage["id"], stage) for stage in self.plan]
        return sorted([*planned, *known.values()], key=itemgetter("number"))


def render(all_watched: Sequence[Watched]) -> Group:
    """Draw the runs, one tree each, a stage a line."""
    return Group(*(part for watched in all_watched for part in _parts(watched)))


def _parts(watched: Watched) -> Iterator[Tree | Text]:
    run = watched.run
    heading = Text.assemble(
        (f"{watched.title} · " if watched.title else "", "bold"),
        (run["workflow"], "bold"),
        (f"  {run['id']}  ", "dim"),
        (run["status"], STYLES.get(run["status"], "")),
    )
    redrives = run.get("redrive_count") or 0
    if redrives:
        heading.append(f"  redriven {'once' if redrives == 1 else f'{redrives} times'}", "dim")
    tree = Tree(heading, guide_style="dim")
    stages = watched.stages()
    width = min(max((len(stage["name"]) for stage in stages), default=0), _LONGEST_NAME)
    for _, members in groupby(stages, itemgetter("group")):
        side_by_side = list(members)
        is_alone = len(side_by_side) == 1
        branch = tree if is_alone else tree.add(Text("side by side", style="dim"))
        for stage in side_by_side:
            branch.add(_row(stage, watched, width if is_alone else max(width - 4, 1)))
    yield tree
    if run.get("error"):
        yield Text(one_line(run["error"]["message"]), style="red")
    for remark in filter(None, (watched.excuse, watched.hint)):
        yield Text(one_line(remark), style="yellow")


def _row(stage: Stage, watched: Watched, width: int) -> Text:
    status = stage.get("status", "")
    name = one_line(stage["name"])
    row = Text(no_wrap=True, overflow="ellipsis")
    row.append(f"{_MARKS.get(status, '·')} ", STYLES.get(status, "dim"))
    row.append(f"{name if len(name) <= width else name[: width - 1] + '…':<{width}}")
    if status:
        row.append(f"  {status.lower():<{_STATUS_WIDTH}}", STYLES.get(status, "dim"))
        row.append(f"  {_lasted(stage):>{_TIME_WIDTH}}", "dim")
        for text, style in _details(stage, watched):
            row.append(f"  {text}", style)
    row.rstrip()
    return row


def _details(stage: Stage, watched: Watched) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of a stage beside its status, with the style it is said in."""
    attempt = stage.get("attempt") or 0
    if attempt > 1:
        # A redrive gives the whole budget again, while attempts are counted on.
        limit = "" if watched.run.get("redrive_count") else f" of {stage['max_attempts']}"
        yield f"attempt {attempt}{limit}", "yellow"
    said = watched.progress.get(stage["id"])
    if stage["status"] == "RUNNING" and said is not None:
        fraction = min(max(float(said.get("fraction") or 0.0), 0.0), 1.0)
        done = round(fraction * _BAR)
        yield f"{'━' * done}{'─' * (_BAR - done)} {fraction:4.0%}", "cyan"
        yield one_line(str(said.get("message") or "")), ""
    elif (wait := wait_of(stage)) is not None:
        yield f"waits for {one_line(wait)}{_left(stage['waiting_for'].get('until'))}", ""
    elif stage["status"] == "PENDING" and attempt:
        yield f"tried again soon: {one_line(stage.get('error_message') or '')}", "red"
    elif stage.get("error_message"):
        yield one_line(stage["error_message"]), "red"


def _left(until: str | None) -> str:
    if until is None:
        return ""
    left_s = (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds()
    return f", {duration(left_s)} left" if left_s > 0 else ", now due"


def _lasted(stage: Stage) -> str:
    """Return how long it took from its first attempt on, so far if it is not over."""
    if not stage.get("started_at"):
        return ""
    end = datetime.fromisoformat(stage["completed_at"]) if stage.get("completed_at") else datetime.now(UTC)
    # The clock of this machine may be behind the database's.
    return duration(max((end - datetime.fromisoformat(stage["started_at"])).total_seconds(), 0.0))
