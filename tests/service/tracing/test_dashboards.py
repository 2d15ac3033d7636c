"""The dashboards ask only for what there is: metrics of the exposition, attributes of real spans, in valid queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from kernel.telemetry import Work
from service.http.metrics import HttpMetrics
from service.worker.counts import Counts
from service.worker.executor import Executor
from service.worker.host import Pulse
from service.worker.status import HostCollector

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
DEPTH = {"tenantry_queue_depth", "tenantry_queue_running", "tenantry_queue_oldest_age_seconds"}
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


class Host:
    """A worker that has done nothing yet, as its collector sees it."""

    def __init__(self) -> None:
        self.pulse = Pulse()
        self.executor = Executor.__new__(Executor)
        self.executor.counts = Counts()
        self.executor.executions = {}
        self.executor.concurrency = 1
        self.executor.counts.outcomes["completed"] = 1


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
    registry = CollectorRegistry()
    registry.register(HostCollector(Host()))  # type: ignore[arg-type]
    http = HttpMetrics()
    http.observe("POST", "/v1/runs", 201, 0.1)
    found: dict[str, set[str]] = {name: set() for name in DEPTH}
    for each in (registry, http._registry):
        for metric in each.collect():
            for sample in metric.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


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
    names = set(re.findall(r"tenantry_\w+", query))
    assert names
    assert names <= exposed.keys(), where
    labels = {label for name in names for label in exposed[name]} | TARGET_LABELS
    matched = re.findall(r"\{([^}]*)\}", query)
    assert {re.split(r"[!=]", term)[0] for terms in matched for term in terms.split(",")} <= labels
    assert set(re.findall(r"by \((\w+)\)", query)) <= labels
    assert [query.count(opening) for opening in "({["] == [query.count(closing) for closing in ")}]"]
    # A counter alone is meaningless, and only counters have a rate.
    assert all(
        re.search(rf"(?:rate|increase)\({name}", query) for name in names if name.endswith(("_total", "_bucket"))
    )
