import asyncio
import contextvars
import json
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event, get_ident
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, model_validator

from kernel.definition.stage import AnyStage, stage
from kernel.definition.workflow import workflow
from kernel.errors import StageAbortedError, StepsNeedAsyncStageError, Terminal
from kernel.execution.abort import AbortSignal
from kernel.execution.context import StageContext
from kernel.execution.ledger import StepAnswer, StepOp, StepOwner, StepRow
from kernel.execution.outcome import StageCompleted, StageFailed
from kernel.execution.stage_runner import StageInvocation, run_stage, run_when
from kernel.execution.step_execution import StepExecution
from kernel.execution.steps import Steps
from kernel.fence import Fence


class Order(BaseModel):
    order_id: str
    total: int


class Priced(BaseModel):
    order_id: str
    total: float


class Config(BaseModel):
    vat: float = 0.2


ORDER = '{"order_id":"o-1","total":10}'


def invocation(target: AnyStage, text: str = ORDER, config: str = "{}", **more: Any) -> StageInvocation:
    built = workflow("orders", input=dict).pipe(target).build()
    return StageInvocation(UUID(int=1), UUID(int=2), built, built.stages[0], 1, text, config, **more)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    pool.shutdown(wait=True)


@stage("price")
async def price(ctx: StageContext[Config], order: Order) -> Priced:
    assert ctx.input is order
    return Priced(order_id=order.order_id, total=order.total * (1 + ctx.config.vat))


async def test_a_body_gets_its_models_and_its_output_is_stored_as_json() -> None:
    assert await run_stage(invocation(price)) == StageCompleted('{"order_id":"o-1","total":12.0}')
    assert await run_stage(invocation(price, config='{"price":{"vat":1},"other":{}}')) == StageCompleted(
        '{"order_id":"o-1","total":20.0}'
    )


async def test_the_context_says_who_it_is() -> None:
    @stage("who")
    async def who(ctx: StageContext) -> list[str]:
        assert ctx.config == {"a": 1}
        assert ctx.input == json.loads(ORDER)
        ctx.log("info", "here", count=1)
        ctx.progress(0.5)
        ctx.annotate("key", 1)
        return [str(ctx.tenant_id), str(ctx.run_id), ctx.workflow_id, ctx.stage_id, str(ctx.attempt)]

    started = invocation(who, config='{"who":{"a":1}}')
    outcome = await run_stage(started)
    assert isinstance(outcome, StageCompleted)
    assert json.loads(outcome.output) == [str(UUID(int=1)), str(UUID(int=2)), "orders", "who", "1"]
    assert len(started.journal.drain_logs()) == len(started.journal.annotations()) == 1
    assert started.journal.take_progress() is not None


@pytest.mark.parametrize(
    ("text", "config", "code", "place"),
    [
        ('{"order_id":"o"}', "{}", "INVALID_INPUT", "/input/total: Field required"),
        ("[]", "{}", "INVALID_INPUT", "/input"),
        (ORDER, '{"price":{"vat":"x"}}', "INVALID_CONFIG", "/config/price/vat"),
    ],
)
async def test_what_does_not_fit_fails_for_good(text: str, config: str, code: str, place: str) -> None:
    outcome = await run_stage(invocation(price, text, config))
    assert isinstance(outcome, StageFailed)
    assert (outcome.code, outcome.retryable) == (code, False)
    assert place in outcome.error


def changed() -> Priced:
    priced = Priced(order_id="o", total=1)
    priced.total = "many"  # type: ignore[assignment]
    return priced


@pytest.mark.parametrize(
    ("result", "place"),
    [
        ({"order_id": "o", "total": "many"}, "/output/total"),
        ({"order_id": "o"}, "/output/total"),
        (None, "/output"),
        (Priced(order_id="o", total=float("nan")), "/output/total"),
        (Priced(order_id="a\x00", total=1), "/output/order_id"),
        (Priced(order_id="\ud800", total=1), "/output"),
        (Priced.model_construct(order_id="o"), "/output/total"),
        (changed(), "/output/total"),
    ],
)
async def test_an_output_that_does_not_validate_is_never_stored(result: Any, place: str) -> None:
    @stage("bad")
    async def bad(ctx: StageContext) -> Priced:
        return result

    outcome = await run_stage(invocation(bad))
    assert isinstance(outcome, StageFailed)
    assert (outcome.code, outcome.retryable) == ("INVALID_OUTPUT", False)
    assert outcome.error.startswith(f"InvalidOutputError: {place}")


async def test_an_output_over_the_limit_is_not_retried() -> None:
    @stage("big")
    async def big(ctx: StageContext) -> str:
        return "é" * 50

    assert isinstance(await run_stage(invocation(big, max_output_bytes=102)), StageCompleted)
    outcome = await run_stage(invocation(big, max_output_bytes=101))
    assert isinstance(outcome, StageFailed)
    assert not outcome.retryable
    assert outcome.error.startswith("PayloadTooLargeError")


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (dict, {"a": [1, 1e16, -0.0]}, '{"a":[1,1e16,-0.0]}'),
        (list, [], "[]"),
        (str, "é", '"é"'),
        (int, 2**70, str(2**70)),
        (float, 1, "1.0"),
        (bool, True, "true"),
        (None, None, "null"),
    ],
)
async def test_plain_types_work(annotation: Any, value: Any, text: str) -> None:
    async def echo(ctx: StageContext, given: Any) -> Any:
        return given

    echo.__annotations__ |= {"given": annotation, "return": annotation}
    outcome = await run_stage(invocation(stage("echo")(echo), json.dumps(value)))
    assert isinstance(outcome, StageCompleted)
    assert json.loads(outcome.output) == json.loads(text)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(1), GeneratorExit(), StopIteration(), asyncio.CancelledError(), TimeoutError("own")],
)
async def test_whatever_a_body_raises_is_a_failed_attempt(
    error: BaseException, is_async: bool, threads: ThreadPoolExecutor
) -> None:
    @stage("bad", timeout="1m")
    async def bad_async(ctx: StageContext) -> None:
        raise error

    @stage("bad", timeout="1m")
    def bad(ctx: StageContext) -> None:
        raise error

    outcome = await run_stage(invocation(bad_async if is_async else bad), threads)
    assert isinstance(outcome, StageFailed)
    assert (outcome.code, outcome.retryable) == ("STAGE_FAILED", True)


async def test_terminal_and_named_exceptions_end_the_retries() -> None:
    @stage("bad", no_retry_on=LookupError)
    async def bad(ctx: StageContext, which: int) -> None:
        raise (KeyError("k"), Terminal("over"), StageAbortedError("cancelled"))[which]

    key, over, aborted = [await run_stage(invocation(bad, str(which))) for which in range(3)]
    assert key == StageFailed("KeyError: 'k'", retryable=False)
    assert over == StageFailed("Terminal: over", retryable=False)
    assert isinstance(aborted, StageFailed)
    assert (aborted.code, aborted.retryable) == ("STAGE_FAILED", True)


async def test_a_timeout_fails_the_attempt() -> None:
    @stage("slow", timeout="10ms")
    async def slow(ctx: StageContext) -> None:
        await asyncio.sleep(60)

    @stage("stubborn", timeout="10ms")
    async def stubborn(ctx: StageContext) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "too late"
        return ""

    @stage("clumsy", timeout="10ms")
    async def clumsy(ctx: StageContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError

    for target in (slow, stubborn, clumsy):
        outcome = await run_stage(invocation(target))
        assert isinstance(outcome, StageFailed)
        assert outcome.retryable
        assert "timed out" in outcome.error
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_thread_that_outlives_its_timeout_is_accounted_for(threads: ThreadPoolExecutor) -> None:
    release = Event()

    @stage("slow", timeout="10ms")
    def slow(ctx: StageContext) -> None:
        release.wait(30)

    started = invocation(slow)
    outcome = await run_stage(started, threads)
    assert isinstance(outcome, StageFailed)
    assert "timed out" in outcome.error
    assert started.has_running_thread
    (thread,) = started.running_threads()
    release.set()
    await asyncio.wrap_future(thread)
    assert not started.has_running_thread


async def test_the_time_of_a_function_runs_from_when_it_has_a_thread() -> None:
    release = Event()
    with ThreadPoolExecutor(1) as one:

        @stage("quick", timeout="500ms")
        def quick(ctx: StageContext) -> int:
            return 1

        one.submit(release.wait, 30)
        running = asyncio.ensure_future(run_stage(invocation(quick), one))
        await asyncio.sleep(0.7)
        assert not running.done()
        release.set()
        assert await running == StageCompleted("1")


async def test_a_function_runs_in_a_thread_with_the_callers_context(threads: ThreadPoolExecutor) -> None:
    trace = contextvars.ContextVar("trace", default="none")

    @stage("where")
    def where(ctx: StageContext) -> list[str | bool]:
        return [trace.get(), get_ident() == loop_thread]

    loop_thread = get_ident()
    trace.set("here")
    assert await run_stage(invocation(where), threads) == StageCompleted('["here",false]')
    assert await run_stage(invocation(where)) == StageCompleted('["here",false]')


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_cancellation_from_outside_gets_through(is_async: bool, threads: ThreadPoolExecutor) -> None:
    release, entered = Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @stage("slow", timeout="1m")
    async def slow_async(ctx: StageContext) -> None:
        entered.set()
        await asyncio.sleep(60)

    @stage("slow", timeout="1m")
    def slow(ctx: StageContext) -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(30)

    started = invocation(slow_async if is_async else slow)
    running = asyncio.ensure_future(run_stage(started, threads))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert started.has_running_thread is not is_async
    release.set()


class NoLedger:
    """A ledger that a body without steps never asks."""

    async def write(self, ops: Sequence[StepOp]) -> Sequence[StepAnswer]:
        raise AssertionError(ops)

    async def read(self) -> Sequence[StepRow]:
        raise AssertionError("nothing is read")


async def test_steps_need_a_coroutine_function(threads: ThreadPoolExecutor) -> None:
    @stage("plain")
    def plain(ctx: StageContext) -> str:
        with pytest.raises(StepsNeedAsyncStageError):
            _ = ctx.step
        return "fine"

    @stage("durable")
    async def durable(ctx: StageContext) -> bool:
        return isinstance(ctx.step, Steps)

    owner = StepOwner(UUID(int=1), Fence(UUID(int=2), "durable", 1, datetime.now(UTC)), 1, 0, is_first=True)
    steps = StepExecution(NoLedger(), owner, AbortSignal())
    assert await run_stage(invocation(plain, steps=steps), threads) == StageCompleted('"fine"')
    assert await run_stage(invocation(durable, steps=steps)) == StageCompleted("true")


async def test_require_is_typed_and_names_what_is_there() -> None:
    @stage("ship")
    async def ship(ctx: StageContext) -> list[float]:
        priced = ctx.optional(price)
        assert priced is None or isinstance(priced, Priced)
        return [ctx.require(price).total]

    assert await run_stage(invocation(ship, outputs={"price": '{"order_id":"o","total":3}'})) == StageCompleted("[3.0]")
    missing = await run_stage(invocation(ship, outputs={"reserve": "1"}))
    assert isinstance(missing, StageFailed)
    assert not missing.retryable
    assert missing.error == "StageOutputMissingError: stage 'price' has no output in this run; available: 'reserve'"


async def test_a_validator_that_breaks_is_a_fault_of_the_input() -> None:
    class Odd(BaseModel):
        @model_validator(mode="after")
        def fail(self) -> "Odd":
            raise KeyError("oops")

    @stage("odd")
    async def odd(ctx: StageContext, value: Odd) -> None: ...

    outcome = await run_stage(invocation(odd, "{}"))
    assert outcome == StageFailed("InvalidInputError: /input: KeyError: 'oops'", "INVALID_INPUT", retryable=False)


async def test_when_decides_sync_or_async(threads: ThreadPoolExecutor) -> None:
    async def later(ctx: StageContext[Any]) -> bool:
        return ctx.config["run"]

    def now(ctx: StageContext[Any]) -> bool:
        return ctx.config["run"]

    def indirectly(ctx: StageContext[Any]) -> Awaitable[bool]:
        return later(ctx)

    for when in (now, later, indirectly):

        @stage("maybe", when=when)
        async def maybe(ctx: StageContext) -> None: ...

        assert await run_when(invocation(maybe, config='{"maybe":{"run":1}}'), threads) is True
        assert await run_when(invocation(maybe, config='{"maybe":{"run":0}}'), threads) is False
        failed = await run_when(invocation(maybe), threads)
        assert failed == StageFailed("KeyError: 'run'")
    assert await run_when(invocation(price), threads) is True


async def test_when_is_held_to_timeout_and_config(threads: ThreadPoolExecutor) -> None:
    async def hang(ctx: StageContext[Any]) -> bool:
        await asyncio.sleep(60)
        return True

    @stage("maybe", when=hang, timeout="10ms")
    async def maybe(ctx: StageContext[Config]) -> None: ...

    late = await run_when(invocation(maybe), threads)
    assert isinstance(late, StageFailed)
    assert "timed out" in late.error
    bad = await run_when(invocation(maybe, config='{"maybe":{"vat":[]}}'), threads)
    assert isinstance(bad, StageFailed)
    assert (bad.code, bad.retryable) == ("INVALID_CONFIG", False)
