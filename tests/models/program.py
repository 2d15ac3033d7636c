"""Random bodies of steps, and the diary of what their functions did.

A program is groups, one after the other, of branches, side by side, of steps in order. Each function stands at a gate
while it is under way, and notes how it ended just before it does.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from kernel import Fence, StageContext, Step, StepNotReplaySafeError, StepTimeoutError
from tests.models.process import HERE, Execution

# Options of the `run` steps, by what their functions do.
RUNS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
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
LEASE_S = 60
READY_AT = 3


class RefusedError(Exception):
    """What a function raises that is to fail."""


CAUGHT = (RefusedError, StepTimeoutError, StepNotReplaySafeError)


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a program; `before` are those that have ended when it begins."""

    kind: str
    step_id: str
    before: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """The kinds of steps, by group and branch."""

    kinds: tuple[tuple[tuple[str, ...], ...], ...]

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
            nodes.append(Node(kind, f"{name}{number}-{kind}", before))
        return nodes


def programs() -> st.SearchStrategy[Program]:
    # Twice what little is seen of otherwise: one that must not run twice is to be found under way, its worker gone.
    kinds = st.sampled_from((*RUNS, *OTHERS, "once", "pulsing"))
    branches = st.lists(st.lists(kinds, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3).map(tuple)
    return st.lists(branches, min_size=1, max_size=3).map(tuple).map(Program)


class Play:
    """Performs a program. `on_begin` is told of each function that is about to begin, with its node and its step."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.on_begin: Callable[[Node, Step], None] = lambda _node, _step: None
        self.calls: Counter[str] = Counter()
        self.returned: dict[tuple[str, int], int] = {}
        self.raised: set[tuple[str, int]] = set()
        self.polled: dict[str, set[int]] = {}
        self.keys: dict[str, set[str]] = {}
        self.executions: dict[Fence, Execution] = {}

    async def body(self, ctx: StageContext[Any]) -> Any:
        """Return what each step came to, as the program is nested; every second group is a task group."""
        execution = HERE.get().execution
        self.executions[execution.job.fence] = execution
        seen: list[list[list[Any]]] = []
        try:
            for number, group in enumerate(self.program.groups()):
                if number % 2:
                    async with asyncio.TaskGroup() as tasks:
                        made = [tasks.create_task(self._branch(ctx, branch)) for branch in group]
                    seen.append([task.result() for task in made])
                else:
                    seen.append(await asyncio.gather(*(self._branch(ctx, branch) for branch in group)))
        finally:
            execution.is_over = True
        return seen

    async def _branch(self, ctx: StageContext[Any], branch: list[Node]) -> list[Any]:
        return [await self._step(ctx, node) for node in branch]

    async def _step(self, ctx: StageContext[Any], node: Node) -> Any:
        execution = HERE.get().execution
        if not execution.is_over:
            execution.asked.add(node.step_id)
        try:
            value = await self._ask(ctx, node)
        except CAUGHT as error:
            if node.kind == "strict":
                raise
            value = f"failed: {type(error).__name__}"
        if not execution.is_over:
            execution.got[node.step_id] = value
        return value

    async def _ask(self, ctx: StageContext[Any], node: Node) -> Any:
        step_id = node.step_id
        match node.kind:
            case "stumble":
                if ctx.attempt == 1:
                    raise RuntimeError("stumbled")
                return "walked"
            case "sleep":
                return await ctx.step.sleep(step_id, "10m")
            case "signal" | "hasty":
                return await ctx.step.wait_for_signal(step_id, timeout="20m" if node.kind == "hasty" else "9999d")
            case "poll" | "vain":
                return await ctx.step.wait_for(
                    step_id,
                    poll=partial(self._poll, step_id),
                    ready=lambda number: node.kind == "poll" and number >= READY_AT,
                    every="1m",
                    timeout="5m" if node.kind == "vain" else "9999d",
                    poll_backoff="2m",
                )
        return await ctx.step.run(step_id, partial(self._call, node), lease=LEASE_S, **RUNS[node.kind])

    async def _poll(self, step_id: str) -> int:
        """Raise the first time, then count."""
        await HERE.get().process.gate(f"poll {step_id}")
        self.calls[step_id] += 1
        if self.calls[step_id] == 1:
            raise RefusedError("the first poll")
        self.polled.setdefault(step_id, set()).add(self.calls[step_id])
        return self.calls[step_id]

    async def _call(self, node: Node, step: Step) -> int:
        """Stand for an effect; it returns the number of its call, so that no two outcomes are the same."""
        here, step_id = HERE.get(), node.step_id
        here.process.check()
        here.execution.began.add(step_id)
        self.on_begin(node, step)
        self.keys.setdefault(step_id, set()).add(step.external_key)
        self.calls[step_id] += 1
        number = self.calls[step_id]
        await here.process.gate(f"in {step_id}#{step.attempt}")
        if node.kind == "pulsing":
            await step.heartbeat()
            await here.process.gate(f"still in {step_id}#{step.attempt}")
        if node.kind == "heeding":
            step.abort_signal.raise_if_aborted()
        if node.kind == "broken" or (node.kind == "flaky" and number % 2) or (node.kind == "strict" and number == 1):
            self.raised.add((step_id, step.attempt))
            raise RefusedError(step_id)
        self.returned[step_id, step.attempt] = number
        return number
