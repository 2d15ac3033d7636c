import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kernel.errors import PayloadError
from kernel.payloads import MAX_DEPTH, check, clean_text, dump, dump_typed, pointer_token

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(scalars, lambda items: st.lists(items) | st.dictionaries(texts, items), max_leaves=20)


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@given(json_values)
def test_what_goes_in_comes_out_the_same(value: object) -> None:
    decoded = json.loads(dump(value))
    assert decoded == value
    assert repr(decoded) == repr(value)


@given(json_values)
def test_typed_and_plain_encoding_mean_the_same(value: object) -> None:
    assert json.loads(dump_typed(TypeAdapter(Any), value)) == value


@pytest.mark.parametrize(
    ("value", "pointer", "fault"),
    [
        ({"a": [1, float("nan")]}, "/a/1", "not_finite"),
        (float("inf"), "", "not_finite"),
        ([{"b": "x\x00y"}], "/0/b", "nul_character"),
        ({"a\x00": 1}, "", "nul_character"),
        ({"deep": {"k\ud800": 1}}, "/deep", "lone_surrogate"),
        ({"a": "\udfff"}, "/a", "lone_surrogate"),
        ({"a": {1: 2}}, "/a", "bad_key"),
        ({"a": {None: 2}}, "/a", "bad_key"),
        ({"a/b": {"~": object()}}, "/a~1b/~0", "not_serializable"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "/a", "not_serializable"),
        ({"a": {1, 2}}, "/a", "not_serializable"),
        (nested(MAX_DEPTH + 1), "/0" * MAX_DEPTH, "too_deep"),
        (nested(100_000), "/0" * MAX_DEPTH, "too_deep"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(value: object, pointer: str, fault: str) -> None:
    with pytest.raises(PayloadError) as refused:
        check(value)
    assert (refused.value.pointer, refused.value.fault) == (pointer, fault)
    assert refused.value.below("/input").pointer == "/input" + pointer


@pytest.mark.parametrize(
    "value", [nested(MAX_DEPTH), [[]] * 1_000, "\\u0000", {"k": "\\\\u0000"}, "\\ud800", "null NaN", 2**80, (1, 2)]
)
def test_what_only_looks_bad_is_accepted(value: object) -> None:
    decoded = json.loads(dump(value))
    assert decoded == (list(value) if isinstance(value, tuple) else value)
    assert json.loads(dump_typed(TypeAdapter(Any), value)) == decoded


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value += [value, value]
    with pytest.raises(PayloadError):
        dump(value)


class Everything(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    day: date = date(2026, 12, 1)
    amount: Decimal = Decimal("1.10")
    key: UUID = UUID(int=1)
    pair: tuple[int, int] = (1, 2)
    rate: float | None = None
    extra: Any = None
    total: int = Field(default=3, alias="theTotal")


def test_types_follow_pydantic_and_aliases_are_written() -> None:
    assert json.loads(dump_typed(TypeAdapter(Everything), Everything())) == {
        "day": "2026-12-01",
        "amount": "1.10",
        "key": str(UUID(int=1)),
        "pair": [1, 2],
        "rate": None,
        "extra": None,
        "theTotal": 3,
    }


@pytest.mark.parametrize(
    ("value", "pointer", "fault"),
    [
        (Everything(rate=float("nan")), "/rate", "not_finite"),
        (Everything(rate=float("-inf")), "/rate", "not_finite"),
        (Everything(extra=[{"a": float("nan")}]), "/extra/0/a", "not_finite"),
        (Everything(extra={"a": "\x00"}), "/extra/a", "nul_character"),
        (Everything(extra="\ud800"), "", "not_serializable"),
        (Everything(extra=object()), "", "not_serializable"),
        (Everything(extra=nested(MAX_DEPTH)), "/extra" + "/0" * (MAX_DEPTH - 1), "too_deep"),
    ],
)
def test_a_model_is_held_to_the_same(value: Everything, pointer: str, fault: str) -> None:
    with pytest.raises(PayloadError) as refused:
        dump_typed(TypeAdapter(Everything), value)
    assert (refused.value.pointer, refused.value.fault) == (pointer, fault)


@given(st.text(st.characters()), st.integers(0, 64))
def test_cleaned_text_can_be_stored_and_is_short(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned.encode()) <= limit
    assert "\x00" not in cleaned
    assert clean_text(cleaned, limit) == cleaned


def test_pointers_are_escaped() -> None:
    assert pointer_token("a/b~c") == "/a~1b~0c"
