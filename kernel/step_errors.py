"""The errors of durable steps: the last branch of the tree drawn in `kernel/errors.py`.

A recorded failure is raised again by every replay, as the class it was where that can be told, else as StepFailedError.
"""

import sys

from kernel.errors import ExecutionError


class StepError(ExecutionError):
    """The author must act: a durable step cannot go on. `step_id` names it."""

    code = "step_error"

    def __init__(self, step_id: str, message: str) -> None:
        super().__init__(f"step {step_id!r}: {message}")
        self.step_id = step_id


class StepFailedError(StepError):
    """The author must decide: the step failed in an earlier execution, and its own exception cannot be made again."""

    code = "step_failed"


class DuplicateStepKeyError(StepError):
    """The author must act: one execution asked for one step id twice."""

    code = "duplicate_step_key"
    is_retryable = False


class StepKindMismatchError(StepError):
    """The author must act: the stored step of that id is of another kind."""

    code = "step_kind_mismatch"
    is_retryable = False


class StepNotReplaySafeError(StepError):
    """An operator must look: the step may have had its effect, its worker is gone, and it must not run twice."""

    code = "step_not_replay_safe"
    is_retryable = False


class StepResultNotSerializableError(StepError):
    """The author must act: the step's result cannot be stored as JSON."""

    code = "step_result_not_serializable"


class StepResultLostError(StepError):
    """An operator must look: the step is completed, and what it answered with is in the blob store no more."""

    code = "step_result_lost"
    is_retryable = False


class StepModelMismatchError(StepError):
    """The author must act: what is stored for the step does not fit the model asked for."""

    code = "step_model_mismatch"
    is_retryable = False


class StepTimeoutError(StepError):
    """The author must decide: the wait's deadline has passed."""

    code = "step_timeout"


class StepLeaseLostError(StepError):
    """Nobody must act: another execution took the step over."""

    code = "step_lease_lost"


class StepLeaseTooShortError(StepError):
    """The author must act: again and again the step's lease had run out before its function could begin."""

    code = "step_lease_too_short"


class StepLedgerWriteError(StepError):
    """Nobody must act: the step's body succeeded but its outcome could not be recorded."""

    code = "step_ledger_write_failed"


class ChildRunFailedError(StepError):
    """The author must decide: the child run that was waited for failed."""

    code = "child_run_failed"


class ChildRunCancelledError(StepError):
    """The author must decide: the child run that was waited for was cancelled."""

    code = "child_run_cancelled"


def error_type_of(error: BaseException) -> str:
    """Return the name under which `stored_error` finds the class again."""
    return error_name_of(type(error))


def error_name_of(kind: type[BaseException]) -> str:
    """Return the name under which `stored_error` finds this class again."""
    return f"{kind.__module__}.{kind.__qualname__}"


def stored_error(step_id: str, text: str, error_type: str | None) -> Exception:
    """Return the exception of a recorded failure: its own class and message where both can be had.

    Only a class that is loaded is looked up, and only one whose text comes back as it was recorded is used.
    """
    kind = _loaded_class(error_type or "")
    if kind is None:
        return StepFailedError(step_id, text)
    message = text.removeprefix(f"{kind.__name__}: ") if text != kind.__name__ else ""
    try:
        error = kind.__new__(kind)
        error.args = (message,) if message else ()
        if isinstance(error, StepError):
            error.step_id = step_id
        is_same = str(error) == message
    except Exception:  # noqa: BLE001 - an exception of a body's is foreign code
        is_same = False
        error = StepFailedError(step_id, text)
    return error if is_same else StepFailedError(step_id, text)


def _loaded_class(error_type: str) -> type[Exception] | None:
    module_name, _, name = error_type.rpartition(".")
    kind = getattr(sys.modules.get(module_name), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None
