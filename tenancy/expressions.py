"""How rows pass a policy: reads its expression as the catalogs keep it, as a tree, and not as its text.

A policy is sound when each row that passes has a tenant column equal to something that is not the column itself. What
else lets rows pass has a name here, for the audit to tell. Nothing is evaluated; what is unknown is named as unknown.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_TOKEN = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
Value: TypeAlias = "Node | list[Value] | str"
# What a function does with the tenant is its own affair; every other way lets rows pass for certain.
UNKNOWN = frozenset({"a function"})
ALWAYS = frozenset({"always"})
BLIND = frozenset({"blind"})
NONE: frozenset[str] = frozenset()
_IS_TRUE, _IS_NOT_NULL, _ANY_SUBLINK, _CASTS = "0", "1", "2", ("1", "2")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an expression, such as OPEXPR, with its fields."""

    kind: str
    fields: dict[str, list[Value]]

    def one(self, name: str) -> Value:
        """Return a field of one value, an empty text when it is not there."""
        return (self.fields.get(name) or [""])[0]

    def nodes(self, name: str) -> list["Node"]:
        """Return the nodes that a field holds, by itself or in its list."""
        value = self.one(name)
        return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Node)]


@dataclass(frozen=True, slots=True)
class Passage:
    """What lets rows pass an expression but for the equality of their tenant; nothing in `ways` is sound."""

    ways: frozenset[str]
    looks: bool

    @property
    def is_always(self) -> bool:
        """Whether every row passes."""
        return "always" in self.ways


def passage(tree: str, tenant: int, equalities: frozenset[str]) -> Passage:
    """Return how rows pass an expression.

    `tenant` is the number of the tenant column, `equalities` has the ids of operators that are called `=`.
    """
    node = _parse(tree)
    reader = _Reader(str(tenant), equalities)
    return Passage(reader.ways(node), reader.names(node))


@dataclass(frozen=True, slots=True)
class _Reader:
    tenant: str
    equalities: frozenset[str]

    def ways(self, node: Node) -> frozenset[str]:
        """Return by which ways, other than the equality, rows pass: none, when they do not."""
        reader = _READERS.get(node.kind)
        return self.other(node) if reader is None else reader(self, node)

    def other(self, node: Node) -> frozenset[str]:
        return frozenset({"another operator"}) if self.names(node) else BLIND

    def boolean(self, node: Node) -> frozenset[str]:
        parts = node.nodes("args")
        ways = [self.ways(part) for part in parts]
        if node.one("boolop") == "not":
            return self.negation(parts[0])
        if node.one("boolop") == "and":
            return _all_of(ways)
        return _any_of(ways, "an OR")

    def negation(self, part: Node) -> frozenset[str]:
        if part.kind == "DISTINCTEXPR":
            return self.comparison(part)
        if part.kind == "CONST":
            return NONE if self.ways(part) else ALWAYS
        return frozenset({"a NOT"}) if self.names(part) else BLIND

    def comparison(self, node: Node) -> frozenset[str]:
        sides = node.nodes("args")
        if len(sides) != 2 or str(node.one("opno")) not in self.equalities:  # noqa: PLR2004 - an equality's
            return self.other(node)
        if sides[0] == sides[1]:
            return ALWAYS
        named = [self.names(side) for side in sides]
        if not any(named):
            return BLIND
        own, other = sides if named[0] else reversed(sides)
        if _is_of_row(other):
            return frozenset({"a comparison of the row with itself"})
        return NONE if self.is_column(_uncast(own)) else UNKNOWN

    def distinct(self, node: Node) -> frozenset[str]:
        return self.other(node)

    def any_of_array(self, node: Node) -> frozenset[str]:
        return self.comparison(node) if node.one("useOr") == "true" else self.other(node)

    def subquery(self, node: Node) -> frozenset[str]:
        test = node.one("testexpr")
        if node.one("subLinkType") == _ANY_SUBLINK and isinstance(test, Node):
            return self.ways(test)
        # It names the row's tenant where it looks for others: as good as an equality as far as a tree can tell.
        return NONE if self.names(node) else BLIND

    def truth_test(self, node: Node) -> frozenset[str]:
        (part,) = node.nodes("arg")
        if node.one("booltesttype") == _IS_TRUE:
            return self.ways(part)
        return frozenset({"a test for what is not true"}) if self.names(part) else BLIND

    def null_test(self, node: Node) -> frozenset[str]:
        (part,) = node.nodes("arg")
        if self.is_column(_uncast(part)) and node.one("nulltesttype") == _IS_NOT_NULL:
            return ALWAYS
        return self.other(node)

    def case(self, node: Node) -> frozenset[str]:
        results = [self.ways(result) for when in node.nodes("args") for result in when.nodes("result")]
        return _any_of([*results, *map(self.ways, node.nodes("defresult"))], "a CASE", always=False)

    def coalesced(self, node: Node) -> frozenset[str]:
        return _any_of([*map(self.ways, node.nodes("args"))], "a COALESCE", always=False)

    def constant(self, node: Node) -> frozenset[str]:
        if node.one("constisnull") == "true":
            return NONE
        length, _bracket, byte, *_ = [*map(str, node.fields.get("constvalue", [])), "", "", ""]
        return ALWAYS if length and byte not in ("", "0") else NONE

    def function(self, node: Node) -> frozenset[str]:
        return UNKNOWN if self.names(node) else BLIND

    def is_column(self, node: Node, depth: int = 0) -> bool:
        return (
            node.kind == "VAR"
            and node.one("varattno") == self.tenant
            and node.one("varlevelsup") == str(depth)
            and (depth > 0 or node.one("varno") == "1")
        )

    def names(self, value: Value, depth: int = 0) -> bool:
        """Whether the tenant column of the policy's own row is named, in subqueries too."""
        if isinstance(value, str):
            return False
        if isinstance(value, list):
            return any(self.names(item, depth) for item in value)
        if self.is_column(value, depth):
            return True
        inner = depth + (value.kind == "QUERY")
        return any(self.names(field, inner) for field in value.fields.values())


_READERS: dict[str, Callable[[_Reader, Node], frozenset[str]]] = {
    "BOOLEXPR": _Reader.boolean,
    "OPEXPR": _Reader.comparison,
    "DISTINCTEXPR": _Reader.distinct,
    "SCALARARRAYOPEXPR": _Reader.any_of_array,
    "SUBLINK": _Reader.subquery,
    "BOOLEANTEST": _Reader.truth_test,
    "NULLTEST": _Reader.null_test,
    "CASE": _Reader.case,
    "CASEEXPR": _Reader.case,
    "COALESCE": _Reader.coalesced,
    "COALESCEEXPR": _Reader.coalesced,
    "CONST": _Reader.constant,
    "FUNCEXPR": _Reader.function,
}


def _all_of(ways: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the ways through parts that a row has to pass all; what always holds adds nothing."""
    if any(not way for way in ways):
        return NONE
    narrower = [way for way in ways if way not in (ALWAYS, BLIND)] or [way for way in ways if way != ALWAYS]
    return NONE.union(*narrower) or ALWAYS


def _any_of(ways: Sequence[frozenset[str]], name: str, *, always: bool = True) -> frozenset[str]:
    """Return the ways through parts of which a row has to pass one."""
    open_ones = [way for way in ways if way]
    if not open_ones:
        return NONE
    if always and ALWAYS in open_ones:
        return ALWAYS
    if len(open_ones) == len(ways):
        if all(way == BLIND for way in open_ones):
            return BLIND
        if all(way == ALWAYS for way in open_ones):
            return ALWAYS
    known = NONE.union(*open_ones) - ALWAYS - BLIND
    return UNKNOWN if known == UNKNOWN and all(way == UNKNOWN for way in open_ones) else frozenset({name})


def _is_of_row(value: Value) -> bool:
    """Whether a value depends on the columns of the row that is to pass, but for what subqueries make of them."""
    if isinstance(value, str):
        return False
    if isinstance(value, list):
        return any(map(_is_of_row, value))
    if value.kind == "VAR":
        return value.one("varlevelsup") == "0"
    return value.kind != "QUERY" and any(_is_of_row(field) for field in value.fields.values())


def _uncast(node: Node) -> Node:
    """Return what a cast is of."""
    while True:
        if node.kind in ("RELABELTYPE", "COERCEVIAIO"):
            inner = node.nodes("arg")
        elif node.kind == "FUNCEXPR" and node.one("funcformat") in _CASTS:
            inner = node.nodes("args")[:1]
        else:
            return node
        if not inner:
            return node
        node = inner[0]


def _parse(text: str) -> Node:
    node = _read(iter(_TOKEN.findall(text)))
    assert isinstance(node, Node), "an expression is a node"
    return node


def _read(tokens: Iterator[str]) -> Value:
    part = next(tokens)
    if part == "{":
        return _read_node(tokens)
    return _read_list(tokens) if part == "(" else part


def _read_list(tokens: Iterator[str]) -> list[Value]:
    items: list[Value] = []
    for part in tokens:
        if part == ")":
            break
        items.append(_read_node(tokens) if part == "{" else _read_list(tokens) if part == "(" else part)
    return items


def _read_node(tokens: Iterator[str]) -> Node:
    kind, fields = next(tokens), dict[str, list[Value]]()
    values: list[Value] = []
    for part in tokens:
        if part == "}":
            break
        if part.startswith(":"):
            values = fields.setdefault(part[1:], [])
            continue
        values.append(_read_node(tokens) if part == "{" else _read_list(tokens) if part == "(" else part)
    # Where it stood in its statement: no part of what it means, and kept by some versions only.
    fields.pop("location", None)
    return Node(kind, fields)
