"""How steps end where a test decides it: asked by the steps of an execution, answered by the host that has a script.

A worker has none. What a script decides is claimed and recorded like everything else.
"""

from dataclasses import dataclass
from typing import Protocol

from kernel.execution.ledger import StepKind


@dataclass(frozen=True, slots=True)
class ScriptedEnd:
    """How a step is to end: with a value as a function would return it, or by raising `error`."""

    value: object = None
    error: Exception | None = None

    async def play(self) -> object:
        """Stand in for the step's function."""
        if self.error is not None:
            raise self.error
        return self.value


class StepScript(Protocol):
    """What a test says about the steps of one execution."""

    def end_of(self, step_id: str, kind: StepKind) -> ScriptedEnd | None:
        """Return how a step that has not ended is to end, None to let it be.

        Asked when its function or poll is about to be called, and each time a body meets a sleep or signal that is
        open.
        """
        ...
