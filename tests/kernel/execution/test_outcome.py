import pytest

from kernel.errors import StageAbortedError, StageOutputMissingError, Terminal
from kernel.execution.outcome import StageFailed, error_text, failure_of
from kernel.step_errors import DuplicateStepKeyError, StepTimeoutError


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("a\x00b\ud800"), "ValueError: a�b�"),
        (MuteError(), "MuteError: its message cannot be read (RuntimeError)"),
        (ExceptionGroup("many", [ValueError("bad")]), "ValueError: bad"),
    ],
)
def test_the_text_names_class_and_message(error: BaseException, text: str) -> None:
    assert failure_of(error) == StageFailed(text)


def test_the_text_has_at_most_8_kib() -> None:
    assert len(error_text(ValueError("é" * 100_000)).encode()) <= 8192


@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [
        (ValueError(), True),
        (Terminal("no"), False),
        (LookupError(), False),
        (KeyError(), False),
        (ExceptionGroup("", [ValueError(), ExceptionGroup("", [Terminal()])]), False),
        (ExceptionGroup("", [ValueError(), OSError()]), True),
        (StageOutputMissingError("a", []), False),
        (DuplicateStepKeyError("s", "twice"), False),
        (StepTimeoutError("s", "late"), True),
        (SystemExit(3), True),
    ],
)
def test_what_is_retried(error: BaseException, is_retryable: bool) -> None:
    assert failure_of(error, (LookupError,)).retryable is is_retryable


def test_a_group_may_itself_be_named() -> None:
    assert not failure_of(ExceptionGroup("", [ValueError()]), (ExceptionGroup,)).retryable


def test_an_abort_has_its_own_code() -> None:
    assert failure_of(StageAbortedError("cancelled")) == StageFailed(
        "StageAbortedError: the stage was aborted: cancelled", retryable=True
    )
