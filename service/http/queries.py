"""Reads query strings: every parameter is known, single where it must be, or refused with a pointer to it."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID
from zlib import crc32

from kernel import FieldError
from service.http.bodies import parse_instant
from service.problems import invalid, malformed

T = TypeVar("T")
S = TypeVar("S")
E = TypeVar("E", bound=StrEnum)
DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
MAX_WAIT_S: Final = 60.0
MAX_TEXT_LENGTH: Final = 255
_CHECK_BYTES: Final = 4


class Query:
    """The parameters of one request."""

    def __init__(self, raw: bytes, known: Iterable[str]) -> None:
        """Parse `a=1&b=2`.

        Raises:
            ProblemError: 422 for a parameter the route does not have, 400 for bytes that are no UTF-8.
        """
        self._values: dict[str, list[str]] = {}
        if not raw:
            return
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError:
            raise malformed("The query string cannot be read.") from None
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)
        if unknown := self._values.keys() - set(known):
            raise invalid(
                *(_fault(name, "unknown_parameter", "is no parameter of this route") for name in sorted(unknown))
            )

    def many(self, name: str) -> list[str]:
        """Return all values of a parameter that may be repeated."""
        return self._values.get(name, [])

    def one(self, name: str) -> str | None:
        """Return a parameter that may be given once."""
        values = self._values.get(name, [])
        if len(values) > 1:
            raise invalid(_fault(name, "repeated", "may be given once"))
        return values[0] if values else None

    def text(self, name: str) -> str | None:
        """Return a parameter that names something: 1 to 255 characters without NUL."""
        value = self.one(name)
        return None if value is None else named(name, value, MAX_TEXT_LENGTH)

    def tags(self) -> tuple[str, ...]:
        """Return the tags that are asked for, all of which a run must have."""
        return tuple(named("tag", tag, 64) for tag in self.many("tag"))

    def limit(self) -> int:
        """Return how many entries a page may have."""
        value = self.one("limit")
        if value is None:
            return DEFAULT_LIMIT
        if not (value.isascii() and value.isdigit() and len(value) < 5 and 1 <= int(value) <= MAX_LIMIT):  # noqa: PLR2004 - digits
            raise invalid(_fault("limit", "out_of_range", f"must be a whole number from 1 to {MAX_LIMIT}"))
        return int(value)

    def wait_s(self) -> float:
        """Return for how many seconds to wait for the end of a run; 0 when not asked to."""
        value = self.one("wait")
        if value is None:
            return 0.0
        digits = value.replace(".", "", 1)
        if not (digits.isascii() and digits.isdigit() and float(value) <= MAX_WAIT_S):
            raise invalid(_fault("wait", "out_of_range", f"must be a number of seconds from 0 to {MAX_WAIT_S:g}"))
        return float(value)

    def instant(self, name: str) -> datetime | None:
        """Return a point in time; the + of an offset may have come in as the blank it means in a query string."""
        value = self.one(name)
        if value is None:
            return None
        try:
            return parse_instant(value.replace(" ", "+"))
        except ValueError as error:
            raise invalid(_fault(name, "invalid", str(error))) from None

    def words(self, name: str, kind: type[E]) -> frozenset[E]:
        """Return the values of a parameter that takes words of one kind, any number of them."""
        found: set[E] = set()
        for value in self.many(name):
            try:
                found.add(kind(value))
            except ValueError:
                known = ", ".join(kind)
                raise invalid(_fault(name, "unknown", f"must be one of {known}")) from None
        return frozenset(found)

    def cursor(self, kind: "CursorKind[T]", start: S) -> T | S:
        """Return where the page starts: behind the cursor, or at `start` when there is none."""
        value = self.one("cursor")
        return start if value is None else kind.read(value)


def named(name: str, value: str, max_length: int) -> str:
    """Return a text that can be looked for; 422 at the parameter otherwise."""
    if not 1 <= len(value) <= max_length or "\0" in value:
        raise invalid(_fault(name, "invalid", f"must have 1 to {max_length} characters and no NUL"))
    return value


@dataclass(frozen=True, slots=True)
class CursorKind(Generic[T]):
    """Cursors of one list: opaque texts that lead to a key, checked so that only ours are taken.

    They hold no secret: what they lead to is read under the caller's own row-level security.
    """

    mark: bytes
    pack: Callable[[T], bytes]
    unpack: Callable[[bytes], T]

    def write(self, key: T) -> str:
        """Return the cursor that leads to what comes behind `key`."""
        body = self.mark + self.pack(key)
        return urlsafe_b64encode(body + crc32(body).to_bytes(_CHECK_BYTES, "big")).rstrip(b"=").decode()

    def read(self, text: str) -> T:
        """Return the key that a cursor leads to; 400 when it is none of this list."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
            if body[:1] == self.mark and check == crc32(body).to_bytes(_CHECK_BYTES, "big"):
                key = self.unpack(body[1:])
                if self.write(key) == text:
                    return key
        except (ValueError, binascii.Error):
            pass
        raise malformed("The cursor is not one of this list.", _fault("cursor", "invalid", "is not one of this list"))


def uuid_cursor(mark: bytes) -> CursorKind[UUID]:
    """Return the cursors of a list whose keys are ids."""
    return CursorKind(mark, lambda key: key.bytes, lambda raw: UUID(bytes=raw))


def number_cursor(mark: bytes) -> CursorKind[int]:
    """Return the cursors of a list whose keys are positive numbers."""
    return CursorKind(mark, lambda key: key.to_bytes(4, "big"), lambda raw: int.from_bytes(raw, "big") & 0x7FFF_FFFF)


def page_of(rows: Sequence[T], limit: int) -> tuple[Sequence[T], T | None]:
    """Split the `limit` + 1 rows that were read into the page and, when more follow, its last row."""
    page = rows[:limit]
    return page, page[-1] if len(rows) > limit else None


def _fault(name: str, code: str, message: str) -> FieldError:
    return FieldError(f"/{name}", code, message)
