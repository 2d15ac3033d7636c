"""What is found out about the accepted lines: sums, lines that look like one invoice, and the report of both."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date
from decimal import Decimal

from service.demo.models import (
    CurrencyReport,
    CurrencyTotal,
    CustomerTotal,
    DuplicateGroup,
    Duplicates,
    Findings,
    ImportReport,
    Invoice,
    Parsed,
    Payment,
    Totals,
)

TOP_CUSTOMERS = 3
_NOTHING = Decimal(0)


def total_up(invoices: Iterable[Invoice]) -> Totals:
    """Add up by currency, and by customer and currency; customers are told apart without regard to case."""
    by_currency: dict[str, CurrencyTotal] = {}
    by_customer: dict[tuple[str, str], CustomerTotal] = {}
    for invoice in invoices:
        currency = by_currency.setdefault(
            invoice.currency,
            CurrencyTotal(currency=invoice.currency, invoices=0, net=_NOTHING, tax=_NOTHING, gross=_NOTHING),
        )
        currency.invoices += 1
        currency.net += invoice.net
        currency.tax += invoice.tax
        currency.gross += invoice.gross
        customer = by_customer.setdefault(
            (invoice.customer.casefold(), invoice.currency),
            CustomerTotal(customer=invoice.customer, currency=invoice.currency, invoices=0, gross=_NOTHING),
        )
        customer.invoices += 1
        customer.gross += invoice.gross
    return Totals(
        currencies=sorted(by_currency.values(), key=lambda total: total.currency),
        customers=sorted(by_customer.values(), key=lambda total: (total.currency, -total.gross, total.customer)),
    )


def find_duplicates(invoices: Iterable[Invoice]) -> Duplicates:
    """Group the lines that look like one invoice; a line can be in one group by number and in one by content."""
    by_number: dict[str, list[Invoice]] = defaultdict(list)
    by_content: dict[tuple[str, str, date, Decimal], list[Invoice]] = defaultdict(list)
    for invoice in invoices:
        by_number[invoice.number.casefold()].append(invoice)
        by_content[_content(invoice)].append(invoice)
    groups = [_same_number(alike) for alike in by_number.values() if len(alike) > 1]
    groups += [
        _group("suspected", alike, _NOTHING)
        for alike in by_content.values()
        if len({invoice.number.casefold() for invoice in alike}) > 1
    ]
    return Duplicates(groups=sorted(groups, key=lambda group: (group.lines, group.kind)))


def sum_payable(findings: Findings) -> list[CurrencyReport]:
    """Take repeated lines out of the sums."""
    surplus: dict[str, Decimal] = defaultdict(Decimal)
    for group in findings.duplicates.groups:
        surplus[group.currency] += group.surplus
    return [
        CurrencyReport(
            currency=total.currency,
            invoices=total.invoices,
            gross=total.gross,
            repeated=surplus[total.currency],
            payable=total.gross - surplus[total.currency],
        )
        for total in findings.totals.currencies
    ]


def write_report(parsed: Parsed, findings: Findings, payment: Payment) -> ImportReport:
    """Put together what was accepted, refused and paid, and what deserves a second look."""
    return ImportReport(
        filename=parsed.filename,
        lines=parsed.lines,
        accepted=len(parsed.invoices),
        rejected=len(parsed.rejects),
        decimal_commas=parsed.decimal_commas,
        reasons=dict(sorted(Counter(reject.reason for reject in parsed.rejects).items())),
        currencies=sum_payable(findings),
        top_customers=_top(findings.totals.customers),
        duplicates=findings.duplicates.groups,
        rejects=parsed.rejects,
        payment=payment,
    )


def _top(customers: list[CustomerTotal]) -> list[CustomerTotal]:
    rank: Counter[str] = Counter()
    best: list[CustomerTotal] = []
    for customer in customers:
        rank[customer.currency] += 1
        if rank[customer.currency] <= TOP_CUSTOMERS:
            best.append(customer)
    return best


def _content(invoice: Invoice) -> tuple[str, str, date, Decimal]:
    return (invoice.customer.casefold(), invoice.currency, invoice.issued, invoice.gross)


def _same_number(alike: list[Invoice]) -> DuplicateGroup:
    if len({_content(invoice) for invoice in alike}) > 1:
        return _group("conflicting", alike, _NOTHING)
    return _group("repeated", alike, sum((invoice.gross for invoice in alike[1:]), _NOTHING))


def _group(kind: str, alike: list[Invoice], surplus: Decimal) -> DuplicateGroup:
    first = alike[0]
    return DuplicateGroup(
        kind=kind,
        numbers=sorted({invoice.number for invoice in alike}),
        customer=first.customer,
        currency=first.currency,
        lines=[invoice.line for invoice in alike],
        surplus=surplus,
    )
