"""Reads forms: bounded, URL-encoded, UTF-8."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl

from litestar.types import Receive

from service.http.bodies import ENVELOPE_BYTES, parse_instant, read_bytes
from service.problems import ProblemError, malformed

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
MAX_FIELDS: Final = 2_000
# A byte takes three at most when it is encoded.
EXPANSION: Final = 3
# What a browser's field for a date and a time gives: no seconds, no offset. It is meant, and labelled, as UTC.
_MOMENT_LENGTH: Final = len("2026-12-01T09:30")


class Form:
    """The fields of one form."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return a field; browsers write line ends as CR LF, which is not what was typed. Empty when it is missing."""
        values = self._fields.get(name)
        return values[0].replace("\r\n", "\n") if values else ""

    def many(self, name: str) -> list[str]:
        """Return all values of a field that may be checked more than once."""
        return self._fields.get(name, [])

    def has(self, name: str) -> bool:
        """Whether the field was sent: what is not checked is not."""
        return name in self._fields


async def read_form(receive: Receive, headers: Mapping[str, str], max_payload_bytes: int) -> Form:
    """Read a form.

    Raises:
        ProblemError: 413 when it is longer than payloads may be, 415 for another media type, 400 for what is no form.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != MEDIA_TYPE:
        raise ProblemError("unsupported_media_type", f"A form is sent as {MEDIA_TYPE}.")
    raw = await read_bytes(receive, headers, EXPANSION * (max_payload_bytes + ENVELOPE_BYTES))
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise malformed("The form cannot be read.") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return Form(fields)


def moment(text: str) -> datetime | None:
    """Return the point in time that a field holds; None when it is empty, a ValueError when it is none."""
    if not text:
        return None
    return parse_instant(f"{text}:00Z" if len(text) == _MOMENT_LENGTH else text)
