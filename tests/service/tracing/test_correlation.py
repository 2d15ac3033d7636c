"""Log lines say on whose behalf they were written, and in which span."""

import asyncio
import logging
from typing import Any
from uuid import uuid4

import orjson
import pytest
from opentelemetry import trace

from kernel.counts import BOUNDS_S, Spread
from kernel.work import Work, working
from service.cli.logs import JsonLines, _correlate
from service.metrics import _buckets
from service.settings import Settings
from service.worker.executor import Executor, ExecutorLimits
from tests.support.tracing import Tracing
from tests.support.workflows import HandWorker


def line(**extra: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"msg": "told", "levelname": "INFO", **extra})
    assert _correlate(record)
    told: dict[str, Any] = orjson.loads(JsonLines().format(record))
    return told


def test_a_line_within_a_stage_carries_trace_tenant_run_stage_and_attempt(traced: Tracing) -> None:
    tenant, run = uuid4(), uuid4()
    work = Work(tenant, run, "w", "charge", attempt=2)
    with working(work), trace.get_tracer("t").start_as_current_span("s") as span:
        told = line()
    context = span.get_span_context()
    named = ("trace_id", "span_id", "tenant_id", "run_id", "stage_id", "attempt")
    assert [told[name] for name in named] == [
        f"{context.trace_id:032x}", f"{context.span_id:016x}", str(tenant), str(run), "charge", 2,
    ]  # fmt: skip


def test_no_line_within_work_says_that_it_is_another_tenants(traced: Tracing) -> None:
    work = Work(uuid4(), uuid4())
    forged = {"tenant_id": str(uuid4()), "run_id": str(uuid4()), "trace_id": "0" * 32, "span_id": "0" * 16}
    with working(work), trace.get_tracer("t").start_as_current_span("s") as span:
        told = line(**forged)
    assert (told["tenant_id"], told["run_id"]) == (str(work.tenant_id), str(work.run_id))
    assert told["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert told["span_id"] == f"{span.get_span_context().span_id:016x}"


def test_what_a_line_says_itself_stays_and_outside_of_work_nothing_is_added() -> None:
    with working(Work(uuid4(), stage="charge")):
        assert line(stage_id="another")["stage_id"] == "another"
    assert not {"tenant_id", "run_id", "trace_id"} & line().keys()


def test_a_spread_counts_each_time_once_below_every_bound_that_holds_it() -> None:
    spread = Spread()
    for seconds in (0.0, 0.005, 0.3, 1e9):
        spread.observe(seconds)
    buckets = dict(_buckets(spread))
    assert (buckets["0.005"], buckets["0.25"], buckets["0.5"], buckets["3600"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert len(buckets) == len(BOUNDS_S) + 1


async def test_what_the_engine_says_of_an_execution_that_is_lost_names_whose_it_is(
    traced: Tracing, hand: HandWorker, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await hand.create("single")
    caplog.handler.addFilter(_correlate)
    async with asyncio.TaskGroup() as tasks:
        # Without a writer nothing can be written about it.
        executor = Executor(ExecutorLimits.of(Settings()), tasks)
        executor.start(hand.tenant_id, await hand.tick())
        await executor.idle()
        executor.close()
    (record,) = [record for record in caplog.records if record.message == "execution_lost"]
    told: dict[str, Any] = orjson.loads(JsonLines().format(record))
    job = traced.one("job.execute single/first")
    assert (told["tenant_id"], told["run_id"], told["stage_id"], told["attempt"]) == (
        str(hand.tenant_id), str(run_id), "first", 1,
    )  # fmt: skip
    assert told["trace_id"] == f"{job.get_span_context().trace_id:032x}"
