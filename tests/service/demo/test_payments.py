"""What is due, who must approve it, and the stand-ins for a rate service and a bank."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import Step
from service.demo import payments
from service.demo.models import CurrencyReport, Rates

RATES = Rates(euros={"EUR": Decimal(1), "GBP": Decimal("1.15")})


def total(currency: str, payable: str) -> CurrencyReport:
    amount = Decimal(payable)
    return CurrencyReport(currency=currency, invoices=1, gross=amount, repeated=Decimal(0), payable=amount)


def step(attempt: int) -> Step:
    return Step("step", "tny-key", attempt, False, None, None)  # type: ignore[arg-type] - neither is looked at


def test_sums_are_converted_and_rounded_to_cents() -> None:
    due = payments.sum_up([total("EUR", "1.10"), total("GBP", "0.01")], RATES, Decimal(100))
    assert (due.euros, due.unpriced, due.needs_approval) == (Decimal("1.11"), [], False)


@pytest.mark.parametrize(("amount", "needs_approval"), [("100.00", False), ("100.01", True)])
def test_what_is_above_the_limit_needs_an_approval(amount: str, needs_approval: bool) -> None:
    assert payments.sum_up([total("EUR", amount)], RATES, Decimal(100)).needs_approval is needs_approval


def test_a_currency_without_a_rate_needs_an_approval_whatever_the_sum() -> None:
    due = payments.sum_up([total("EUR", "1"), total("XOF", "1")], RATES, Decimal(100))
    assert (due.euros, due.unpriced, due.needs_approval) == (Decimal("1.00"), ["XOF"], True)


@given(st.lists(st.decimals(-(10**12), 10**12, places=2), max_size=5))
def test_euros_add_up_exactly(amounts: list[Decimal]) -> None:
    due = payments.sum_up([total("EUR", str(amount)) for amount in amounts], RATES, Decimal(0))
    assert due.euros == sum(amounts)


def test_the_rate_service_answers_from_the_second_time_on() -> None:
    with pytest.raises(payments.RatesUnavailableError):
        asyncio.run(payments.fetch_rates(step(1)))
    assert asyncio.run(payments.fetch_rates(step(2))).euros["EUR"] == 1


def test_the_bank_is_given_the_steps_key() -> None:
    assert asyncio.run(payments.pay(step(1))).reference == asyncio.run(payments.pay(step(2))).reference == "tny-key"
