"""What cannot work is refused with what to do about it: each of the chart's `fail` texts is provoked."""

import re
from typing import Any

import pytest

from service.worker.executor import LET_GO_S
from service.worker.host import LAST_WRITES_S
from service.worker.process import DISPATCH_POOL, MARGIN_S, WORK_POOL
from tests.support.chart import CHART, ChartError, Helm, nested, values_of

KEDA = {"type": "keda", "keda": {"serverAddress": "http://prometheus:9090"}}
EMPTY = {"existingSecret": ""}
# Changes to the case `minimal`, and a part of the text.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"workflows": ""}, "workflows is required"),
    ({"lease": {"staleThresholdSeconds": 60, "heartbeatSeconds": 21}}, r"3 x heartbeatSeconds \(63\) must not exceed staleThresholdSeconds \(60\)"),
    ({"settings": {"PORT": 1}}, r"settings\.PORT: the chart sets this one"),
    (nested("worker.pools.default.settings", {"WORKER_CONCURRENCY": 1}), r"worker\.pools\.default\.settings\.WORKER_CONCURRENCY: the chart"),
    (nested("jwt.jwksUrl", "https://x/keys"), "jwt.issuer and jwt.audience are required"),
    ({"operator": {"enabled": True}, "database": {"logins": {"admin": {"existingSecret": "x"}}}}, "operator.tokenSecret.name is required"),
    (nested("helmTest.run.workflow", "smoke"), "helmTest.run.apiKeySecret is required"),
    (nested("database.logins.owner", EMPTY), "database.logins.owner.existingSecret is required: .*migrations.mode=none"),
    (nested("database.logins.api", EMPTY), 'database.logins.api.existingSecret is required: .*tenantry_api under the key "password"'),
    (nested("database.logins.worker", EMPTY), "database.logins.worker.existingSecret is required"),
    (nested("database.logins.dispatcher", EMPTY), "database.logins.dispatcher.existingSecret is required"),
    ({"operator": {"enabled": True, "tokenSecret": {"name": "x"}}}, "database.logins.admin.existingSecret is required"),
    (nested("database.host", ""), "database.host is required: the host of Postgres"),
    (nested("database.logins.owner.username", ""), "database.logins.owner.username is required"),
    (nested("database.logins.api.urlKey", "url"), "pgbouncer.userlistSecret is required with database.logins.api.urlKey"),
    (
        {"database": {"host": "", "logins": {login: {"urlKey": "u"} for login in ("api", "worker", "dispatcher", "owner")}}, "pgbouncer": {"userlistSecret": "x"}},
        "database.host is required with pgbouncer.enabled",
    ),
    (nested("database.ca.existingSecret", ""), "database.ca.existingSecret is required for database.sslMode=verify-full"),
    (nested("pgbouncer.exporter.enabled", True), "pgbouncer.exporter.existingSecret is required"),
    (nested("api.terminationGracePeriodSeconds", 40), r"api.terminationGracePeriodSeconds \(40\) must exceed .* \(40\)"),
    (nested("worker.terminationGracePeriodSeconds", 49), r"worker.pools.default.terminationGracePeriodSeconds \(49\) must be at least .* \(50\)"),
    (nested("worker.pools.slow.drain.shutdownGraceSeconds", 300), r"worker.pools.slow.terminationGracePeriodSeconds \(60\) must be at least .* \(320\)"),
    (nested("pgbouncer.terminationGracePeriodSeconds", 255), r"pgbouncer.terminationGracePeriodSeconds \(255\) must exceed .* \(255\)"),
    (nested("pgbouncer.maxClientConn", 19), r"pgbouncer.maxClientConn x pgbouncer.replicas \(38\) is less than .* \(40\)"),
    (nested("pgbouncer.image.tag", "v1.18.0-p0"), "pgbouncer.image.tag v1.18.0-p0 cannot keep prepared statements"),
    (nested("database.maxConnections", 84), r"database.maxConnections \(84\) is less than .* \(80\)"),
    ({"database": {"maxConnections": 44}, "pgbouncer": {"enabled": False}}, r"database.maxConnections \(44\) is less than .* \(40\)"),
    (nested("api.autoscaling", {"enabled": True, "minReplicas": 11}), "api.autoscaling.minReplicas must not exceed maxReplicas"),
    (nested("worker.autoscaling", {**KEDA, "minReplicas": 11}), "worker.pools.default.autoscaling.minReplicas must not exceed"),
    (nested("worker.autoscaling", {"type": "hpa", "minReplicas": 0}), "worker.pools.default.autoscaling.minReplicas must be at least 1"),
    (nested("worker.autoscaling.type", "keda"), "worker.pools.default.autoscaling.keda.serverAddress is required"),
    (nested("worker.autoscaling", {**KEDA, "minReplicas": 0}), "worker.pools: at least one pool must keep a pod"),
    (nested("worker.replicas", 0), "worker.pools: at least one pool must keep a pod"),
    (nested("api.pdb", {"minAvailable": 1, "maxUnavailable": 1}), "api.pdb: minAvailable and maxUnavailable exclude each other"),
    (nested("worker.pdb", {"minAvailable": 1, "maxUnavailable": "50%"}), "worker.pools.default.pdb: minAvailable and"),
    (nested("pgbouncer.pdb", {"minAvailable": 0, "maxUnavailable": 0}), "pgbouncer.pdb: minAvailable and"),
    ({"api": {"ingress": {"enabled": True, "hosts": ["x"]}, "httpRoute": {"enabled": True, "parentRefs": [{"name": "x"}]}}}, "api.ingress and api.httpRoute exclude each other"),
    (nested("api.ingress.enabled", True), "api.ingress.hosts is required"),
    (nested("api.httpRoute.enabled", True), "api.httpRoute.parentRefs is required"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_it_is_refused_with_what_to_do(helm: Helm, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ChartError, match=text):
        helm.render(values_of("minimal", changes))


def test_every_refusal_of_the_chart_is_provoked(helm: Helm) -> None:
    texts = [path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file()]
    formats = [found for text in texts for found in re.findall(r'fail \(?(?:printf )?"((?:[^"\\]|\\.)+)"', text)]
    assert len(formats) == len([found for text in texts for found in re.findall(r"\{\{-? fail ", text)]) >= 25
    said = "\n".join(_refusal(helm, changes) for changes, _ in REFUSED)
    assert [text for text in formats if not re.search(_pattern(text), said)] == []


def _refusal(helm: Helm, changes: dict[str, Any]) -> str:
    with pytest.raises(ChartError) as refused:
        helm.render(values_of("minimal", changes))
    return str(refused.value)


def _pattern(text: str) -> str:
    """The texts that come of a format: anything may stand in its places."""
    return ".+".join(re.escape(part) for part in re.split(r"%[sdq]", text))


def test_what_a_worker_allows_itself_at_its_end_fits_into_the_margin_of_the_chart() -> None:
    assert LET_GO_S + LAST_WRITES_S + MARGIN_S + 1 <= 10


def test_the_connections_of_a_worker_are_those_that_the_chart_counts() -> None:
    heartbeat = 1
    assert WORK_POOL + DISPATCH_POOL + heartbeat == 10
