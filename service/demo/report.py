"""A finished import as a person wants to read it."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

SHOWN_REJECTS = 6


def render_report(name: str, run: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Draw the run's output and what became of its durable steps, or its error when it has none."""
    report = run.get("output")
    if run.get("status") != "COMPLETED" or not isinstance(report, dict):
        error = (run.get("error") or {}).get("message", "it did not complete")
        return Panel(
            Text(str(error), style="red"), title=Text(f"{name}: {run.get('status')}"), title_align="left", expand=False
        )
    heading = Text(
        f"{report['lines']} lines: {report['accepted']} invoices accepted, {report['rejected']} lines rejected, "
        f"{report['decimal_commas']} amounts with a decimal comma"
    )
    parts: list[RenderableType] = [
        heading,
        _sums(report),
        _customers(report),
        _duplicates(report),
        _rejects(report),
        _reasons(report),
        Text(),
        _payment(report["payment"]),
        _steps(steps),
    ]
    return Panel(Group(*parts), title=Text(f"{name}: {report['filename']}"), title_align="left", expand=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        amount = column in {"invoices", "gross", "repeated", "payable", "line", "surplus", "attempts"}
        table.add_column(column, justify="right" if amount else "left", overflow="fold")
    return table


def _sums(report: Mapping[str, Any]) -> Table:
    table = _table("Totals", "currency", "invoices", "gross", "repeated", "payable")
    for total in report["currencies"]:
        table.add_row(*_texts(total, "currency", "invoices", "gross", "repeated", "payable"))
    return table


def _customers(report: Mapping[str, Any]) -> Table:
    table = _table("Largest customers by currency", "currency", "customer", "invoices", "gross")
    for customer in report["top_customers"]:
        table.add_row(*_texts(customer, "currency", "customer", "invoices", "gross"))
    return table


def _duplicates(report: Mapping[str, Any]) -> Table:
    table = _table("Lines that look like one invoice", "kind", "numbers", "customer", "lines", "surplus")
    for group in report["duplicates"]:
        shown = {**group, "numbers": ", ".join(group["numbers"]), "lines": ", ".join(map(str, group["lines"]))}
        table.add_row(*_texts(shown, "kind", "numbers", "customer", "lines", "surplus"))
    return table


def _rejects(report: Mapping[str, Any]) -> Table:
    table = _table("Rejects", "line", "reason", "message")
    for reject in report["rejects"][:SHOWN_REJECTS]:
        table.add_row(*_texts(reject, "line", "reason", "message"))
    hidden = len(report["rejects"]) - SHOWN_REJECTS
    if hidden > 0:
        table.add_row("", "", Text(f"and {hidden} more in the run's output", style="dim"))
    return table


def _reasons(report: Mapping[str, Any]) -> Text:
    counts = ", ".join(f"{count} {reason}" for reason, count in report["reasons"].items())
    return Text(f"All rejects: {counts or 'none'}")


def _payment(payment: Mapping[str, Any]) -> Text:
    due = payment["due"]
    paid = f"{Decimal(due['euros']):,.2f} EUR were paid"
    limit = f"the limit of {Decimal(due['limit']):,f} EUR"
    if payment["approved_by"] is None:
        return Text(f"{paid}, within {limit}: nobody had to approve it.")
    unpriced = f", and without a rate: {', '.join(due['unpriced'])}" if due["unpriced"] else ""
    return Text(
        f"{paid}{unpriced}; for more than {limit} an approval was needed, and {payment['approved_by']} gave it."
    )


def _steps(steps: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("Durable steps of the payment", "step", "kind", "status", "attempts", "what happened")
    for step in steps:
        shown = {**step, "step": step["step_id"], "attempts": step["attempt"] or "", "what happened": _told(step)}
        table.add_row(*_texts(shown, "step", "kind", "status", "attempts", "what happened"))
    return table


def _told(step: Mapping[str, Any]) -> str:
    kind, attempt, result = step["kind"], step["attempt"], step.get("result")
    if kind == "signal" and isinstance(result, dict):
        return f"waited, without a worker, until the signal came: approved by {result.get('by')}"
    if kind == "sleep":
        return "slept, without a worker"
    if attempt > 1:
        return f"retried: attempt {attempt} succeeded, and its result is kept"
    return f"paid once, under the key {step['external_key']}" if step["step_id"] == "pay" else "done"


def _texts(item: Mapping[str, Any], *columns: str) -> list[Text]:
    return [Text(str(item[column])) for column in columns]
