"""The parser of invoice exports: every fault that real exports have is a reject of its own line, and only of that."""

import csv
import io
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.demo.models import Parsed
from service.demo.parsing import COLUMNS, NotAnInvoiceFileError, parse_invoices

HEADER = ",".join(COLUMNS)
GOOD = "A-1,2026-03-01,Northgate,EUR,100.00,20.00,120.00,"


def parse(*lines: str) -> Parsed:
    return parse_invoices("\n".join([HEADER, *lines]) + "\n", "test.csv")


def line_with(**changes: str) -> str:
    cells = dict(zip(COLUMNS, GOOD.split(","), strict=True)) | changes
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells.values())
    return out.getvalue().removesuffix("\n")


def reasons(parsed: Parsed) -> list[tuple[int, str]]:
    return [(reject.line, reject.reason) for reject in parsed.rejects]


def test_a_good_line_is_an_invoice_with_exact_money() -> None:
    parsed = parse(GOOD)
    assert parsed.rejects == []
    (invoice,) = parsed.invoices
    assert (invoice.line, invoice.number, invoice.issued, invoice.customer) == (2, "A-1", date(2026, 3, 1), "Northgate")
    assert (invoice.net, invoice.tax, invoice.gross) == (Decimal("100.00"), Decimal("20.00"), Decimal("120.00"))
    assert invoice.model_dump(mode="json")["gross"] == "120.00"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issued": "2026-02-30"}, "bad_date"),
        ({"issued": "31.03.2026"}, "bad_date"),
        ({"issued": "20260301"}, "bad_date"),
        ({"issued": "2026-W09-7"}, "bad_date"),
        ({"issued": ""}, "bad_date"),
        ({"net": "n/a"}, "bad_amount"),
        ({"net": "12.5O"}, "bad_amount"),
        ({"net": ""}, "bad_amount"),
        ({"net": "NaN"}, "bad_amount"),
        ({"net": "1e2"}, "bad_amount"),
        ({"net": "1_00"}, "bad_amount"),
        ({"net": "\u0661\u0660\u0660"}, "bad_amount"),
        ({"net": "1,250"}, "bad_amount"),
        ({"net": "100.001"}, "bad_amount"),
        ({"currency": "EURO"}, "unknown_currency"),
        ({"currency": "eur"}, "unknown_currency"),
        ({"currency": ""}, "unknown_currency"),
        ({"customer": "  "}, "missing_customer"),
        ({"number": ""}, "missing_number"),
        ({"customer": "x" * 201}, "bad_customer"),
        ({"gross": "120.01"}, "wrong_sum"),
        ({"customer": "Caf\ufffd"}, "broken_encoding"),
        ({"note": "\ufffd"}, "broken_encoding"),
    ],
)
def test_a_faulty_cell_rejects_its_line_alone(changes: dict[str, str], reason: str) -> None:
    parsed = parse(GOOD, line_with(**changes), GOOD)
    assert reasons(parsed) == [(3, reason)]
    assert [invoice.line for invoice in parsed.invoices] == [2, 4]


def test_a_line_with_a_field_too_few_or_too_many_is_rejected() -> None:
    parsed = parse("A-1,2026-03-01,Northgate", GOOD + ",x", GOOD)
    assert reasons(parsed) == [(2, "wrong_number_of_fields"), (3, "wrong_number_of_fields")]


def test_line_numbers_stay_right_behind_quoted_newlines() -> None:
    parsed = parse(line_with(note='dock 4\nring "twice"'), line_with(issued="never"), line_with(note="a\nb\nc"), GOOD)
    assert reasons(parsed) == [(4, "bad_date")]
    assert [invoice.line for invoice in parsed.invoices] == [2, 5, 8]


def test_a_quote_that_nobody_closes_costs_one_line() -> None:
    parsed = parse(GOOD + '"see mail', *[GOOD] * 15)
    assert reasons(parsed) == [(2, "malformed_csv")]
    assert len(parsed.invoices) == 15


def test_a_quote_that_nobody_closes_costs_one_line_also_before_a_quoted_one() -> None:
    parsed = parse(GOOD + '"see mail', line_with(note="with, comma"), GOOD)
    assert reasons(parsed) == [(2, "malformed_csv")]
    assert [invoice.line for invoice in parsed.invoices] == [3, 4]


def test_a_quote_that_nobody_closes_on_the_last_line_is_rejected() -> None:
    assert reasons(parse(GOOD, GOOD + '"see mail')) == [(3, "malformed_csv")]


def test_blank_lines_are_passed_over_and_counted() -> None:
    parsed = parse("", GOOD, "   ", line_with(net="x"))
    assert reasons(parsed) == [(5, "bad_amount")]


def test_semicolons_decimal_commas_a_byte_order_mark_and_carriage_returns_are_read() -> None:
    rows = [
        ";".join(COLUMNS),
        "B-1;2026-03-01;Löwen;EUR;1.234,50;0,00;1234,50;Tor 2, links",
        "B-2;2026-03-01;Löwen;EUR;1,00;0.00;1.00;",
    ]
    parsed = parse_invoices("\ufeff" + "\r\n".join(rows), "b.csv")
    assert parsed.rejects == []
    assert [invoice.gross for invoice in parsed.invoices] == [Decimal("1234.50"), Decimal("1.00")]
    assert parsed.decimal_commas == 4


def test_columns_are_found_by_their_names() -> None:
    names = ["Gross", "NOTE", "tax", "net", "extra", "currency", "customer", "issued", "number"]
    parsed = parse_invoices(",".join(names) + "\n120,,20,100,?,EUR,Northgate,2026-03-01,A-1\n", "c.csv")
    assert [invoice.number for invoice in parsed.invoices] == ["A-1"]


@pytest.mark.parametrize("text", ["", "\n", "a,b\n1,2\n", '"', "\ufffd", HEADER.replace(",tax", "")])
def test_a_text_without_the_header_is_no_invoice_file(text: str) -> None:
    with pytest.raises(NotAnInvoiceFileError, match="lacks the columns"):
        parse_invoices(text, "x.csv")


CELLS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(st.lists(st.one_of(CELLS, st.just(GOOD), st.just('"'), st.just("\n")), max_size=40))
def test_whatever_comes_every_line_is_accounted_for(parts: Sequence[str]) -> None:
    text = HEADER + "\n" + "".join(parts)
    parsed = parse_invoices(text, "any.csv")
    numbers = [item.line for item in (*parsed.invoices, *parsed.rejects)]
    assert len(set(numbers)) == len(numbers)
    assert all(1 < number <= parsed.lines for number in numbers)
    assert parsed.lines == len(list(io.StringIO(text, newline="")))
    parsed.model_dump_json()


AMOUNTS = st.decimals(min_value="-9999999", max_value="9999999", places=2)


@given(
    st.lists(
        st.tuples(CELLS.filter(lambda text: bool(text.split()) and "\ufffd" not in text), AMOUNTS, AMOUNTS), max_size=20
    )
)
def test_what_a_csv_writer_wrote_is_read_back(rows: list[tuple[str, Decimal, Decimal]]) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for index, (note, net, tax) in enumerate(rows):
        writer.writerow(
            [f"N-{index}", "2026-03-01", "Northgate", "EUR", f"{net:.2f}", f"{tax:.2f}", f"{net + tax:.2f}", note]
        )
    parsed = parse_invoices(out.getvalue(), "written.csv")
    # A cell with many line breaks is taken for a quote that was never closed.
    long = {f"N-{index}" for index, (note, _, _) in enumerate(rows) if len(list(io.StringIO(note, newline=""))) >= 10}
    assert [(i.number, i.net, i.tax) for i in parsed.invoices if i.number not in long] == [
        (f"N-{index}", net, tax) for index, (_, net, tax) in enumerate(rows) if f"N-{index}" not in long
    ]


@pytest.mark.parametrize("name", ["northwind-stationery.csv", "bergwerk-technik.csv"])
def test_the_files_that_ship_have_every_fault(name: str) -> None:
    raw = files("service.demo").joinpath(name).read_bytes()
    parsed = parse_invoices(raw.decode("utf-8", errors="replace"), name)
    assert len(parsed.invoices) > 300
    assert parsed.decimal_commas > 0
    assert {reject.reason for reject in parsed.rejects} == {
        "bad_amount",
        "bad_date",
        "broken_encoding",
        "malformed_csv",
        "missing_customer",
        "unknown_currency",
        "wrong_number_of_fields",
        "wrong_sum",
    }
