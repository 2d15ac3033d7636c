"""Amounts: what is read is exact, what is doubtful is refused."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.demo.money import DIGITS, AmountError, parse_amount


@pytest.mark.parametrize(
    ("text", "amount", "decimal_comma"),
    [
        ("0", "0", False),
        ("12.5", "12.5", False),
        (" 1,234.56 ", "1234.56", False),
        ("1,234,567", "1234567", False),
        ("1234,56", "1234.56", True),
        ("1.234.567,8", "1234567.8", True),
        ("-0,05", "-0.05", True),
        ("1\u00a0234,56", "1234.56", True),
        ("1 234.56", "1234.56", False),
    ],
)
def test_amounts_are_read_in_both_styles(text: str, amount: str, decimal_comma: bool) -> None:
    assert parse_amount(text, 2) == (Decimal(amount), decimal_comma)


@pytest.mark.parametrize(
    "text", ["", "-", "1.2.3", "1,23,4", "12,34,567.00", "+5", "0x1f", "Infinity", "1" * 16, "5 EUR", "\uff11\uff12"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(AmountError):
        parse_amount(text, 2)


@pytest.mark.parametrize("text", ["1,234", "1.234", "-12,345"])
def test_an_amount_with_two_readings_is_refused(text: str) -> None:
    with pytest.raises(AmountError, match="two ways"):
        parse_amount(text, 2)


def test_a_currency_of_three_digits_has_one_reading_with_a_point() -> None:
    assert parse_amount("1.234", DIGITS["KWD"]) == (Decimal("1.234"), False)


@pytest.mark.parametrize(
    ("text", "currency"), [("10.5", "JPY"), ("10.555", "KRW"), ("10.5555", "KWD"), ("1234.567", "EUR")]
)
def test_more_digits_than_the_currency_has_are_refused(text: str, currency: str) -> None:
    with pytest.raises(AmountError):
        parse_amount(text, DIGITS[currency])


@given(st.decimals(min_value="-999999999", max_value="999999999", places=2))
def test_every_way_to_write_an_amount_reads_as_that_amount(amount: Decimal) -> None:
    grouped = f"{amount:,.2f}"
    swapped = grouped.translate(str.maketrans(",.", ".,"))
    for text in (f"{amount:.2f}", grouped, swapped, f"{amount:.2f}".replace(".", ",")):
        assert parse_amount(text, 2)[0] == amount


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        amount, _ = parse_amount(text, 2)
    except AmountError:
        return
    assert amount.is_finite()
