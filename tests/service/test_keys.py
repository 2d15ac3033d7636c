"""Keys as text: what is minted is read, anything else is not."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import keys


@given(st.uuids(), st.uuids())
def test_what_is_minted_is_read(tenant_id: UUID, key_id: UUID) -> None:
    key = keys.mint(tenant_id, key_id)
    assert key.text.startswith("tny_")
    assert keys.parse(key.text) == key
    assert (key.tenant_id, key.key_id) == (tenant_id, key_id)
    assert key.matches(key.secret_hash)
    assert key.text not in repr(key)


@given(st.uuids(), st.data())
def test_a_typo_is_noticed(tenant_id: UUID, data: st.DataObject) -> None:
    text = keys.mint(tenant_id, tenant_id).text
    place = data.draw(st.integers(4, len(text) - 1))
    letter = data.draw(st.sampled_from("0123456789abcxyzABCXYZ"))
    mistyped = text[:place] + letter + text[place + 1 :]
    assert (keys.parse(mistyped) is None) == (mistyped != text)


@given(st.text(max_size=120))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert keys.parse(text) is None
    assert keys.parse("tny_" + text) is None


@pytest.mark.parametrize("zeros", [0, 1, 15])
def test_ids_of_leading_zeros_have_one_text(zeros: int) -> None:
    tenant_id = UUID(bytes=bytes(zeros) + b"\x01" * (16 - zeros))
    key = keys.mint(tenant_id, UUID(int=0))
    assert keys.parse(key.text) == key
    assert keys.parse("tny_0" + key.text.removeprefix("tny_")) is None
    assert keys.parse("tny_00" + key.text.removeprefix("tny_")) is None
