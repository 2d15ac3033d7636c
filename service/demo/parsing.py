"""From the text of an exported CSV to invoices and rejects, line by line.

A reject never stops the file: it carries its line number, a reason that programs can count and a sentence for people.
"""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from service.demo.models import Invoice, Parsed, Reject
from service.demo.money import DIGITS, AmountError, parse_amount

COLUMNS: Final = ("number", "issued", "customer", "currency", "net", "tax", "gross", "note")
# A quote that nobody closes must not swallow the rest of the file.
MAX_LINES_OF_A_RECORD = 10
MAX_TEXT_LENGTH = 200
_SHOWN = 80
_REPLACEMENT = "\ufffd"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class NotAnInvoiceFileError(ValueError):
    """The text has no header row with the columns of an invoice export."""


class _RejectedError(ValueError):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Record:
    line: int
    text: str
    fields: list[str] | None
    fault: str = ""


def parse_invoices(text: str, filename: str) -> Parsed:
    """Read the whole file; every record becomes an invoice or a reject, and blank lines are passed over.

    Raises:
        NotAnInvoiceFileError: the first row is not the header.
    """
    lines = list(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    delimiter = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
    records = _records(lines, delimiter)
    positions = _positions(next(records, None))
    parsed = Parsed(filename=filename, lines=len(lines))
    for record in records:
        try:
            invoice, decimal_commas = _invoice(record, positions)
        except _RejectedError as error:
            shown = record.text.strip()[:_SHOWN]
            parsed.rejects.append(Reject(line=record.line, reason=error.reason, message=str(error), text=shown))
        else:
            parsed.invoices.append(invoice)
            parsed.decimal_commas += decimal_commas
    return parsed


def _records(lines: list[str], delimiter: str) -> Iterator[_Record]:
    start = 0
    while start < len(lines):
        record, used = _record(lines, start, delimiter)
        if record.text.strip():
            yield record
        start += used


def _record(lines: list[str], start: int, delimiter: str) -> tuple[_Record, int]:
    """Read the record that begins on this line: more lines as long as a quote is open, but not without end."""
    fault = "the quotes of this line do not match"
    for end in range(start + 1, min(start + MAX_LINES_OF_A_RECORD, len(lines)) + 1):
        try:
            rows = list(csv.reader(lines[start:end], delimiter=delimiter, strict=True))
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                continue
            fault = f"this line is no CSV: {error}"
            break
        fields = rows[0] if rows else []
        return _Record(start + 1, "".join(lines[start:end]), fields), end - start
    return _Record(start + 1, lines[start], None, fault), 1


def _positions(header: _Record | None) -> dict[str, int]:
    names = [name.strip().casefold() for name in (header.fields or [])] if header else []
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        message = f"the first row lacks the columns {', '.join(missing)}"
        raise NotAnInvoiceFileError(message)
    return {name: index for index, name in enumerate(names)} | {"": len(names)}


def _invoice(record: _Record, positions: dict[str, int]) -> tuple[Invoice, int]:
    if _REPLACEMENT in record.text:
        raise _RejectedError("broken_encoding", "this line holds bytes that are not UTF-8")
    if record.fields is None:
        raise _RejectedError("malformed_csv", record.fault)
    if len(record.fields) != positions[""]:
        message = f"{len(record.fields)} fields instead of {positions['']}"
        raise _RejectedError("wrong_number_of_fields", message)
    cells = {name: record.fields[positions[name]].strip() for name in COLUMNS}
    number, customer = _words(cells, "number"), _words(cells, "customer")
    issued, currency = _issued(cells["issued"]), _currency(cells["currency"])
    amounts, decimal_commas = _amounts(cells, currency)
    invoice = Invoice(
        line=record.line,
        number=number,
        issued=issued,
        customer=customer,
        currency=currency,
        net=amounts["net"],
        tax=amounts["tax"],
        gross=amounts["gross"],
    )
    return invoice, decimal_commas


def _words(cells: dict[str, str], column: str) -> str:
    words = " ".join(cells[column].split())
    if not words:
        raise _RejectedError(f"missing_{column}", f"the {column} is empty")
    if len(words) > MAX_TEXT_LENGTH:
        raise _RejectedError(f"bad_{column}", f"the {column} is longer than {MAX_TEXT_LENGTH} characters")
    return words


def _issued(text: str) -> date:
    try:
        # fromisoformat alone would also take 20260301 and 2026-W09-7.
        return date.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError:
        raise _RejectedError("bad_date", f"{text[:40]!r} is no date of the form YYYY-MM-DD") from None


def _currency(text: str) -> str:
    if text not in DIGITS:
        raise _RejectedError("unknown_currency", f"{text[:40]!r} is no ISO 4217 currency")
    return text


def _amounts(cells: dict[str, str], currency: str) -> tuple[dict[str, Decimal], int]:
    amounts: dict[str, Decimal] = {}
    decimal_commas = 0
    for column in ("net", "tax", "gross"):
        try:
            amounts[column], decimal_comma = parse_amount(cells[column], DIGITS[currency])
        except AmountError as error:
            raise _RejectedError("bad_amount", f"{column}: {error}") from None
        decimal_commas += decimal_comma
    if amounts["net"] + amounts["tax"] != amounts["gross"]:
        message = f"net {amounts['net']} and tax {amounts['tax']} do not add up to gross {amounts['gross']}"
        raise _RejectedError("wrong_sum", message)
    return amounts, decimal_commas
