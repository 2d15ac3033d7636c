"""The steps under way in one execution: each in a task of its own, which the body that leaves meanwhile waits for.

A step beside one that suspends may lose its caller, but no claim, effect or poll that is under way.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from time import monotonic
from typing import Any

from kernel.execution.abort import AbortSignal
from kernel.execution.leaving import Suspension
from kernel.execution.ledger import Wait

# How long a body that leaves to wait lets a poll beside it take, which has no lease.
LANDING_S = 300.0
# For how long a wait holds its body when branches beside it do nothing with steps, and how often, while they do.
HOLD_S = 0.1
HOLDS = 10
# Whose step's function this is called from, if from one.
_WITHIN: ContextVar["Flights | None"] = ContextVar("tenantry_within_step", default=None)


@dataclass(slots=True)
class _Flight:
    """A step under way: what a body that leaves meanwhile waits for, and how long that is awaited (monotonic)."""

    wait: Wait
    lands_by: float
    has_ended: bool = False

    @property
    def has_effect(self) -> bool:
        """Whether it must come to its end: a poll may be cancelled and made again."""
        return self.wait.kind == "run"

    @property
    def is_outlasting(self) -> bool:
        """Whether its function is still at work, once nobody waits for it any more."""
        return self.has_effect and not self.has_ended


class Flights:
    """Takes steps through their work, holds back what would take the body away from them, and waits for them to end.

    `moves` counts what happens to steps, so that a wait sees whether branches beside it go on.
    """

    def __init__(self, abort: AbortSignal) -> None:
        self.body: asyncio.Task[Any] | None = None
        self.has_suspended = False
        self.moves = 0
        self._abort = abort
        self._in_flight: dict[asyncio.Task[Any], _Flight] = {}
        self._unheard: list[Wait] = []
        self._is_over = False
        self._has_landed = False

    @property
    def may_begin(self) -> bool:
        """Whether a step may begin: whose body has left, a step under way may still ask for others inside of it."""
        return not self._is_over or (not self._has_landed and _WITHIN.get() is self)

    async def fly(self, wait: Wait, lasts_s: float, work: Coroutine[Any, Any, Any]) -> Any:
        """Do a step's work in a task of its own, and return what it returns.

        A step beside it that suspends first may cancel this call, but no claim, effect or poll under way: what becomes
        of them is still heard when the execution concludes.
        """
        # It is the step around it that hears, and is waited for.
        is_inner = _WITHIN.get() is self
        context = copy_context()
        context.run(_WITHIN.set, self)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._in_flight[task] = _Flight(wait, monotonic() + lasts_s)
        task.add_done_callback(self._landed)
        self._unheard.append(wait)
        try:
            result = await asyncio.shield(task)
        except Suspension:
            await self._hold_back()
            self.has_suspended = True
            raise
        except Exception:
            self.hear(wait, always=is_inner)
            raise
        self.hear(wait, always=is_inner)
        return result

    def hear(self, wait: Wait, *, always: bool = False) -> None:
        """Note that what a step came to is no news to the body, which has not been sent away before, or `always`."""
        if wait in self._unheard and (always or not self.has_suspended):
            self._unheard.remove(wait)

    def hold(self, lease_s: float, task: "asyncio.Task[Any] | None" = None) -> None:
        """Note that the lease of the step whose task this is, or `task`, lasts so long from now."""
        own = task or asyncio.current_task()
        if own in self._in_flight:
            self._in_flight[own].lands_by = monotonic() + lease_s

    def end_function(self) -> None:
        """Note that the function of the step whose task this is has ended: its outcome is all that is left to write."""
        own = asyncio.current_task()
        if own in self._in_flight:
            self._in_flight[own].has_ended = True

    async def land(self, *, is_suspending: bool) -> None:
        """Wait for the steps in flight, the body having left, each at most until its lease has run out.

        Polls count only where the execution goes on: else they are cancelled.
        """
        self._is_over = True
        if not is_suspending:
            self._cancel_polls()
        while self._in_flight:
            remaining_s = max(flight.lands_by for flight in self._in_flight.values()) - monotonic()
            if remaining_s <= 0:
                break
            await asyncio.wait(list(self._in_flight), timeout=remaining_s)
            await asyncio.sleep(0)
        self._cancel_polls()
        self._has_landed = True

    def cancel(self) -> "list[asyncio.Task[Any]]":
        """Cancel the steps in flight, the body having been cancelled, and return their tasks."""
        self._is_over = self._has_landed = True
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        return tasks

    def news(self) -> list[Wait]:
        """Return what the body was told too late to go on, like a signal that came meanwhile.

        Not so a function that outlasts its lease: it would be called again and again beside itself.
        """
        outlasting = {flight.wait for flight in self._in_flight.values() if flight.is_outlasting}
        return [wait for wait in self._unheard if wait not in outlasting]

    async def _hold_back(self) -> None:
        """Let branches beside a wait come to their next steps, before it takes the body away from all of them.

        A body that awaits the wait by itself has none beside it. A branch that is cancelled meanwhile, by a timeout of
        its own for instance, leaves to wait too; one whose body is cancelled, as on a stop, is cancelled.
        """
        if asyncio.current_task() is self.body or self._is_over or self._abort.aborted:
            return
        try:
            for _ in range(HOLDS):
                moves = self.moves
                await asyncio.sleep(HOLD_S)
                if moves == self.moves:
                    return
        except asyncio.CancelledError:
            if self.body is not None and self.body.cancelling():
                raise

    def _landed(self, task: "asyncio.Task[Any]") -> None:
        self._in_flight.pop(task, None)
        self.moves += 1
        if not task.cancelled():
            task.exception()

    def _cancel_polls(self) -> None:
        for task, flight in self._in_flight.items():
            if not flight.has_effect:
                task.cancel()
