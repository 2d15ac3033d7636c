"""What a test decides about steps, by stage and step id, and how often each step's function was called."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from kernel.execution.ledger import StepKind
from kernel.execution.script import ScriptedEnd
from kernel.step_errors import StepTimeoutError

StepName = tuple[str, str]
_CALLED: frozenset[StepKind] = frozenset({"run", "wait"})
_WAITS: frozenset[StepKind] = frozenset({"wait", "signal"})


@dataclass(slots=True)
class _Mock:
    """How a step ends, for steps of `kinds`, and how often yet; None is always."""

    end: ScriptedEnd
    what: str
    kinds: frozenset[StepKind] | None = None
    left: int | None = None


@dataclass(slots=True)
class Script:
    """The decisions of one harness. `fault` is a decision that did not fit its step: the test's own mistake."""

    stage_ids: frozenset[str]
    are_sleeps_skipped: bool = False
    fault: ValueError | None = None
    _calls: dict[UUID, Counter[StepName]] = field(default_factory=dict[UUID, Counter[StepName]])
    _mocks: dict[StepName, _Mock] = field(default_factory=dict[StepName, _Mock])

    def result(self, stage_id: str, step_id: str, value: object) -> None:
        """Let a step end with a value."""
        self._mocks[self._name(stage_id, step_id)] = _Mock(ScriptedEnd(value), "mock_result")

    def error(self, stage_id: str, step_id: str, error: Exception, times: int | None) -> None:
        """Let a step raise, always or the next few times."""
        if times is not None and times < 1:
            message = f"times: {times} is no number of 1 or more"
            raise ValueError(message)
        self._mocks[self._name(stage_id, step_id)] = _Mock(ScriptedEnd(error=error), "mock_error", left=times)

    def timeout(self, stage_id: str, step_id: str) -> None:
        """Let a wait time out at once."""
        end = ScriptedEnd(error=StepTimeoutError(step_id, "its deadline has passed, says the test"))
        self._mocks[self._name(stage_id, step_id)] = _Mock(end, "mock_timeout", _WAITS)

    def forget(self, stage_id: str, step_id: str) -> None:
        """Let a step end by itself again."""
        self._mocks.pop(self._name(stage_id, step_id), None)

    def for_stage(self, run_id: UUID, stage_id: str) -> "StageScript":
        """Return what is said about the steps of one execution."""
        return StageScript(stage_id, self._end_of, self.calls_of(run_id))

    def calls_of(self, run_id: UUID) -> Counter[StepName]:
        """Return how often the functions of a run's steps were called."""
        return self._calls.setdefault(run_id, Counter())

    def raise_fault(self) -> None:
        """Raise what a decision that did not fit its step was refused with, once."""
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    def _name(self, stage_id: str, step_id: str) -> StepName:
        if stage_id not in self.stage_ids:
            message = f"no workflow of this harness has a stage {stage_id!r}: it has {_listed(self.stage_ids)}"
            raise ValueError(message)
        return stage_id, step_id

    def _end_of(self, name: StepName, kind: StepKind) -> ScriptedEnd | None:
        mock = self._mocks.get(name)
        if mock is None:
            return ScriptedEnd() if kind == "sleep" and self.are_sleeps_skipped else None
        if mock.kinds is not None and kind not in mock.kinds:
            self.fault = ValueError(f"{mock.what}: step {name[1]!r} of stage {name[0]!r} is a {kind}, not a wait")
            raise self.fault
        if mock.left is not None:
            mock.left -= 1
            if mock.left == 0:
                del self._mocks[name]
        return mock.end


@dataclass(frozen=True, slots=True)
class StageScript:
    """The script for one stage's steps, as their execution asks it; counts the calls it, or a step's function, gets."""

    stage_id: str
    decide: Callable[[StepName, StepKind], ScriptedEnd | None]
    calls: Counter[StepName]

    def end_of(self, step_id: str, kind: StepKind) -> ScriptedEnd | None:
        """Return how the step is to end, None to let it be."""
        name = (self.stage_id, step_id)
        if kind in _CALLED:
            self.calls[name] += 1
        return self.decide(name, kind)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
