"""Annotations are resolved at build, with the module's names and those of the defining frame."""

from __future__ import annotations

from pydantic import BaseModel

from kernel import StageContext, stage, workflow


@stage("late")
async def late(ctx: StageContext[LateConfig], value: Late) -> Late:
    return value


class Late(BaseModel):
    x: int


class LateConfig(BaseModel):
    y: int = 1


def test_names_that_the_module_defines_later_are_found() -> None:
    built = workflow("w", input=Late).pipe(late).build()
    assert built.stages[0].stage.models.config_schema is not None


def test_names_of_the_defining_function_are_found() -> None:
    class Inner(BaseModel):
        x: int

    class Outer(BaseModel):
        inner: Inner

    @stage("local")
    async def local(ctx: StageContext, value: Outer) -> list[Inner]:
        return [value.inner]

    built = workflow("w", input=Outer).pipe(local).build()
    assert built.stages[0].stage.output_adapter.validate_python([{"x": 1}]) == [Inner(x=1)]
