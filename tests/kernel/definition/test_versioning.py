"""What is part of a version and what is not."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, Field

from kernel import StageContext, Workflow, stage, workflow
from tests.support.workflows import Number, chain, fan, first, left, right, second

CHECKOUT = Path(__file__).parents[3]
PRINT_VERSION = "from tests.support.workflows import fan; print(fan.definition_version)"


def built(model: type[BaseModel], *, name: str = "price", stage_id: str = "price", **options: object) -> Workflow:
    async def body(ctx: StageContext, value: object) -> object:
        return value

    body.__annotations__.update(value=model, **{"return": model})
    made = stage(stage_id, name=name, **options)(body)  # type: ignore[arg-type]
    return workflow("w", input=model).pipe(made).build()


def old() -> type[BaseModel]:
    class Order(BaseModel):
        """An order."""

        number: int = Field(description="counts from one")
        lines: list[Number]

    return Order


def renamed() -> type[BaseModel]:
    class Line(BaseModel):
        """A line, told at length."""

        n: int

    class Purchase(BaseModel):
        lines: list[Line]
        number: int = Field(title="The number")

    return Purchase


def widened() -> type[BaseModel]:
    class Order(BaseModel):
        number: int
        lines: list[Number]
        title: str = ""

    return Order


def version_of(model: Callable[[], type[BaseModel]], **options: str) -> str:
    return built(model(), **options).definition_version


def test_a_version_is_a_short_hash() -> None:
    assert re.fullmatch(r"sha256-[0-9a-f]{32}", chain.definition_version)


def test_names_and_descriptions_are_no_part_of_it() -> None:
    assert version_of(old) == version_of(renamed) == version_of(old, name="Price it")


def test_shapes_and_ids_are() -> None:
    assert len({version_of(old), version_of(widened), version_of(old, stage_id="other")}) == 3


def test_a_field_called_title_is_no_text() -> None:
    def without() -> type[BaseModel]:
        class Order(BaseModel):
            number: int
            lines: list[Number]

        return Order

    assert version_of(widened) != version_of(without)


def test_attempts_and_timeouts_are_operations_not_structure() -> None:
    model = old()
    assert built(model).definition_version == built(model, max_attempts=9, timeout="5m").definition_version


def test_order_groups_and_requirements_are_part_of_it() -> None:
    @stage("left", requires=first)
    async def needy_left(ctx: StageContext, number: Number) -> Number:
        return number

    begun = workflow("w", input=Number).pipe(first)
    shapes = [
        begun.pipe(left).pipe(right),
        begun.pipe(right).pipe(left),
        begun.parallel(left, right),
        begun.parallel(right, left),
        begun.pipe(needy_left).pipe(right),
        workflow("w", input=dict).pipe(first).pipe(left).pipe(right),
        begun.pipe(second),
    ]
    assert len({shape.build().definition_version for shape in shapes}) == len(shapes)


def test_every_process_computes_the_same() -> None:
    def computed(seed: str) -> str:
        command = [sys.executable, "-c", PRINT_VERSION]
        environment = {"PYTHONHASHSEED": seed}
        return subprocess.run(
            command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert computed("1") == computed("2") == fan.definition_version
