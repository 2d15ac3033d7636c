"""Tells a body to stop: one signal per execution, read by the body, fired by its host."""

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import Literal, TypeAlias

from kernel.errors import StageAbortedError

AbortReason: TypeAlias = Literal["cancelled", "lease-lost", "shutdown"]


class AbortSignal:
    """Fires at most once and stays fired; safe to read and to fire from any thread.

    A body polls `aborted`, awaits `wait()` or calls `raise_if_aborted()`; a host calls `abort(reason)`, and so do the
    body's steps, whose ledger may know first. `on_abort` is called once it has fired, in the thread that fires it.
    """

    __slots__ = ("_lock", "_reason", "_waiters", "on_abort")

    def __init__(self) -> None:
        self.on_abort: Callable[[], object] | None = None
        self._lock = Lock()
        self._reason: AbortReason | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def aborted(self) -> bool:
        """Whether the execution has to stop."""
        return self._reason is not None

    @property
    def reason(self) -> AbortReason | None:
        """Why the execution has to stop, None while it may go on."""
        return self._reason

    def raise_if_aborted(self) -> None:
        """Raise `StageAbortedError` if the execution has to stop."""
        if self._reason is not None:
            raise StageAbortedError(self._reason)

    async def wait(self) -> None:
        """Return when the execution has to stop."""
        waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._reason is not None:
                return
            self._waiters.append(waiter)
        try:
            await waiter
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def abort(self, reason: AbortReason) -> None:
        """Fire the signal; the first reason stays."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            loop = waiter.get_loop()
            # A loop that is closed has nobody left who could wait on it.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_release, waiter)
        if self.on_abort is not None:
            self.on_abort()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
