"""How a body leaves to wait, and how what leaves it is told from failures and cancellations."""

import asyncio
from typing import cast


class Suspension(BaseException):
    """Leaves a body that has to wait. No Exception, so that a body's `except Exception` does not swallow it."""


def consists_of(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is of a kind, or a group of nothing else: what a task group makes of it."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(kind)[1] is None
    return isinstance(error, kind)


def is_cancelled(error: BaseException) -> bool:
    """Whether this is the cancellation of the running task, and not one that foreign code raised by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
