from __future__ import annotations

import asyncio
import subprocess
import sys
import typing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from pydantic import BaseModel

from kernel.definition.stage import stage
from kernel.definition.workflow import workflow
from kernel.errors import AnnotationError, InvalidInputError, InvalidOptionError
from kernel.execution.context import StageContext
from kernel.execution.outcome import StageCompleted
from kernel.execution.stage_runner import StageInvocation, run_stage


class Order(BaseModel):
    total: int


def test_a_stage_is_callable_like_its_function() -> None:
    @stage("double")
    async def double(ctx: StageContext, order: Order) -> int:
        return order.total * 2

    @stage("half")
    def half(ctx: StageContext, order: Order) -> float:
        return order.total / 2

    context: Any = None
    assert asyncio.run(double(context, Order(total=2))) == 4
    assert half(context, order=Order(total=2)) == 1
    assert (double.is_async, half.is_async) == (True, False)


def test_models_local_to_a_function_are_found_also_those_defined_later() -> None:
    @stage("local")
    async def local(ctx: StageContext[Config], value: Value) -> list[Value]: ...

    class Config(BaseModel):
        inner: Inner | None = None

    class Inner(BaseModel):
        value: int

    class Value(BaseModel):
        inner: Inner

    built = workflow("w", input=Value).pipe(local).build()
    assert built.stages[0].stage.config_adapter is not None
    built.check_input_json('{"inner":{"value":1}}')


def test_a_typed_dict_of_typing_extensions_works() -> None:
    class Shape(typing_extensions.TypedDict):
        side: int

    @stage("shape")
    async def shape(ctx: StageContext, value: Shape) -> Shape:
        return value

    built = workflow("w", input=Shape).pipe(shape).build()
    with pytest.raises(InvalidInputError, match="/input/side"):
        built.validate_input({})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 has a TypedDict that Pydantic takes")
def test_the_typed_dict_of_typing_is_refused_with_the_other_ones_name() -> None:
    class Shape(typing.TypedDict):
        side: int

    @stage("shape")
    async def shape(ctx: StageContext, value: Shape) -> None: ...

    with pytest.raises(AnnotationError, match=r"typing_extensions\.TypedDict"):
        workflow("w").pipe(shape).build()


async def no_context() -> None: ...
async def untyped_context(ctx) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
async def untyped_input(ctx: StageContext, value) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
async def untyped_output(ctx: StageContext):  # type: ignore[no-untyped-def]  # noqa: ANN201
    ...
async def unknown(ctx: StageContext, value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def wrong_context(ctx: Order) -> None: ...
async def too_many(ctx: StageContext, value: Order, third: int) -> None: ...
async def keyword(ctx: StageContext, *, value: Order) -> None: ...
async def no_schema(ctx: StageContext, value: asyncio.Lock) -> None: ...
async def nested_unknown(ctx: StageContext) -> list[Missing]: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "function",
    [
        no_context,
        untyped_context,
        untyped_input,
        untyped_output,
        unknown,
        wrong_context,
        too_many,
        keyword,
        no_schema,
        nested_unknown,
    ],
    ids=lambda function: function.__name__,
)
def test_what_cannot_be_read_is_refused_at_build(function: Any) -> None:
    decorated = stage("bad")(function)
    with pytest.raises(AnnotationError, match="bad"):
        workflow("w").pipe(decorated).build()


def test_further_parameters_may_have_defaults() -> None:
    @stage("fine")
    async def fine(ctx: StageContext, value: Order, rate: float = 2.0, *, client: object = None) -> float:
        return value.total * rate

    built = workflow("w", input=Order).pipe(fine).build()
    started = StageInvocation(*[Any] * 2, built, built.stages[0], 1, '{"total":2}')  # type: ignore[arg-type]
    assert asyncio.run(run_stage(started)) == StageCompleted("4.0")


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""}, {"id": "x" * 256}, {"id": "a\n"}, {"id": "a\x00"}, {"id": "\ud800"}, {"id": 3},
        {"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 1.5}, {"max_attempts": 10**9},
        {"timeout": 0}, {"timeout": "soon"}, {"timeout": -1}, {"timeout": float("inf")},
        {"when": 3}, {"no_retry_on": (int,)}, {"no_retry_on": ("ValueError",)}, {"requires": (3,)}, {"name": ""},
    ],
)  # fmt: skip
def test_a_bad_option_is_a_value_error_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        stage(**({"id": "fine"} | options))


def test_options_are_read() -> None:
    @stage("a", name="The first", max_attempts=1, timeout=timedelta(seconds=2), no_retry_on=[KeyError, OSError])
    def first(ctx: StageContext) -> None: ...

    @stage("b", requires=[first, "other"], no_retry_on=ValueError)
    def second(ctx: StageContext) -> None: ...

    assert (first.name, first.max_attempts, first.timeout, first.no_retry_on) == (
        "The first",
        1,
        2.0,
        (KeyError, OSError),
    )
    assert (second.name, second.max_attempts, second.timeout) == ("b", 3, None)
    assert (second.requires, second.no_retry_on) == (("a", "other"), (ValueError,))


def test_only_functions_can_be_stages() -> None:
    async def generator(ctx: StageContext) -> Any:
        yield 1

    for bad in (3, generator):
        with pytest.raises(InvalidOptionError):
            stage("bad")(bad)  # type: ignore[call-overload]


RIGHT = """
from pydantic import BaseModel
from kernel import StageContext, stage

class Order(BaseModel):
    total: int

class Config(BaseModel):
    vat: float = 0.2

@stage("price")
async def price(ctx: StageContext[Config], order: Order) -> Order:
    return Order(total=int(order.total * ctx.config.vat))

@stage("count")
def count(ctx: StageContext, order: Order) -> int:
    return order.total

@stage("ship")
async def ship(ctx: StageContext) -> int:
    priced: Order = ctx.require(price)
    counted: int = ctx.require(count)
    maybe: Order | None = ctx.optional(price)
    return priced.total + counted + (maybe.total if maybe else 0)

async def call(ctx: StageContext[Config], plain: StageContext) -> None:
    again: Order = await price(ctx, Order(total=1))
    number: int = count(plain, again)
    print(number)
"""
WRONG = {
    "an output is no other model": ("counted: int = ctx.require(count)", "counted: str = ctx.require(count)"),
    "an optional output may be missing": ("(maybe.total if maybe else 0)", "maybe.total"),
    "a stage takes its input": ("price(ctx, Order(total=1))", "price(ctx, 5)"),
    "a coroutine is awaited": ("again: Order = await price", "again: Order = price"),
    "a config has its fields": ("ctx.config.vat)", "ctx.config.tax)"),
    "only stages are required": ("ctx.require(price)", "ctx.require(5)"),
    "a stage takes a context first": ("ctx: StageContext, order: Order) -> int", "ctx: int, order: Order) -> int"),
}


def test_the_types_of_stages_hold(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    for number, (right, wrong) in enumerate(WRONG.values()):
        assert right in RIGHT
        (tmp_path / f"wrong{number}.py").write_text(RIGHT.replace(right, wrong))
    root = Path(__file__).parents[3]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache"), "--explicit-package-bases", str(tmp_path)],
        cwd=root, env={"MYPYPATH": str(root), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    faulty = {
        line.partition(":")[0].rpartition("/")[2]
        for line in checked.stdout.splitlines()
        if ": error:" in line and str(tmp_path) in line
    }
    assert faulty == {f"wrong{number}.py" for number in range(len(WRONG))}, checked.stdout
