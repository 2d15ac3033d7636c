"""What is drawn: a random run of one to three groups of stages, and what each of their bodies does.

A stage's body is groups, one after the other, of branches, side by side, of steps in order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

Name: TypeAlias = tuple[str, str]
Kinds: TypeAlias = tuple[tuple[tuple[str, ...], ...], ...]

# Options of the `run` steps, by what their functions do.
RUNS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "thread": {},  # no coroutine: it runs in a thread
    "flaky": {"retries": 2, "retry_delay": "5s"},  # raises at every other call
    "broken": {"retries": 1},  # raises always
    "strict": {},  # raises at its first call, and so does the body: the attempt fails
    "once": {"on_reclaim": "fail"},  # must not run twice
    "timed": {"heartbeat": "20s"},
    "pulsing": {},  # beats by hand before it returns
    "heeding": {},  # ends when it is told to
}
# Those that wait; and "stumble", which is no step: the body fails there in the stage's first attempt.
OTHERS = ("poll", "vain", "signal", "hasty", "sleep", "stumble")
# What a stage's `when` answers: "fickle" says no at every other time, "moody" raises the first time.
WHENS = ("always", "never", "fickle", "moody")


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a stage; `before` are those of the stage that have ended when it begins."""

    stage_id: str
    kind: str
    step_id: str
    before: tuple[str, ...]

    @property
    def name(self) -> Name:
        return self.stage_id, self.step_id


@dataclass(frozen=True)
class Stage:
    """A stage by where it stands, `2b`, and the kinds of its steps, by group and branch."""

    stage_id: str
    when: str | None
    kinds: Kinds

    def groups(self) -> list[list[list[Node]]]:
        """Name the steps by where they stand and what they are: `1b2-sleep`."""
        groups: list[list[list[Node]]] = []
        for number, branches in enumerate(self.kinds, 1):
            earlier = [node for group in groups for branch in group for node in branch]
            groups.append([self._branch(f"{number}{'abc'[place]}", b, earlier) for place, b in enumerate(branches)])
        return groups

    def nodes(self) -> list[Node]:
        return [node for group in self.groups() for branch in group for node in branch]

    def _branch(self, name: str, kinds: tuple[str, ...], earlier: list[Node]) -> list[Node]:
        nodes: list[Node] = []
        for number, kind in enumerate(kinds, 1):
            before = tuple(node.step_id for node in (*earlier, *nodes) if node.kind != "stumble")
            nodes.append(Node(self.stage_id, kind, f"{name}{number}-{kind}", before))
        return nodes


@dataclass(frozen=True)
class Program:
    """The stages of a run, by execution group."""

    groups: tuple[tuple[Stage, ...], ...]

    @property
    def stages(self) -> dict[str, Stage]:
        return {stage.stage_id: stage for group in self.groups for stage in group}

    def group_of(self, stage_id: str) -> int:
        """Return the stage's execution group, from 0."""
        return next(n for n, group in enumerate(self.groups) for stage in group if stage.stage_id == stage_id)

    def nodes(self) -> Iterator[Node]:
        for stage in self.stages.values():
            yield from stage.nodes()


def programs() -> st.SearchStrategy[Program]:
    """One stage with many steps, or several stages with few."""
    single = _bodies(most_groups=3, most_branches=3, most_steps=2).map(lambda kinds: (((None, kinds),),))
    stages = st.tuples(st.none() | st.sampled_from(WHENS), _bodies(most_groups=2, most_branches=2, most_steps=1))
    groups = st.lists(stages, min_size=1, max_size=2).map(tuple)
    several = st.lists(groups, min_size=1, max_size=3).map(tuple)
    return (single | several | several).map(_program)


def _bodies(*, most_groups: int, most_branches: int, most_steps: int) -> st.SearchStrategy[Kinds]:
    # Twice what little is seen of otherwise: one that must not run twice is to be found under way, its worker gone.
    kinds = st.sampled_from((*RUNS, *OTHERS, "once", "pulsing"))
    branches = st.lists(kinds, min_size=1, max_size=most_steps).map(tuple)
    groups = st.lists(branches, min_size=1, max_size=most_branches).map(tuple)
    return st.lists(groups, min_size=1, max_size=most_groups).map(tuple)


def _program(groups: tuple[tuple[tuple[str | None, Kinds], ...], ...]) -> Program:
    return Program(
        tuple(
            tuple(Stage(f"{number}{'ab'[place]}", when, kinds) for place, (when, kinds) in enumerate(group))
            for number, group in enumerate(groups, 1)
        )
    )
