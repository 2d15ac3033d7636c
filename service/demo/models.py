"""What the stages of the invoice import hand to each other. Money is decimal, and a string in JSON."""

from datetime import date
from decimal import Decimal

from pydantic import BaseModel, Field


class InvoiceFile(BaseModel):
    """The run's input: the text of a CSV export, undecodable bytes replaced by U+FFFD."""

    csv: str
    filename: str = "invoices.csv"


class Invoice(BaseModel):
    """An accepted line; `line` counts the lines of the file from 1, the header included."""

    line: int
    number: str
    issued: date
    customer: str
    currency: str
    net: Decimal
    tax: Decimal
    gross: Decimal


class Reject(BaseModel):
    """A line that was not accepted: why, and how it begins."""

    line: int
    reason: str
    message: str
    text: str


class Parsed(BaseModel):
    """The file, line by line; `decimal_commas` counts the amounts that were written with one."""

    filename: str
    lines: int
    invoices: list[Invoice] = Field(default_factory=list[Invoice])
    rejects: list[Reject] = Field(default_factory=list[Reject])
    decimal_commas: int = 0


class CurrencyTotal(BaseModel):
    """The sums of a currency."""

    currency: str
    invoices: int
    net: Decimal
    tax: Decimal
    gross: Decimal


class CustomerTotal(BaseModel):
    """What a customer was invoiced in a currency."""

    customer: str
    currency: str
    invoices: int
    gross: Decimal


class Totals(BaseModel):
    """Sums over all accepted lines, repeated ones included; customers by currency, the largest sum first."""

    currencies: list[CurrencyTotal]
    customers: list[CustomerTotal]


class DuplicateGroup(BaseModel):
    """Lines that look like one invoice.

    `repeated`: the same invoice again. `conflicting`: the same number with another content. `suspected`: the same
    customer, day and amount under different numbers. `surplus` is what the repeated lines add to the totals, 0 for
    the other kinds.
    """

    kind: str
    numbers: list[str]
    customer: str
    currency: str
    lines: list[int]
    surplus: Decimal


class Duplicates(BaseModel):
    """Every group of lines that look like one invoice, by first line."""

    groups: list[DuplicateGroup]


class Findings(BaseModel):
    """What the payment receives: the outputs of the two stages before it."""

    totals: Totals
    duplicates: Duplicates


class CurrencyReport(BaseModel):
    """The sums of a currency; `payable` is the gross sum without repeated lines."""

    currency: str
    invoices: int
    gross: Decimal
    repeated: Decimal
    payable: Decimal


class PaymentConfig(BaseModel):
    """The configuration of the stage `payment`: what may be paid without an approval, in euros."""

    approval_limit: Decimal = Decimal(1_500_000)


class Rates(BaseModel):
    """Exchange rates: euros for one unit of a currency."""

    euros: dict[str, Decimal]


class Due(BaseModel):
    """What is to be paid, in euros; `unpriced` are the currencies that have no rate, whose invoices are not in it."""

    euros: Decimal
    limit: Decimal
    unpriced: list[str] = Field(default_factory=list[str])

    @property
    def needs_approval(self) -> bool:
        """Whether a person must look at it first."""
        return self.euros > self.limit or bool(self.unpriced)


class Approval(BaseModel):
    """The payload of the signal that a payment above the limit waits for."""

    approved: bool
    by: str


class Receipt(BaseModel):
    """The bank's answer."""

    reference: str


class Payment(BaseModel):
    """What was paid, and who approved it where that was needed."""

    due: Due
    approved_by: str | None
    reference: str


class ImportReport(BaseModel):
    """The run's output."""

    filename: str
    lines: int
    accepted: int
    rejected: int
    decimal_commas: int
    reasons: dict[str, int]
    currencies: list[CurrencyReport]
    top_customers: list[CustomerTotal]
    duplicates: list[DuplicateGroup]
    rejects: list[Reject]
    payment: Payment
