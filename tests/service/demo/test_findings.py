"""Sums, duplicates and the report that puts them together."""

from datetime import date
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from service.demo.findings import find_duplicates, total_up, write_report
from service.demo.models import Due, Findings, ImportReport, Invoice, Parsed, Payment, Reject


def invoice(
    line: int, number: str, gross: str = "120.00", customer: str = "Northgate", currency: str = "EUR"
) -> Invoice:
    total = Decimal(gross)
    return Invoice(
        line=line,
        number=number,
        issued=date(2026, 3, 1),
        customer=customer,
        currency=currency,
        net=total,
        tax=Decimal(0),
        gross=total,
    )


def report(*invoices: Invoice, rejects: tuple[Reject, ...] = ()) -> ImportReport:
    parsed = Parsed(filename="a.csv", lines=9, invoices=list(invoices), rejects=list(rejects))
    payment = Payment(due=Due(euros=Decimal(1), limit=Decimal(2)), approved_by=None, reference="r")
    return write_report(parsed, Findings(totals=total_up(invoices), duplicates=find_duplicates(invoices)), payment)


def test_sums_are_exact_and_apart_by_currency() -> None:
    totals = total_up([invoice(2, "1", "0.10"), invoice(3, "2", "0.20"), invoice(4, "3", "7", currency="JPY")])
    assert [(total.currency, total.invoices, total.gross) for total in totals.currencies] == [
        ("EUR", 2, Decimal("0.30")),
        ("JPY", 1, Decimal(7)),
    ]


def test_customers_are_one_whatever_the_case_and_the_largest_comes_first() -> None:
    totals = total_up([invoice(2, "1", "5", "ACME"), invoice(3, "2", "5", "Acme"), invoice(4, "3", "20", "Zoo")])
    assert [(total.customer, total.gross) for total in totals.customers] == [
        ("Zoo", Decimal(20)),
        ("ACME", Decimal(10)),
    ]


def test_the_same_invoice_again_is_repeated_and_its_amount_is_surplus() -> None:
    (group,) = find_duplicates([invoice(2, "A-1"), invoice(5, "a-1"), invoice(9, "A-1")]).groups
    assert (group.kind, group.lines, group.surplus) == ("repeated", [2, 5, 9], Decimal("240.00"))


def test_one_number_with_two_contents_conflicts() -> None:
    (group,) = find_duplicates([invoice(2, "A-1"), invoice(5, "A-1", "620.00")]).groups
    assert (group.kind, group.lines, group.surplus) == ("conflicting", [2, 5], Decimal(0))


def test_one_content_under_two_numbers_is_suspected() -> None:
    (group,) = find_duplicates([invoice(2, "A-1"), invoice(3, "A-2")]).groups
    assert (group.kind, group.numbers) == ("suspected", ["A-1", "A-2"])


def test_the_report_takes_repeated_lines_out_of_what_is_payable() -> None:
    reject = Reject(line=4, reason="bad_date", message="m", text="t")
    made = report(invoice(2, "A-1"), invoice(3, "A-1"), invoice(5, "B-1", "1.00"), rejects=(reject,))
    assert (made.accepted, made.rejected, made.reasons) == (3, 1, {"bad_date": 1})
    (total,) = made.currencies
    assert (total.gross, total.repeated, total.payable) == (Decimal("241.00"), Decimal("120.00"), Decimal("121.00"))


def test_the_report_of_an_empty_file_is_empty() -> None:
    made = report()
    assert (made.accepted, made.currencies, made.duplicates, made.top_customers) == (0, [], [], [])


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from(["1", "2"]), st.sampled_from(["EUR", "USD"]))))
def test_payable_is_the_sum_without_repeats(rows: list[tuple[str, str, str]]) -> None:
    invoices = [
        invoice(line, f"{number}{currency}", amount, currency=currency)
        for line, (number, amount, currency) in enumerate(rows, 2)
    ]
    made = report(*invoices)
    assert sum(total.invoices for total in made.currencies) == len(rows)
    for total in made.currencies:
        assert total.gross == sum(item.gross for item in invoices if item.currency == total.currency)
        assert total.payable == total.gross - sum(
            group.surplus for group in made.duplicates if group.currency == total.currency
        )
