"""The order in which one execution's steps reach the ledger: one write at a time, each with all that waits by then.

So an outcome is committed before, or together with, whatever was asked for after it; concurrent steps share a write.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel.execution.ledger import Ledger, StepAnswer, StepOp
from kernel.step_errors import StepLedgerWriteError


@dataclass(slots=True)
class _Entry:
    """An op and who waits for its answer; nobody waits for one that may linger."""

    op: StepOp
    answer: asyncio.Future[StepAnswer] | None


class StepQueue:
    """Collects ops and writes them: at once when somebody waits, else after `linger_s` or with the next that does."""

    def __init__(self, ledger: Ledger, linger_s: float, on_answer: Callable[[StepOp, StepAnswer], None]) -> None:
        """`on_answer` hears what became of each op that nobody waited for."""
        self._ledger = ledger
        self._linger_s = linger_s
        self._on_answer = on_answer
        self._entries: list[_Entry] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: StepLedgerWriteError | None = None

    async def write(self, op: StepOp) -> StepAnswer:
        """Write an op together with everything queued before it, and return its answer once it is committed.

        Raises:
            StepLedgerWriteError: this write, or that of an earlier outcome, failed.
        """
        told = await asyncio.shield(self.ask(op))
        self.raise_failure()
        return told

    def ask(self, op: StepOp) -> asyncio.Future[StepAnswer]:
        """Queue an op and write at once; the future has its answer, for callers that must hear it when cancelled."""
        answer: asyncio.Future[StepAnswer] = asyncio.get_running_loop().create_future()
        self._entries.append(_Entry(op, answer))
        self._start()
        return answer

    def put(self, op: StepOp) -> None:
        """Queue an op that may linger."""
        self._entries.append(_Entry(op, None))
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._start)

    @property
    def has_failed(self) -> bool:
        """Whether an earlier write failed."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise what an earlier write failed with."""
        if self._failure is not None:
            raise self._failure

    async def settle(self) -> tuple[StepOp, ...]:
        """Wait for the write under way, and take what is still queued: it is the settle's to write."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self._stop_timer()
        entries, self._entries = self._entries, []
        return tuple(entry.op for entry in entries)

    def _start(self) -> None:
        self._stop_timer()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write_all(self) -> None:
        try:
            while self._entries:
                await self._write(self._take())
        finally:
            self._writing = None

    def _take(self) -> list[_Entry]:
        """Take what waits, up to a second op of one step: a heartbeat, say, and the outcome that overtook it."""
        seen: set[str] = set()
        for number, entry in enumerate(self._entries):
            if entry.op.step_id in seen:
                batch, self._entries = self._entries[:number], self._entries[number:]
                return batch
            seen.add(entry.op.step_id)
        batch, self._entries = self._entries, []
        return batch

    async def _write(self, batch: Sequence[_Entry]) -> None:
        try:
            answers = await self._ledger.write([entry.op for entry in batch])
        except Exception as error:  # noqa: BLE001 - told to the body, which the step's name makes understandable
            step_id = batch[0].op.step_id
            failure = StepLedgerWriteError(step_id, f"its outcome could not be recorded ({type(error).__name__})")
            failure.__cause__ = error
            self._failure = failure
            for entry in batch:
                if entry.answer is not None and not entry.answer.done():
                    entry.answer.set_exception(failure)
                    # Who asked may have been cancelled; whoever still waits hears it all the same.
                    entry.answer.exception()
            return
        for entry, answer in zip(batch, answers, strict=True):
            if entry.answer is None:
                self._on_answer(entry.op, answer)
            elif not entry.answer.done():
                entry.answer.set_result(answer)
