"""What a body is given: who it is, what the run holds for it, and a way to say things."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, cast
from uuid import UUID

from typing_extensions import TypeVar

from kernel.errors import StageOutputMissingError, StepsNeedAsyncStageError
from kernel.execution.abort import AbortSignal
from kernel.execution.journal import LogLevel, StageJournal
from kernel.execution.steps import Steps

C_co = TypeVar("C_co", covariant=True, default=dict[str, object])
O = TypeVar("O")  # noqa: E741 - the output of a stage
O_co = TypeVar("O_co", covariant=True)


class HasOutput(Protocol[O_co]):
    """What `require` takes: a stage, typed by what it returns."""

    @property
    def id(self) -> str:
        """The stage's id."""
        ...

    def decode_output(self, text: str) -> O_co:
        """Return a stored output as the stage's output model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSources:
    """Where a context has its things from; JSON texts by stage id in `outputs`.

    `input_text` is what the stage receives, for a body without an input parameter; `steps` is None where there are
    none.
    """

    outputs: Mapping[str, str]
    journal: StageJournal
    is_async: bool
    input_text: str | None = None
    steps: Steps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext(Generic[C_co]):
    """The first parameter of a stage, typed by the stage's config model: `StageContext[PriceConfig]`.

    `attempt` is 1 in the first execution and the same in replays of it. `config` is a plain dict without a model.
    """

    tenant_id: UUID
    run_id: UUID
    workflow_id: str
    stage_id: str
    attempt: int
    config: C_co
    abort_signal: AbortSignal
    given_input: object
    sources: ContextSources

    @property
    def input(self) -> object:
        """What the stage receives: the value of its input parameter, or plain JSON data if it has none."""
        if self.sources.input_text is not None:
            return cast("object", json.loads(self.sources.input_text))
        return self.given_input

    @property
    def step(self) -> Steps:
        """The durable steps of this execution.

        Raises:
            StepsNeedAsyncStageError: the stage, or its `when`, is no coroutine function of a host with steps.
        """
        if not self.sources.is_async or self.sources.steps is None:
            raise StepsNeedAsyncStageError(self.stage_id)
        return self.sources.steps

    def require(self, stage: HasOutput[O]) -> O:
        """Return the output of a stage that completed in this run.

        Raises:
            StageOutputMissingError: it did not complete (not retryable).
            InvalidOutputError: what is stored does not fit the stage's present output model (not retryable).
        """
        text = self.sources.outputs.get(stage.id)
        if text is None:
            raise StageOutputMissingError(stage.id, self.sources.outputs)
        return stage.decode_output(text)

    def optional(self, stage: HasOutput[O]) -> O | None:
        """Return the output of a stage, or None if it did not complete in this run."""
        return self.require(stage) if stage.id in self.sources.outputs else None

    def log(self, level: LogLevel, message: str, **fields: object) -> None:
        """Write a log line of the run."""
        self.sources.journal.log(level, message, fields)

    def progress(self, fraction: float, message: str = "") -> None:
        """Report progress, 0 to 1; written at most once a second, the latest wins."""
        self.sources.journal.progress(fraction, message)

    def annotate(self, key: str, value: object, payload: object = None) -> None:
        """Attach a fact to the run; stored with the stage's outcome."""
        self.sources.journal.annotate(key, value, payload)
