"""What shares a flush: as many items as there may be, and no more bytes of payloads than one item may have."""

import asyncio
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from kernel import (
    Fence,
    Settlement,
    StageCompleted,
    StageFailed,
    StepOp,
)
from kernel.execution.journal import Annotation, LogRecord, Report
from kernel.execution.outcome import StageOutcome
from service.worker import ledger_writer, reporter
from service.worker.executor import Execution
from service.worker.flusher import StepOps
from service.worker.ledger_writer import BATCH, BATCH_CHARACTERS
from tests.support.workflows import HandWorker


async def batches_of(*requests: Any) -> list[int]:
    """Return how many of the requests share each flush."""
    loop = asyncio.get_running_loop()
    items = deque(ledger_writer._Item(request, loop.create_future()) for request in requests)
    sizes: list[int] = []
    while items:
        sizes.append(len(ledger_writer._take_batch(items)))
    return sizes


@pytest.fixture
async def settled(hand: HandWorker) -> Any:
    await hand.create("single")
    (job,) = await hand.tick()

    def made(outcome: StageOutcome, steps: tuple[StepOp, ...] = ()) -> Settlement:
        return Settlement(job, outcome, steps=steps)

    return made


async def test_a_flush_holds_as_many_items_as_there_may_be_and_as_many_bytes(settled: Any) -> None:
    small, half = settled(StageCompleted("1")), settled(StageCompleted("x" * (BATCH_CHARACTERS // 2)))
    assert await batches_of(*[small] * (BATCH + 1)) == [BATCH, 1]
    assert await batches_of(half, half, half, small) == [2, 2]
    # One alone may be larger than all others together: it goes by itself.
    largest = settled(StageCompleted("x" * (BATCH_CHARACTERS + 1)))
    assert await batches_of(small, largest, small) == [1, 1, 1]
    assert await batches_of(*[settled(StageFailed("x"))] * 3) == [3]


async def test_results_of_steps_count_too(settled: Any) -> None:
    fence = Fence(uuid4(), "first", 1, datetime.now(UTC))
    op = StepOp("outcome", fence, "s", {"result": "x" * (BATCH_CHARACTERS // 2 + 1)})
    with_steps = settled(StageFailed("x"), (op,))
    assert await batches_of(with_steps, with_steps, StepOps((op,))) == [1, 1, 1]
    claim = StepOps((StepOp("claim", fence, "s"),))
    assert await batches_of(claim, with_steps, claim) == [3]


async def test_what_bodies_said_and_noted_counts_too(settled: Any) -> None:
    share = "x" * (BATCH_CHARACTERS // 2 + 1)
    said = replace(settled(StageFailed("x")), report=Report((LogRecord("info", share, "{}", datetime.now(UTC)),)))
    noted = replace(settled(StageFailed("x")), annotations=(Annotation("key", "1", share),))
    assert await batches_of(said, noted, said) == [1, 1, 1]


async def test_what_bodies_say_while_they_run_is_written_a_few_at_a_time_and_none_is_left_out(
    hand: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_CHARACTERS", 1_000)
    for _ in range(5):
        await hand.create("single")
    executions = [Execution(hand.tenant_id, job) for job in await hand.tick()]
    for number, execution in enumerate(executions):
        execution.journal.log("info", f"{number} " + "x" * 600, {})
    executions[-1].journal.progress(0.5)
    reports = list(reporter._reports_of(executions))
    assert [[str(line["message"])[0] for line in report.logs] for report in reports] == [["0", "1"], ["2", "3"], ["4"]]
    assert [len(report.progress) for report in reports] == [0, 0, 1]
    assert list(reporter._reports_of(executions)) == []
