"""Alerts, autoscalers and dashboards ask only for figures that the processes export."""

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from kernel import StageFailed
from kernel.counts import COUNTS
from kernel.execution.tracing import outcome_name
from service.http.metrics import HttpMetrics
from service.metrics import Exposition, engine
from service.probes import ReadinessGate
from service.settings import Settings
from service.worker.executor import Executor, ExecutorLimits
from service.worker.host import WorkerHost
from service.worker.metrics import HostMetrics
from service.worker.status import StatusApp
from tenancy import Database, DatabaseSettings
from tests.support import stress
from tests.support.chart import CHART, Rendered
from tests.support.environment import DatabaseUrls
from tests.support.promql import asked_by

OF_OTHERS = {
    "kube_job_status_failed",
    "pgbouncer_pools_client_waiting_connections",
    "pgbouncer_pools_server_active_connections",
}
LABEL = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
# What Prometheus adds by itself, and by the monitors of the chart.
TARGET_LABELS = {"namespace", "pod", "tenantry_pool", "job_name"}


@pytest.fixture
async def exported(database_urls: DatabaseUrls) -> AsyncIterator[str]:
    """What an API and a worker answer at /metrics, after a request and a job."""
    of_api = HttpMetrics()
    of_api.count("POST", "/v1/runs", 201, 0.1)
    COUNTS.jobs_finished["completed"] += 1
    urls = database_urls
    settings = Settings(database_url=urls.worker, dispatcher_database_url=urls.dispatcher)
    async with (
        Database(DatabaseSettings(urls.worker)) as database,
        Database(DatabaseSettings(urls.dispatcher, pool_size=1)) as dispatcher,
        asyncio.TaskGroup() as tasks,
    ):
        host = WorkerHost(settings, stress.REGISTRY, database, dispatcher)
        host.executor = Executor(ExecutorLimits.of(settings), tasks)
        app = StatusApp(ReadinessGate(database), host, HostMetrics(host), asyncio.Event())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker.test") as client:  # type: ignore[arg-type]
            yield Exposition(engine, of_api.observe).text().decode() + (await client.get("/metrics")).text
        host.executor.close()


async def test_every_figure_that_is_asked_for_is_exported_with_its_labels(
    exported: str, rendered: dict[str, Rendered]
) -> None:
    samples: dict[str, set[str]] = {}
    for line in exported.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})?", line).groups()  # type: ignore[union-attr]
            samples.setdefault(name, set()).update(LABEL.findall(labels or ""))
    asked = {expression for case in rendered.values() for expression in _expressions(case)}
    assert len(asked) > 14
    for expression in asked:
        read = asked_by(expression)
        assert read.metrics.keys() - samples.keys() <= OF_OTHERS, expression
        for name, labels in read.metrics.items():
            assert labels <= samples.get(name, set()) | TARGET_LABELS, expression
        known = TARGET_LABELS.union(*(samples.get(name, set()) for name in read.metrics))
        assert read.groups <= known, expression
        assert {name for name in read.metrics if name.endswith(("_total", "_bucket"))} == read.rated, expression


def _expressions(case: Rendered) -> list[str]:
    rules = [
        rule
        for one in case.of_kind("PrometheusRule").values()
        for group in one["spec"]["groups"]
        for rule in group["rules"]
    ]
    triggers = [trigger for one in case.of_kind("ScaledObject").values() for trigger in one["spec"]["triggers"]]
    external = [
        f"{metric['external']['metric']['name']}{{}}"
        for one in case.of_kind("HorizontalPodAutoscaler").values()
        for metric in one["spec"]["metrics"]
        if metric["type"] == "External"
    ]
    found = [rule["expr"] for rule in rules] + [trigger["metadata"]["query"] for trigger in triggers] + external
    return [expression for expression in found if expression != "vector(1)"]


def test_no_figure_names_a_tenant(exported: str) -> None:
    assert "tenant_id" not in exported
    assert not re.findall(r'[{,]tenant="', exported)


def test_outcomes_that_alerts_name_are_those_that_workers_count() -> None:
    named = set(re.findall(r'outcome="(\w+)"', (CHART / "templates" / "observability" / "_alerts.tpl").read_text()))
    assert named == {outcome_name("settled", StageFailed("broken")), "lost"}
