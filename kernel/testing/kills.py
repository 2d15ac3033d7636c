"""Where a test ends its worker: before or after one of the transactions in which the worker writes.

Writes are `begin` of a stage with a `when`, each group of moves of steps, and `settle`. Reads and claims are none: to
die after a claim is to die before the first write.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernel.execution.ledger import StepOp

When = Literal["before", "after"]


class WorkerDied(Exception):  # noqa: N818 - never leaves the harness: it ends what a dead worker had under way
    """The process is gone; nothing that it still had to write is written."""


@dataclass(slots=True)
class Kill:
    """An appointment with death: before or after the n-th write from now on.

    `happened` says whether it came to that, `write` which write it was: `claim price/charge`, `settle price`.
    """

    when: When
    number: int
    happened: bool = False
    write: str | None = None
    seen: int = 0

    def __str__(self) -> str:
        """Return where it is, for the message of a test that fails."""
        return f"{self.when} write {self.number} ({self.write or 'not reached'})"


class Mortality:
    """The life of one worker: it ends at the kill, and everything that it wanted to write after that fails."""

    def __init__(self, kill: Kill | None) -> None:
        self._kill = kill
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._burial = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the worker is dead."""
        return self.death.done()

    def bury(self) -> None:
        """Let the writes under way fail, all bodies having been cancelled."""
        self._burial.set()

    def check(self) -> None:
        """Refuse the dead.

        Raises:
            WorkerDied: the worker is no more.
        """
        if self.is_over:
            raise WorkerDied

    def count(self) -> int:
        """Count a write that is about to begin and return its number; 0 where no kill is to come."""
        if self._kill is None or self._kill.happened:
            return 0
        self._kill.seen += 1
        return self._kill.seen

    async def pass_by(self, when: When, number: int, write: str) -> None:
        """Go on, or die here."""
        kill = self._kill
        if kill is not None and not kill.happened and (kill.when, kill.number) == (when, number):
            kill.happened, kill.write = True, write
            self.death.set_result(None)
        if self.is_over:
            await self._burial.wait()
            raise WorkerDied


def describe(ops: Sequence[StepOp]) -> str:
    """Return what moves of steps are, for people."""
    return " + ".join(f"{op.op} {op.fence.stage_id}/{op.step_id}" for op in ops)
