"""What a PromQL expression asks for, as a parser of the language reads it."""

from dataclasses import dataclass, field
from typing import Any

import promql_parser
from promql_parser import AggregateExpr, Call, VectorSelector


@dataclass(slots=True)
class Asked:
    """The metrics of an expression with their matchers' labels, the labels it groups by, and what is made a rate of."""

    metrics: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    groups: set[str] = field(default_factory=set[str])
    rated: set[str] = field(default_factory=set[str])


def asked_by(expression: str) -> Asked:
    """Parse an expression; Grafana's variables for intervals stand for one.

    Raises:
        ValueError: it is no PromQL.
    """
    asked = Asked()

    def visit(node: Any) -> None:
        if isinstance(node, VectorSelector):
            matched = {matcher.name for matcher in node.matchers.matchers}
            asked.metrics.setdefault(str(node.name), set()).update(matched)
        elif isinstance(node, AggregateExpr) and node.modifier is not None:
            asked.groups.update(node.modifier.labels)
        elif isinstance(node, Call) and node.func.name in {"rate", "increase"}:
            asked.rated.add(str(node.args[0].vector_selector.name))

    promql_parser.walk(promql_parser.parse(expression.replace("$__rate_interval", "5m")), visit)
    return asked
