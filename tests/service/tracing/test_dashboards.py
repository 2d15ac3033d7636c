"""The dashboards ask only for what there is: metrics of the exposition, attributes of real spans, in valid queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kernel.telemetry import Work
from service.metrics import Instrument
from tests.support.metrics import instruments, samples_of
from tests.support.promql import asked_by

FOLDER = Path(__file__).resolve().parents[3] / "helm" / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
OPS = {
    "run.create",
    "run.started",
    "run.finished",
    "run.suspended",
    "run.resumed",
    "lease.expired",
    "job.execute",
    "step.run",
}
# What the engine sets beside the stamp; test_span_tree.py sees each of them on a span.
SET_BY_ENGINE = {"tenantry.outcome", "tenantry.queue.wait_ms", "error.type"}
TARGET_LABELS = {"namespace", "pod"}
COMPARISON = r'(?:span\.[a-z_.]+|span:(?:duration|status)) (?:=|>|=~) (?:"[^"]*"|error|\d+s?)'
SELECTOR = rf"\{{ {COMPARISON}(?: && {COMPARISON})* \}}"
BY = r"by \(span\.[a-z_.]+(?:, span\.[a-z_.]+)*\)"
METRIC = (
    rf"(?:rate\(\)|count_over_time\(\)|quantile_over_time\((?:span:duration|span\.[a-z_.]+)(?:, \.\d+)+\))(?: {BY})?"
    r"(?: \| topk\(\d+\))?"
)
PIPELINE = rf"{SELECTOR} \| {METRIC}"
TRACEQL = re.compile(rf"{SELECTOR}|{PIPELINE}|100 \* \({PIPELINE}\) / \({PIPELINE}\)")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def targets(kind: str) -> list[tuple[str, str]]:
    return [
        (f"{name}: {panel['title']}", target["query" if kind == "tempo" else "expr"])
        for name, board in BOARDS.items()
        for panel in panels(board)
        for target in panel["targets"]
        if target["datasource"]["type"] == kind
    ]


def samples() -> dict[str, set[str]]:
    """Return every sample name of both processes, with its labels."""
    return {name: set(one.labels.values()) | extra for one in instruments() for name, extra in samples_of(one).items()}


def test_there_is_one_for_a_tenant_and_one_for_the_operator() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        "tenant": "tenantry-tenant", "operator": "tenantry-operator",
    }  # fmt: skip


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_dashboard_names_its_sources_by_variables_and_explains_every_panel(board: dict[str, Any]) -> None:
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert "__inputs" not in board
    shown = list(panels(board))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in shown:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert re.fullmatch(r"\$\{(\w+)\}", source["uid"])
            assert source["uid"][2:-1] in variables
    used = set(re.findall(r"\$(?!__)(\w+)", json.dumps([panel["targets"] for panel in shown])))
    assert used <= variables


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_no_two_panels_lie_on_each_other(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize(("where", "query"), targets("tempo"))
def test_traceql_is_well_formed_and_asks_for_what_spans_have(where: str, query: str) -> None:
    assert TRACEQL.fullmatch(query), where
    stamped = Work(uuid4(), uuid4(), "w", "s", "p", 1, "o").attributes().keys()
    assert set(re.findall(r"span\.([a-z_.]+)", query)) <= {*stamped, *SET_BY_ENGINE}
    assert set(re.findall(r'span\.tenantry\.op = "([^"]*)"', query)) <= OPS


@pytest.mark.parametrize(("where", "query"), [found for found in targets("tempo") if found[0].startswith("tenant:")])
def test_every_query_of_a_tenants_board_is_bound_to_the_tenant(where: str, query: str) -> None:
    assert query.count("{") == query.count('span.tenant.id = "$tenant"'), where


@pytest.mark.parametrize(("where", "query"), targets("prometheus"))
def test_promql_asks_for_metrics_and_labels_that_are_exposed(where: str, query: str) -> None:
    exposed = samples()
    asked = asked_by(query)
    assert asked.metrics.keys() <= exposed.keys(), where
    for name, labels in asked.metrics.items():
        assert labels <= exposed[name] | TARGET_LABELS, where
    assert asked.groups <= set().union(*(exposed[name] for name in asked.metrics)) | TARGET_LABELS, where
    # A counter alone is meaningless, and only counters have a rate.
    assert {name for name in asked.metrics if name.endswith(("_total", "_bucket"))} == asked.rated, where


@pytest.mark.parametrize("one", instruments(), ids=lambda one: one.name)
def test_a_metric_is_named_as_the_conventions_ask_and_ours_begin_with_our_name(one: Instrument) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z_]+)+", one.name)
    assert one.exposed_name.startswith("tenantry_")
    # Units in braces and seconds; a name says no unit, and a sum no `total`.
    assert re.fullmatch(r"s|\{[a-z]+\}|", one.unit)
    assert not re.search(r"(?:seconds|total|_s)$", one.name)
    assert all("." in attribute for attribute in one.labels)
    assert "tenant.id" not in one.labels
