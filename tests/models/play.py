"""Performs a program, and keeps the diary of what its functions did.

Each function stands at a gate while it is under way, and notes how it ended just before it does.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from kernel import (
    Fence,
    Registry,
    StageContext,
    Step,
    StepNotReplaySafeError,
    StepTimeoutError,
    stage,
    workflow,
)
from tests.models.process import HERE, Execution
from tests.models.program import RUNS, Name, Node, Program, Stage

LEASE_S = 60
READY_AT = 3
# An execution of a step's function: its external key, which a restart of the run changes, and its attempt.
Call: TypeAlias = tuple[str, int]


class RefusedError(Exception):
    """What a function raises that is to fail."""


CAUGHT = (RefusedError, StepTimeoutError, StepNotReplaySafeError)


class Play:
    """Performs a program, and counts in `seen` what each `when` did.

    `on_begin` is told of each function that is about to begin, with its node and its step.
    """

    def __init__(self, program: Program, seen: Counter[str]) -> None:
        self.program = program
        self.seen = seen
        self.on_begin: Callable[[Node, Step], None] = lambda _node, _step: None
        self.asked_when: Counter[str] = Counter()
        self.calls: Counter[Name] = Counter()
        self.returned: dict[Call, int] = {}
        self.raised: set[Call] = set()
        self.polled: dict[Name, set[int]] = {}
        self.executions: dict[Fence, Execution] = {}

    def registry(self, max_attempts: int) -> Registry:
        """Return the program as the workflow `play`."""
        built = workflow("play", input=dict[str, Any])
        for group in self.program.groups:
            stages = [self._stage(planned, max_attempts) for planned in group]
            built = built.pipe(*stages) if len(stages) == 1 else built.parallel(*stages)
        return Registry([built.build()])

    def has_ended(self, call: Call) -> bool:
        """Whether a function that began has returned or raised by itself."""
        return call in self.returned or call in self.raised

    def _stage(self, planned: Stage, max_attempts: int) -> Any:
        when = partial(self._when, planned) if planned.when is not None else None

        @stage(planned.stage_id, max_attempts=max_attempts, when=when)
        async def act(ctx: StageContext, given: Any) -> Any:
            return await self._body(planned, ctx, given)

        return act

    async def _when(self, planned: Stage, _ctx: StageContext[Any]) -> bool:
        await HERE.get().process.gate(f"when {planned.stage_id}")
        self.asked_when[planned.stage_id] += 1
        number = self.asked_when[planned.stage_id]
        if planned.when == "moody" and number == 1:
            self.seen["when raises"] += 1
            raise RefusedError("in a mood")
        answer = planned.when != "never" and (planned.when != "fickle" or number % 2 == 0)
        self.seen[f"when says {'yes' if answer else 'no'}"] += 1
        return answer

    async def _body(self, planned: Stage, ctx: StageContext[Any], given: Any) -> Any:
        """Return what it was given and what each step came to, as the stage is nested; every second group is a task group."""
        execution = HERE.get().execution
        self.executions[execution.job.fence] = execution
        seen: list[list[list[Any]]] = []
        try:
            for number, group in enumerate(planned.groups()):
                if number % 2:
                    async with asyncio.TaskGroup() as tasks:
                        made = [tasks.create_task(self._branch(ctx, branch)) for branch in group]
                    seen.append([task.result() for task in made])
                else:
                    seen.append(await asyncio.gather(*(self._branch(ctx, branch) for branch in group)))
        finally:
            execution.is_over = True
        return {"given": given, "seen": seen}

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
                    poll=partial(self._poll, node.name),
                    ready=lambda number: node.kind == "poll" and number >= READY_AT,
                    every="1m",
                    timeout="5m" if node.kind == "vain" else "9999d",
                    poll_backoff="2m",
                )
        function = self._call_in_thread if node.kind == "thread" else self._call
        return await ctx.step.run(step_id, partial(function, node), lease=LEASE_S, **RUNS[node.kind])

    async def _poll(self, name: Name) -> int:
        """Raise the first time, then count."""
        await HERE.get().process.gate(f"poll {'/'.join(name)}")
        self.calls[name] += 1
        if self.calls[name] == 1:
            raise RefusedError("the first poll")
        self.polled.setdefault(name, set()).add(self.calls[name])
        return self.calls[name]

    async def _call(self, node: Node, step: Step) -> int:
        """Stand for an effect; it returns the number of its call, so that no two outcomes are the same."""
        here = HERE.get()
        number = self._begin(node, step)
        await here.process.gate(_gate("in", node, step))
        if node.kind == "pulsing":
            await step.heartbeat()
            await here.process.gate(_gate("still in", node, step))
        if node.kind == "heeding":
            if step.abort_signal.aborted:
                self.raised.add((step.external_key, step.attempt))
            step.abort_signal.raise_if_aborted()
        if node.kind == "broken" or (node.kind == "flaky" and number % 2) or (node.kind == "strict" and number == 1):
            self.raised.add((step.external_key, step.attempt))
            raise RefusedError(node.step_id)
        return self._end(step, number)

    def _call_in_thread(self, node: Node, step: Step) -> int:
        """The same in a thread, which begins and ends where the loop can see it."""

        async def begin() -> int:
            return self._begin(node, step)

        async def end() -> int:
            return self._end(step, number)

        here = HERE.get()
        number = _on_loop(begin())
        _on_loop(here.process.gate_of_thread(_gate("in", node, step)))
        return _on_loop(end())

    def _begin(self, node: Node, step: Step) -> int:
        here = HERE.get()
        here.process.check()
        here.execution.began.add(node.step_id)
        self.on_begin(node, step)
        self.calls[node.name] += 1
        return self.calls[node.name]

    def _end(self, step: Step, number: int) -> int:
        self.returned[step.external_key, step.attempt] = number
        return number


def _gate(where: str, node: Node, step: Step) -> str:
    return f"{where} {node.stage_id}/{node.step_id}#{step.attempt}"


def _on_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Have the loop do something for a thread of the world's."""
    return asyncio.run_coroutine_threadsafe(work, HERE.get().process.loop).result()
