"""Spans that leave the process, as a real receiver gets them over HTTP; and what a worker that is killed leaves."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from kernel import RunCreate
from kernel.telemetry import Work, working
from service import sampling, telemetry
from tests.support.arena import Arena, arena
from tests.support.environment import DatabaseUrls
from tests.support.metrics import OtlpReceiver


def decoded(request: Any) -> list[dict[str, object]]:
    return [
        {
            "name": span.name,
            "service": [item.value.string_value for item in group.resource.attributes if item.key == "service.name"],
            "resource": {item.key for item in group.resource.attributes},
            "attributes": {item.key: item.value.string_value for item in span.attributes},
        }
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    opened = OtlpReceiver()
    yield opened
    opened.close()


def test_each_tenants_spans_leave_by_themselves_and_all_of_them_to_the_operator(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    exporter = telemetry.exporter_of({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}, "X-Scope-OrgID")
    made = telemetry.make(telemetry.resource_of("tests"), exporter, ALWAYS_ON)
    assert made.provider is not None
    tracer = made.provider.get_tracer("a library")
    mine, theirs = uuid4(), uuid4()
    for number, (owner, other) in enumerate([(mine, theirs), (theirs, mine), (mine, theirs)]):
        with working(Work(owner, uuid4())):
            tracer.start_span(f"span {number}", attributes={"tenant.id": str(other), "server.address": "db-7"}).end()
    tracer.start_span("nobody's", attributes={"tenant.id": str(mine)}).end()
    made.provider.shutdown()
    got: dict[str | None, list[dict[str, object]]] = {}
    for _, owner_id, request in receiver.requests:
        got.setdefault(owner_id, []).extend(decoded(request))
    assert {owner_id: [span["name"] for span in spans] for owner_id, spans in got.items()} == {
        "operator": ["span 0", "span 1", "span 2", "nobody's"],
        str(mine): ["span 0", "span 2"],
        str(theirs): ["span 1"],
    }
    for owner in (mine, theirs):
        for span in got[str(owner)]:
            assert isinstance(span["attributes"], dict)
            assert (span["attributes"]["tenant.id"], span["resource"]) == (str(owner), {"service.name"})
            assert "server.address" not in span["attributes"]
    assert got["operator"][-1]["attributes"] == {}


def test_without_an_endpoint_nothing_leaves() -> None:
    assert telemetry.exporter_of({}, None) is None
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}
    assert telemetry.exporter_of(off, None) is None


def test_switched_off_nothing_is_set_up() -> None:
    before = trace.get_tracer_provider()
    assert telemetry.set_up("tests", environ={"OTEL_SDK_DISABLED": "true"}).provider is None
    assert trace.get_tracer_provider() is before


def test_a_quiet_tenant_is_always_traced_and_a_busy_one_in_part() -> None:
    now = 0.0
    sampler = sampling.ShareSampler(clock=lambda: now)
    busy = sum(sampler._take("busy") for _ in range(1_000))
    assert (busy, sampler._take("quiet")) == (sampling.SHARE_BURST, True)
    now = 2.0
    assert sum(sampler._take("busy") for _ in range(1_000)) == 2 * sampling.SHARE_PER_S


@pytest.fixture
async def ring(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, database_urls: DatabaseUrls, tenant: UUID, tmp_path: Path
) -> AsyncIterator[Arena]:
    """An arena whose workers send what they trace to the receiver."""
    for name, value in (
        ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint), ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_SCHEDULE_DELAY", "200"), ("OTEL_SERVICE_NAME", "the-worker"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    async with arena(database_urls, tenant, tmp_path / "diary") as opened:
        yield opened


async def test_a_killed_worker_leaves_lease_expired_in_the_runs_trace(ring: Arena, receiver: OtlpReceiver) -> None:
    quick = {"stale_lease_threshold": "1s", "heartbeat_interval": "200ms"}
    task = {"diary": str(ring.diary), "seconds": 2.0}
    command = RunCreate("nap", task, traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    async with ring.database.transaction(ring.tenant_id) as tx:
        run_id = (await ring.kernel.dispatch(command, tx)).run_id
    with ring.worker(**quick) as first:
        await ring.noted("start")
        first.kill()
    with ring.worker(**quick) as second:
        await ring.all_over()
        assert second.stop() == 0
    rows = await ring.rows("select name, trace_id from tenantry.spans where run_id = %(run)s", run=run_id)
    stored = {row["name"]: row["trace_id"] for row in rows}
    assert stored["lease.expired"] == stored["run.finished"] == "a" * 32
    # The second attempt is a trace of its own.
    assert stored["job.execute nap/one"] != "a" * 32
    assert {"lease.expired", "run.finished", "job.execute nap/one", "tick"} <= {span.name for span in receiver.spans()}
    assert {one[""]["service.name"] for one in receiver.metrics()} == {"the-worker"}
