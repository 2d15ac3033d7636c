"""What came of one execution of a stage, and how an exception becomes an outcome."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from kernel.errors import ExecutionError, Terminal
from kernel.execution.ledger import Wait
from kernel.payloads import clean_text

ExceptionTypes: TypeAlias = tuple[type[BaseException], ...]

# An exception group is a tree of any size; this many of its members decide.
_MAX_MEMBERS = 1000


@dataclass(frozen=True, slots=True)
class StageCompleted:
    """The body returned; `output` is validated JSON text."""

    output: str


@dataclass(frozen=True, slots=True)
class StageFailed:
    """The attempt failed; `error` is `<ExceptionClass>: <message>`, at most 8 KiB, storable.

    `cause` is what the body raised, for whoever called it in a transaction that it spoilt.
    """

    error: str
    code: str = "STAGE_FAILED"
    retryable: bool = True
    cause: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StageSkipped:
    """The stage's `when` said no."""


@dataclass(frozen=True, slots=True)
class StageReleased:
    """The host gave the lease back before the body had an outcome, on a graceful stop."""


@dataclass(frozen=True, slots=True)
class StageSuspended:
    """The body waits for steps; with no waits it is to be replayed at once. When it is due is read from their rows."""

    waits: tuple[Wait, ...]


StageOutcome: TypeAlias = StageCompleted | StageFailed | StageSkipped | StageReleased | StageSuspended


def failure_of(error: BaseException, no_retry_on: ExceptionTypes = ()) -> StageFailed:
    """Return the outcome of an attempt that raised.

    Not retryable is `Terminal`, what the stage names in `no_retry_on` and what the kernel knows to be in vain; in an
    exception group one such member is enough.
    """
    members = list(_members(error))
    return StageFailed(
        error=error_text(members[0] if len(members) == 1 else error),
        retryable=not any(_is_final(member, no_retry_on) for member in (error, *members)),
        cause=error,
    )


def error_text(error: BaseException) -> str:
    """Return `<ExceptionClass>: <message>` as it can be stored, whatever the exception's own methods do."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - an exception of a body's is foreign code
        message = f"its message cannot be read ({type(second).__name__})"
    return clean_text(f"{name}: {message}" if message else name)


def _is_final(error: BaseException, no_retry_on: ExceptionTypes) -> bool:
    if isinstance(error, ExecutionError):
        return not error.is_retryable or isinstance(error, no_retry_on)
    return isinstance(error, (Terminal, *no_retry_on))


def _members(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, or the members of a group that are no groups themselves."""
    pending: list[BaseException] = [error]
    for _ in range(_MAX_MEMBERS):
        if not pending:
            return
        item = pending.pop()
        if isinstance(item, BaseExceptionGroup):
            pending.extend(reversed(cast("BaseExceptionGroup[BaseException]", item).exceptions))
        else:
            yield item
