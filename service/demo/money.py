"""Amounts and currencies as exports write them."""

import re
from decimal import Decimal
from typing import Final

# ISO 4217 alphabetic codes in circulation, by the number of digits behind the decimal point.
_TWO_DIGITS: Final = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP "
    "CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR "
    "JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN "
    "NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP "
    "SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VED VES WST XCD YER ZAR ZMW "
)
_NO_DIGITS: Final = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_THREE_DIGITS: Final = "BHD IQD JOD KWD LYD OMR TND"
DIGITS: Final = (
    dict.fromkeys(_TWO_DIGITS.split(), 2)
    | dict.fromkeys(_NO_DIGITS.split(), 0)
    | dict.fromkeys(_THREE_DIGITS.split(), 3)
)
_MOST_DIGITS = 3

_POINT = re.compile(r"-?(\d{1,15}|\d{1,3}(,\d{3}){1,4})(\.\d+)?", re.ASCII)
_COMMA = re.compile(r"-?(\d{1,15}|\d{1,3}(\.\d{3}){1,4}),\d+", re.ASCII)
_TWO_READINGS = re.compile(r"-?\d{1,3}[.,]\d{3}", re.ASCII)


class AmountError(ValueError):
    """The text is not an amount of money in its currency; the message says why."""


def parse_amount(text: str, digits: int) -> tuple[Decimal, bool]:
    """Read `1234.56`, `1,234.56`, `1234,56` or `1.234,56`; return the amount and whether it had a decimal comma.

    `digits` is how many the currency has behind the decimal point; more are refused. `1,234` and `1.234` read both
    ways, a thousandfold apart, and are refused rather than guessed, but for `1.234` in a currency of three digits.

    Raises:
        AmountError: anything else, exponents and `NaN` included.
    """
    shown = text.strip()[:40]
    compact = text.strip().replace("\u00a0", "").replace(" ", "")
    if _TWO_READINGS.fullmatch(compact) and not (digits == _MOST_DIGITS and "." in compact):
        message = f"{shown!r} can be read in two ways"
        raise AmountError(message)
    if _POINT.fullmatch(compact):
        plain, decimal_comma = compact.replace(",", ""), False
    elif _COMMA.fullmatch(compact):
        plain, decimal_comma = compact.replace(".", "").replace(",", "."), True
    else:
        message = f"{shown!r} is not an amount"
        raise AmountError(message)
    if len(plain.partition(".")[2]) > digits:
        message = f"{shown!r} has more than {digits} digits behind the decimal point"
        raise AmountError(message)
    return Decimal(plain), decimal_comma
