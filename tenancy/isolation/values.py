"""Values that a column of any type may take, as texts that Postgres reads: unused ones, then what the rules name."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tenancy.isolation.catalog import Column, Rule

Value = str | None

_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_NUMBER = re.compile(r"(?<![\w.'])-?\d+(?:\.\d+)?")
_BY_TYPE = {
    "json": "{}", "jsonb": "{}", "xml": "<a/>", "tsvector": "", "tsquery": "", "point": "(0,0)", "line": "{1,1,0}",
    "lseg": "((0,0),(1,1))", "box": "((0,0),(1,1))", "path": "((0,0),(1,1))", "polygon": "((0,0),(1,1))",
    "circle": "<(0,0),1>", "macaddr": "08:00:2b:01:02:03", "macaddr8": "08:00:2b:01:02:03:04:05", "pg_lsn": "0/0",
    "time": "12:00", "timetz": "12:00+00", "money": "1", "float4": "1", "float8": "1", "ltree": "a", "hstore": "",
}  # fmt: skip
_BY_CATEGORY: Mapping[str, Sequence[str]] = {
    "B": ("true", "false"), "T": ("1 second",), "A": ("{}",), "I": ("127.0.0.1",), "V": ("1",),
}  # fmt: skip


def candidates(column: Column, rules: Sequence[Rule]) -> list[Value]:
    """Return values to try for a column, the likeliest first; none when its type is unknown here.

    The first is new with every call where the type has room for it. What the rules name is taken from their texts, so
    that a list of allowed words, a range or a partition's bound is met; whatever is tried, the server decides.
    """
    named = [value for rule in rules if column.name in rule.columns for value in _named(rule.definition)]
    found: list[Value] = [*_plain(column), *named]
    if not column.is_required:
        found.append(None)
    fitting = [value for value in found if value is None or column.length is None or len(value) <= column.length]
    return list(dict.fromkeys(fitting))


def _plain(column: Column) -> Iterator[str]:
    if column.labels:
        yield from column.labels
    elif column.type in _NEW:
        yield from _NEW[column.type](column)
    elif column.category == "S":
        yield ("x" + secrets.token_hex(8))[: column.length]
    elif column.type in _BY_TYPE:
        yield _BY_TYPE[column.type]
    else:
        yield from _BY_CATEGORY.get(column.category, ())


def _numbers(column: Column, bits: int) -> Iterator[str]:
    # Half of the range stays free for what sequences give.
    most = 2 ** (bits - 1) if column.digits is None else min(2**31, 10**column.digits - 1)
    yield str(secrets.randbelow(most) + 1)
    yield "0"


def _moments(_column: Column) -> Iterator[str]:
    now = datetime.now(UTC)
    yield from (moment.isoformat() for moment in (now, now + timedelta(days=1), now - timedelta(days=1)))


def _ranges(form: str, bound: Callable[[int], object]) -> Iterator[str]:
    """Yield a range of one day or number out of many: two of them hardly overlap, as empty ones never do."""
    start = secrets.randbelow(1_000_000)
    yield form.format(bound(start), bound(start + 1))


def _day_number(number: int) -> int:
    return number


def _day(number: int) -> str:
    return (datetime(1, 1, 1, tzinfo=UTC) + timedelta(days=number)).date().isoformat()


_NEW: Mapping[str, Callable[[Column], Iterator[str]]] = {
    "uuid": lambda _column: iter((str(uuid4()),)),
    "bytea": lambda _column: iter(("\\x" + secrets.token_hex(16),)),
    "int2": lambda column: _numbers(column, 15),
    "int4": lambda column: _numbers(column, 31),
    "int8": lambda column: _numbers(column, 63),
    "numeric": lambda column: _numbers(column, 31),
    "date": _moments,
    "timestamp": _moments,
    "timestamptz": _moments,
    "int4range": lambda _column: _ranges("[{0},{1})", _day_number),
    "int8range": lambda _column: _ranges("[{0},{1})", _day_number),
    "numrange": lambda _column: _ranges("[{0},{1})", _day_number),
    "daterange": lambda _column: _ranges("[{0},{1})", _day),
    "tsrange": lambda _column: _ranges("[{0},{1})", _day),
    "tstzrange": lambda _column: _ranges("[{0},{1})", _day),
}


def _named(definition: str) -> Iterator[str]:
    for literal in _LITERAL.findall(definition):
        yield literal.replace("''", "'")
    for number in _NUMBER.findall(_LITERAL.sub("", definition)):
        if "." in number:
            yield number
            continue
        yield from (str(int(number) + step) for step in (0, 1, -1))
