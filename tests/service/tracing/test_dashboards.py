"""The dashboards ask only for what there is: metrics of the exposition, attributes of real spans, in valid queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from kernel import Kernel, Registry, RunCreate, StageContext, stage, workflow
from kernel.work import Work
from service.metrics import Instrument
from tests.support import waiting
from tests.support.environment import DatabaseUrls
from tests.support.hosts import running, settings
from tests.support.looking import Look
from tests.support.metrics import instruments, samples_of
from tests.support.promql import asked_by
from tests.support.tracing import Tracing
from tests.support.workflows import HandWorker

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
COMPARISON = r'(?:span\.[a-z_.]+|span:(?:duration|status)|instrumentation:name) (?:=|>|=~) (?:"[^"]*"|error|\d+s?)'
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
    # What a body's libraries trace is stamped like the engine's span that they are in.
    assert query.count("span.tenantry.op") == query.count('instrumentation:name = "tenantry"')


@pytest.mark.parametrize(("where", "query"), [found for found in targets("tempo") if found[0].startswith("tenant:")])
def test_every_query_of_a_tenants_board_is_bound_to_the_tenant(where: str, query: str) -> None:
    assert query.count("{") == query.count('span.tenant.id = "$tenant"'), where


def is_asked_for(selector: str, span: ReadableSpan) -> bool:
    """Whether a span is one of those that a selector, its variables filled in, asks for."""
    assert span.start_time is not None
    assert span.end_time is not None
    scope = span.instrumentation_scope
    has: dict[str, Any] = {
        "span:duration": (span.end_time - span.start_time) / 1e9,
        "span:status": span.status.status_code.name.lower(),
        "instrumentation:name": None if scope is None else scope.name,
        **{f"span.{name}": value for name, value in (span.attributes or {}).items()},
    }
    comparisons = (part.split(" ", 2) for part in selector.removeprefix("{ ").removesuffix(" }").split(" && "))
    for name, operator, text in comparisons:
        value = has.get(name)
        wanted = text.strip('"')
        if operator == ">":
            is_met = value is not None and value > float(wanted.removesuffix("s"))
        else:
            is_met = value is not None and bool(
                re.fullmatch(wanted if operator == "=~" else re.escape(wanted), str(value))
            )
        if not is_met:
            return False
    return True


@stage("twice", max_attempts=2)
async def twice(ctx: StageContext, given: dict) -> dict:
    """Fails the first time, with a library's spans around and within a step."""

    def charge() -> int:
        with trace.get_tracer("a library").start_as_current_span("POST", kind=SpanKind.CONSUMER) as span:
            span.set_status(StatusCode.ERROR)
        return 1

    await ctx.step.run("charge", charge)
    charge()
    if ctx.attempt == 1:
        raise LookupError
    return {}


REGISTRY = Registry([workflow("twice", input=dict).pipe(twice).build()])


async def test_queries_count_what_the_engine_did_and_nothing_that_happened_within(
    traced: Tracing, hand: HandWorker, database_urls: DatabaseUrls, look: Look
) -> None:
    async with hand.transaction() as tx:
        run_id = (await Kernel(REGISTRY).dispatch(RunCreate("twice", {}), tx)).run_id

    async def is_over() -> bool:
        return bool(await look("select from tenantry.workflow_runs where run_id = %s and status = 'COMPLETED'", run_id))

    async with running(settings(database_urls), REGISTRY):
        await waiting.until(is_over, "the run is over", 20)
    found: dict[str, list[str]] = {}
    for where, query in targets("tempo"):
        for selector in re.findall(SELECTOR, query):
            filled = selector.replace("$tenant", str(hand.tenant_id)).replace("$workflow", ".*")
            asked = [span.name for span in traced.spans() if is_asked_for(filled.replace("$run_id", str(run_id)), span)]
            found.setdefault(where, []).extend(asked)
    execution = "job.execute twice/twice"
    assert found["tenant: Executions by stage, p50 and p95"] == [execution] * 2
    assert found["tenant: Retries, by stage"] == [execution]
    assert found["tenant: What fails most"] == [execution]
    assert found["tenant: Steps, p50 and p95"] == ["step.run charge"]
    assert found["tenant: Runs finished, by outcome"] == ["run.finished"]
    assert found["tenant: Share of runs that failed"] == ["run.finished"]
    assert found["operator: Tenants whose executions fail most"] == [execution]
    assert len(found["tenant: Traces of one run"]) == len(traced.spans()) - len(traced.named("tick"))


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
