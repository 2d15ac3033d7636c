"""What an import costs in euros, whether somebody must approve it, and stand-ins for a rate service and a bank."""

from collections.abc import Sequence
from decimal import Decimal

from kernel import Step
from service.demo.models import CurrencyReport, Due, Rates, Receipt

_CENT = Decimal("0.01")
# Euros for one unit, as a rate service would answer.
_RATES = {
    "AUD": "0.56",
    "CAD": "0.62",
    "CHF": "1.07",
    "CNY": "0.12",
    "CZK": "0.041",
    "DKK": "0.134",
    "EUR": "1",
    "GBP": "1.15",
    "JPY": "0.0056",
    "NOK": "0.085",
    "PLN": "0.235",
    "SEK": "0.091",
    "USD": "0.86",
}


class RatesUnavailableError(Exception):
    """The rate service did not answer."""


async def fetch_rates(step: Step) -> Rates:
    """Ask the rate service, which never answers the first time.

    Raises:
        RatesUnavailableError: this was the first time.
    """
    if step.attempt == 1:
        message = "the rate service does not answer"
        raise RatesUnavailableError(message)
    return Rates(euros={currency: Decimal(rate) for currency, rate in _RATES.items()})


async def pay(step: Step) -> Receipt:
    """Pay; the bank knows a payment that it is asked for twice by the step's key, the same in every execution."""
    return Receipt(reference=step.external_key)


def sum_up(currencies: Sequence[CurrencyReport], rates: Rates, limit: Decimal) -> Due:
    """Convert what is payable; above the limit, or with a currency that has no rate, it needs an approval."""
    unpriced = [total.currency for total in currencies if total.currency not in rates.euros]
    euros = sum(
        (total.payable * rates.euros[total.currency] for total in currencies if total.currency in rates.euros),
        Decimal(0),
    )
    return Due(euros=euros.quantize(_CENT), limit=limit, unpriced=unpriced)
