"""One run in a test: drives it, tells it things, and looks at what has become of it."""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar, cast, overload
from uuid import UUID

from pydantic import TypeAdapter

from kernel.command import Command
from kernel.commands.run_cancel import RunCancel, RunCancelled
from kernel.commands.run_redrive import RunRedrive, RunRedriven
from kernel.commands.step_signal import StepSignal, StepSignalled
from kernel.commands.step_write import read_steps
from kernel.errors import BlobMissingError, RunNotFoundError
from kernel.execution.ledger import StepKind, StepRow, StepStatus
from kernel.queries.run_events import run_events
from kernel.queries.run_get import RunView, StageView, run_get
from kernel.queries.run_logs import run_logs
from kernel.redriving import RedriveKind
from kernel.states import RunStatus
from kernel.testing.script import StepName
from kernel.testing.session import RunOutcome, Session

T = TypeVar("T")
MAX_LINES = 100_000


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run failed; `stage_id` is None where no stage is to blame."""

    code: str
    message: str
    stage_id: str | None


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run; `data` is plain JSON data."""

    sequence: int
    type: str
    stage_id: str | None
    data: dict[str, object]
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class RunLog:
    """One line that a body logged."""

    stage_id: str
    attempt: int
    level: str
    message: str
    fields: dict[str, object]


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as the ledger holds it; `result` is plain JSON data, `error` is `<ExceptionClass>: <message>`."""

    kind: StepKind
    status: StepStatus
    attempt: int
    result: object
    error: str | None
    external_key: str | None
    is_reclaim: bool
    due_at: datetime | None
    deadline_at: datetime | None


class HarnessRun:
    """A run that a harness started. Reads tell how it is in the database, at this moment."""

    def __init__(self, session: Session, run_id: UUID, workflow_id: str) -> None:
        self.run_id = run_id
        self.workflow_id = workflow_id
        self._session = session

    # -- going on -----------------------------------------------------------------------------------------------------

    async def go(self) -> RunOutcome:
        """Do everything that is due, in this run and the tenant's others, and return how far this run came.

        `suspended`: all that is left of it waits for something outside, or for its time. `incomplete`: it is not due,
        a retry is to come, or the worker was killed and has its lease still.

        Raises:
            ValueError: a mock does not fit its step.
        """
        await self._session.work()
        return await self._session.outcome(self.run_id)

    async def signal(self, stage_id: str, step_id: str, payload: object = None) -> StepSignalled:
        """Send a signal, JSON data or a model; `go` then carries on with what it woke.

        Raises:
            SignalRefusedError, UnknownStageError, InvalidRequestError: as `StepSignal` says.
        """
        return await self._dispatch(StepSignal(self.run_id, stage_id, step_id, payload))

    async def cancel(self, reason: str | None = None) -> RunCancelled:
        """Cancel the run; bodies under way are told at once."""
        cancelled = await self._dispatch(RunCancel(self.run_id, reason))
        self._session.abort(self.run_id)
        return cancelled

    async def redrive(
        self,
        kind: RedriveKind = "last_failure",
        stage_id: str | None = None,
        *,
        definition_version: str | None = None,
    ) -> RunRedriven:
        """Let a run that is over go on; `go` then carries on with it.

        Raises:
            RunNotTerminalError, UnknownStageError, UnknownVersionError, InvalidRequestError: as `RunRedrive` says.
        """
        return await self._dispatch(RunRedrive(self.run_id, kind, stage_id, definition_version))

    async def _dispatch(self, command: Command[T]) -> T:
        async with self._session.transaction() as tx:
            return await self._session.kernel.dispatch(command, tx)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def status(self) -> RunStatus:
        """Return the run's status."""
        return (await self._view()).summary.status

    @overload
    async def output(self) -> object: ...
    @overload
    async def output(self, model: type[T]) -> T: ...
    async def output(self, model: type[T] | None = None) -> object:
        """Return the run's output as plain JSON data, or as the model given; None while there is none.

        Raises:
            BlobMissingError: the store has lost it.
            pydantic.ValidationError: it does not fit the model.
        """
        view = await self._view()
        if "output" in view.lost:
            raise BlobMissingError(self.run_id, view.lost["output"].hex())
        text = view.output or "null"
        return json.loads(text) if model is None else TypeAdapter(model).validate_json(text)

    async def error(self) -> RunFailure | None:
        """Return why the run failed; None if it did not."""
        text = (await self._view()).summary.error
        if text is None:
            return None
        error = cast("dict[str, str]", json.loads(text))
        return RunFailure(error["code"], error["message"], error.get("stage_id"))

    async def events(self) -> list[RunEvent]:
        """Return what happened to the run, oldest first."""
        async with self._session.transaction() as tx:
            events = await run_events(tx, self.run_id, limit=MAX_LINES)
        return [RunEvent(e.sequence, e.type, e.stage_id, json.loads(e.data), e.occurred_at) for e in events]

    async def logs(self) -> list[RunLog]:
        """Return what the bodies of the run logged, oldest first."""
        async with self._session.transaction() as tx:
            lines = await run_logs(tx, self.run_id, limit=MAX_LINES)
        return [
            RunLog(line.stage_id, line.attempt, line.level, line.message, json.loads(line.fields)) for line in lines
        ]

    async def stages(self) -> dict[str, StageView]:
        """Return the stages that exist, by id, in the order of the definition."""
        return {stage.stage_id: stage for stage in (await self._view()).stages}

    async def steps(self) -> dict[StepName, StepView]:
        """Return the steps in the ledger by `(stage_id, step_id)`, in the order of their first use."""
        steps: dict[StepName, StepView] = {}
        blobs = self._session.kernel.scope.blobs
        async with self._session.transaction() as tx:
            for stage_id in self._session.stage_ids(self.workflow_id):
                for row in await read_steps(tx, self.run_id, stage_id, blobs):
                    steps[stage_id, row.step_id] = _view(row)
        return steps

    @property
    def calls(self) -> Counter[StepName]:
        """How often the function of a `run` step, or the poll of a `wait_for`, was called, by `(stage_id, step_id)`.

        A mock in its place counts too.
        """
        return self._session.script.calls_of(self.run_id)

    async def _view(self) -> RunView:
        async with self._session.transaction() as tx:
            view = await run_get(tx, self.run_id, self._session.kernel.scope.blobs)
        if view is None:
            raise RunNotFoundError(self.run_id)
        return view


def _view(row: StepRow) -> StepView:
    return StepView(
        kind=row.kind,
        status=row.status,
        attempt=row.attempt,
        result=None if row.result is None else json.loads(row.result),
        error=row.error,
        external_key=row.external_key,
        is_reclaim=row.is_reclaim,
        due_at=row.due_at,
        deadline_at=row.deadline_at,
    )
