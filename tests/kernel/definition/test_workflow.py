import enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from kernel.definition.registry import Registry
from kernel.definition.stage import AnyStage, stage
from kernel.definition.workflow import Workflow, workflow
from kernel.errors import (
    BuilderError,
    DefinitionVersionConflictError,
    DuplicateStageIdError,
    DuplicateWorkflowError,
    EmptyWorkflowError,
    InvalidConfigError,
    InvalidInputError,
    InvalidOptionError,
    UnknownRequirementError,
)
from kernel.execution.context import StageContext


class Line(BaseModel):
    count: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Color(enum.StrEnum):
    RED = "red"


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    lines: list[Line]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    either: Line | list[int] | None = None
    by_number: dict[int, int] = {}
    the_color: Color = Field(default=Color.RED, alias="theColor")


class Config(BaseModel):
    vat: float = 0.2


class Strict(BaseModel):
    key: str


def named(stage_id: str, requires: Any = ()) -> AnyStage:
    @stage(stage_id, requires=requires)
    async def body(ctx: StageContext) -> int:
        return 1

    return body


@stage("price")
async def price(ctx: StageContext[Config], order: Order) -> int:
    return 1


@stage("charge")
async def charge(ctx: StageContext[Strict], total: int) -> int:
    return total


ORDERS = workflow("orders", input=Order).pipe(price).build()


def test_stages_are_placed_in_groups() -> None:
    built = workflow("w").pipe(named("a")).parallel(named("b"), named("c")).pipe(named("d")).build()
    assert [(p.stage.id, p.group, p.number) for p in built.stages] == [
        ("a", 1, 1),
        ("b", 2, 2),
        ("c", 2, 3),
        ("d", 3, 4),
    ]
    assert [[p.stage.id for p in group] for group in built.groups] == [["a"], ["b", "c"], ["d"]]
    assert built.placed("c") is built.stages[2]
    assert built.placed("x") is None


def test_a_builder_is_not_changed_by_what_follows() -> None:
    base = workflow("w").pipe(named("a"))
    longer = base.pipe(named("b")).build()
    assert len(base.build().stages) == 1
    assert len(longer.stages) == 2


def test_what_cannot_be_built_is_refused() -> None:
    a = named("a")
    with pytest.raises(EmptyWorkflowError):
        workflow("w").build()
    with pytest.raises(EmptyWorkflowError):
        workflow("w").parallel()
    with pytest.raises(DuplicateStageIdError):
        workflow("w").pipe(a).pipe(named("a")).build()
    for builder in (
        workflow("w").pipe(named("b", a)),
        workflow("w").parallel(a, named("b", a)),
        workflow("w").pipe(named("b", a)).pipe(a),
        workflow("w").pipe(named("a", "a")),
    ):
        with pytest.raises(UnknownRequirementError):
            builder.build()
    workflow("w").pipe(a).pipe(named("b", a)).build()
    with pytest.raises(InvalidOptionError):
        workflow("w").pipe(named)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        workflow("")
    with pytest.raises(ValueError):
        workflow("w").version("sha256-" + "0" * 32)


@pytest.mark.parametrize(
    ("value", "pointers"),
    [
        ({}, {"/input/lines"}),
        ({"lines": [{"count": 1}, {"count": "x"}]}, {"/input/lines/1/count"}),
        ({"lines": [{"count": 1}, {}]}, {"/input/lines/1/count"}),
        ({"lines": [], "more": 1}, {"/input/more"}),
        ({"lines": [], "a/b~": 1}, {"/input/a~1b~0"}),
        ({"lines": [], "pet": {}}, {"/input/pet/kind"}),
        ({"lines": [], "pet": {"kind": "cow"}}, {"/input/pet/kind"}),
        ({"lines": [], "pet": {"kind": "cat"}}, {"/input/pet/lives"}),
        ({"lines": [], "either": {}}, {"/input/either/count", "/input/either"}),
        ({"lines": [], "either": ["x"]}, {"/input/either", "/input/either/0"}),
        ({"lines": [], "either": {"Line": None}}, {"/input/either", "/input/either/count"}),
        ({"lines": [], "by_number": {"x": 1}}, {"/input/by_number"}),
        ({"lines": [], "by_number": {"1": "x"}}, {"/input/by_number/1"}),
        ({"lines": [], "theColor": "blue"}, {"/input/theColor"}),
        ([], {"/input"}),
        (None, {"/input"}),
        ({"lines": [float("nan")]}, {"/input/lines/0"}),
        ({"lines": [], "x": "\x00"}, {"/input/x"}),
    ],
)
def test_a_fault_is_pointed_at(value: object, pointers: set[str]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ORDERS.validate_input(value)
    assert {error.pointer for error in refused.value.errors} == pointers
    assert all(error.code and error.message for error in refused.value.errors)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["cat", "dog"]),
    lambda items: (
        st.lists(items, max_size=3)
        | st.dictionaries(
            st.sampled_from(["lines", "pet", "kind", "either", "by_number", "count", "int", "Line", "[key]"]), items
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_a_pointer_leads_into_the_value_or_to_what_is_missing_there(value: object) -> None:
    try:
        ORDERS.validate_input(value)
    except InvalidInputError as refused:
        for error in refused.errors:
            at: Any = {"input": value}
            tokens = [token.replace("~1", "/").replace("~0", "~") for token in error.pointer.split("/")[1:]]
            for index, token in enumerate(tokens):
                key: Any = int(token) if isinstance(at, list) else token
                if isinstance(at, dict) and key not in at:
                    assert index == len(tokens) - 1
                    break
                at = at[key]


def test_many_faults_are_cut_short() -> None:
    with pytest.raises(InvalidInputError) as refused:
        ORDERS.validate_input({"lines": [{}] * 10_000})
    assert len(refused.value.errors) == 50


@pytest.mark.parametrize("text", ["", "{", '{"lines":[],"theColor":"\\ud800"}', "[" * 300 + "]" * 300])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ORDERS.check_input_json(text)
    assert refused.value.errors[0].pointer == "/input"


def test_configs_of_all_stages_are_checked_also_those_not_given() -> None:
    built = workflow("w", input=Order).pipe(price).pipe(charge).pipe(named("free")).build()
    for config, pointers in (
        ({}, {"/config/charge/key"}),
        ({"charge": {"key": "k"}, "nope": {}}, {"/config/nope"}),
        ({"charge": {"key": "k"}, "price": {"vat": "x"}}, {"/config/price/vat"}),
        ({"charge": 3, "free": 3}, {"/config/charge", "/config/free"}),
        ({"charge": {"key": "a\x00"}}, {"/config/charge/key"}),
    ):
        with pytest.raises(InvalidConfigError) as refused:
            built.validate_config(config)
        assert {error.pointer for error in refused.value.errors} == pointers
    built.validate_config({"charge": {"key": "k"}, "free": {"anything": [1]}})
    with pytest.raises(InvalidConfigError):
        built.check_config_json("[]")
    ORDERS.validate_config({})


def shaped(annotation: Any, **options: Any) -> Workflow:
    async def body(ctx: StageContext, value: Any) -> Any: ...

    body.__annotations__ |= {"value": annotation, "return": int}
    return workflow("w", input=annotation).pipe(stage("a", **options)(body)).build()


def model(name: str, doc: str, *, extra: dict[str, Any] | None = None) -> type[BaseModel]:
    inner = type(
        name + "Inner", (BaseModel,), {"__annotations__": {"title": str}, "__doc__": doc, "__module__": __name__}
    )
    fields = {"inner": inner, "description": int, "tags": list[inner]} | (extra or {})  # type: ignore[valid-type]
    return type(name, (BaseModel,), {"__annotations__": fields, "__doc__": doc, "__module__": __name__})


def test_names_texts_and_bodies_are_no_part_of_the_version() -> None:
    first, second = shaped(model("One", "x")), shaped(model("Two", "y"), name="Other", max_attempts=9, timeout=5)
    assert first.definition_version == second.definition_version
    assert first.definition_version == first.structure_hash
    assert len(first.definition_version) == len("sha256-") + 32
    assert not first.declared


def test_the_shape_is_the_version() -> None:
    versions = {
        shaped(model("One", "x")).definition_version,
        shaped(model("One", "x", extra={"more": int})).definition_version,
        shaped(int).definition_version,
        workflow("w").pipe(named("a")).build().definition_version,
        workflow("w").pipe(named("b")).build().definition_version,
        workflow("w").pipe(named("a")).pipe(named("b")).build().definition_version,
        workflow("w").pipe(named("b")).pipe(named("a")).build().definition_version,
        workflow("w").parallel(named("a"), named("b")).build().definition_version,
        workflow("w").pipe(named("a")).pipe(named("b", "a")).build().definition_version,
    }
    assert len(versions) == 9


class Node(BaseModel):
    title: str
    children: list["Node"] = []


def test_a_model_may_refer_to_itself() -> None:
    assert shaped(Node).definition_version == shaped(Node).definition_version


def test_a_version_can_be_declared() -> None:
    built = workflow("w").pipe(named("a")).version("2026-12-01").build()
    assert (built.definition_version, built.declared) == ("2026-12-01", True)
    assert built.structure_hash.startswith("sha256-")
    assert built.snapshot()["definition_version"] == "2026-12-01"


def test_a_registry_finds_only_what_it_serves() -> None:
    registry = Registry([ORDERS])
    assert registry.workflows == (ORDERS,)
    assert registry.served == (("orders", ORDERS.definition_version),)
    assert registry.get("orders") is ORDERS
    assert registry.get("x") is None
    assert registry.find("orders", ORDERS.definition_version) is ORDERS
    assert registry.find("orders", "other") is None
    assert Registry([]).served == ()


def test_a_registry_refuses_two_of_one_id() -> None:
    declared = workflow("w").pipe(named("a")).version("1").build()
    with pytest.raises(DuplicateWorkflowError):
        Registry([declared, workflow("w").pipe(named("a")).build()])
    with pytest.raises(DuplicateWorkflowError):
        Registry([declared, declared])
    with pytest.raises(DefinitionVersionConflictError):
        Registry([declared, workflow("w").pipe(named("b")).version("1").build()])
    with pytest.raises(BuilderError, match="build"):
        Registry([workflow("w").pipe(named("a"))])  # type: ignore[list-item]
