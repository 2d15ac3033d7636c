"""Spans that leave the process, as a real receiver gets them over HTTP and gRPC; and what a worker that is killed leaves."""

import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, StatusCode, TraceFlags, Tracer

from kernel import RunCreate
from kernel.work import Work, working
from service import sampling, telemetry
from service.environment import SettingsError
from service.exporters import PAUSE_S, TenantExporter, span_exporter_of
from service.metrics import engine
from service.otlp import sender_of
from service.visibility import Visibility
from tests.support.arena import Arena, arena
from tests.support.environment import DatabaseUrls
from tests.support.grpc_receiver import GrpcReceiver
from tests.support.metrics import OtlpReceiver, Received
from tests.support.tracing import Tracing


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


class Collector:
    """A receiver, the variables that lead to it, and a process that traces into it a tenant at a time."""

    def __init__(self, receiver: Received, environ: dict[str, str]) -> None:
        self.receiver = receiver
        self.environ = environ
        self.made = telemetry.make(
            telemetry.resource_of("tests"), span_exporter_of(environ, "X-Scope-OrgID"), ALWAYS_ON
        )

    def tracer(self, name: str = "a library", version: str | None = None, schema_url: str | None = None) -> Tracer:
        assert self.made.provider is not None
        return self.made.provider.get_tracer(name, version, schema_url=schema_url)

    def sent(self) -> dict[str, list[dict[str, Any]]]:
        """Send everything, and return what came, by the header."""
        assert self.made.provider is not None
        self.made.provider.shutdown()
        got: dict[str, list[dict[str, Any]]] = {}
        for _, headers, request in self.receiver.requests:
            assert headers["authorization"] == "Basic abc"
            got.setdefault(headers["x-scope-orgid"], []).extend(decoded(request))
        return got


@pytest.fixture(params=["http/protobuf", "grpc"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    receiver = GrpcReceiver() if request.param == "grpc" else OtlpReceiver()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": request.param,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc,x-scope-orgid=everybody",
    }
    for name, value in environ.items():
        # The exporters read the process's own.
        monkeypatch.setenv(name, value)
    yield Collector(receiver, environ)
    receiver.close()


def test_each_tenants_spans_leave_by_themselves_and_all_of_them_to_the_operator(collector: Collector) -> None:
    tracer, mine, theirs = collector.tracer(), uuid4(), uuid4()
    for number, (owner, other) in enumerate([(mine, theirs), (theirs, mine), (mine, theirs)]):
        with working(Work(owner, uuid4())):
            tracer.start_span(f"span {number}", attributes={"tenant.id": str(other), "server.address": "db-7"}).end()
    tracer.start_span("nobody's", attributes={"tenant.id": str(mine)}).end()
    got = collector.sent()
    assert {owner_id: [span["name"] for span in spans] for owner_id, spans in got.items()} == {
        "operator": ["span 0", "span 1", "span 2", "nobody's"],
        str(mine): ["span 0", "span 2"],
        str(theirs): ["span 1"],
    }
    for owner in (mine, theirs):
        for span in got[str(owner)]:
            assert (span["attributes"]["tenant.id"], span["resource"]) == (str(owner), {"service.name"})
            assert "server.address" not in span["attributes"]
    assert got["operator"][-1]["attributes"] == {}


def leave_what_no_exporter_can_encode(collector: Collector) -> None:
    """Make spans whose names, times, kinds, links and parents are none; the API takes them all."""
    tracer, odd = collector.tracer(), cast("Any", "odd")
    collector.tracer("\ud800", "\ud800", "\ud800").start_span("scope").end()
    collector.tracer(cast("Any", 7)).start_span("scope").end()
    tracer.start_span("name \ud800").end()
    tracer.start_span(cast("Any", 7)).end()
    tracer.start_span("kind", kind=odd).end()
    tracer.start_span("time", start_time=-1).end(2**70)
    tracer.start_span("time", start_time=odd).end(odd)
    span = tracer.start_span("event, status, values")
    span.add_event("\ud800", timestamp=-1)
    span.set_status(StatusCode.ERROR, "\ud800")
    span.set_attributes({"text": "\ud800", "number": 2**80, "\ud800": 1})
    span.end()
    sampled = TraceFlags(TraceFlags.SAMPLED)
    tracer.start_span("link", links=[Link(SpanContext(2**200, 1, is_remote=True, trace_flags=sampled), {"a": 1})]).end()
    for context in (SpanContext(cast("Any", 1.5), 2, True, sampled), SpanContext(1, 2, True, sampled, odd)):
        above = trace.set_span_in_context(trace.NonRecordingSpan(context))
        tracer.start_span("parent", above).end()


def test_no_span_of_one_tenants_takes_those_of_another_along(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    # The exporter logs a key that it leaves out as it is, and no report of tests carries a lone surrogate.
    caplog.set_level(logging.CRITICAL, "opentelemetry.exporter.otlp.proto.common._internal")
    mine, theirs = uuid4(), uuid4()
    with working(Work(mine, uuid4())):
        leave_what_no_exporter_can_encode(collector)
    with working(Work(theirs, uuid4())):
        collector.tracer().start_span("sound").end()
    got = {owner: [span["name"] for span in spans] for owner, spans in collector.sent().items()}
    assert got[str(theirs)] == ["sound"]
    assert "sound" in got["operator"]
    # Whatever can be mended is kept.
    told = [
        "scope",
        "scope",
        "name \N{REPLACEMENT CHARACTER}",
        "int",
        "kind",
        "time",
        "time",
        "event, status, values",
        "link",
    ]
    assert got[str(mine)] == told


class Refusing(SpanExporter):
    """Takes nobody's spans while it `refuses`, and notes each try."""

    def __init__(self, owner: str, tries: list[str], refuses: set[str]) -> None:
        self._owner, self._tries, self._refuses = owner, tries, refuses

    def export(self, _spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._tries.append(self._owner)
        if "raise" in self._refuses:
            raise ConnectionError
        return SpanExportResult.FAILURE if self._owner in self._refuses else SpanExportResult.SUCCESS


@pytest.mark.parametrize("how", ["refuse", "raise"])
def test_a_tenant_whose_spans_are_refused_keeps_nobody_elses_waiting(traced: Tracing, how: str) -> None:
    mine, theirs = uuid4(), uuid4()
    for owner in (mine, theirs):
        with working(Work(owner, uuid4())):
            trace.get_tracer("t").start_span("span").end()
    tries: list[str] = []
    refuses = {str(mine)} if how == "refuse" else {"raise"}
    now = 0.0
    exporter = TenantExporter(lambda owner: Refusing(owner, tries, refuses), Visibility(), lambda: now)

    def tried() -> set[str]:
        tries.clear()
        exporter.export(traced.spans())
        return set(tries)

    everybody = {"operator", str(mine), str(theirs)}
    assert tried() == everybody
    refused = {str(mine)} if how == "refuse" else {str(mine), str(theirs)}
    assert tried() == everybody - refused
    now = PAUSE_S
    refuses.clear()
    assert tried() == tried() == everybody


def test_metrics_leave_by_either(collector: Collector) -> None:
    sender = sender_of(collector.environ, telemetry.resource_of("tests"))
    assert sender is not None
    sender.add(engine)
    sender.close(5.0)
    assert "tenantry.runs.started" in collector.receiver.metrics()[-1]


def test_without_an_endpoint_nothing_leaves() -> None:
    assert span_exporter_of({}, None) is None


@pytest.mark.parametrize("exporters", ["none", "console", "console,none"])
def test_what_is_to_leave_by_something_else_does_not_leave_by_otlp(exporters: str) -> None:
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": exporters}
    assert span_exporter_of(off, None) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "thrift"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "a few"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "many"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_refused_in_a_line_that_names_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_SAMPLER": "traceidratio", name: value,
    }  # fmt: skip
    for variable, text in given.items():
        monkeypatch.setenv(variable, text)
    before = trace.get_tracer_provider()
    with pytest.raises(SettingsError) as refused:
        telemetry.set_up("tests", environ=given)
    assert "\n" not in str(refused.value)
    assert {word for word in re.split(r"[^a-z]+", name.lower()) if len(word) > 4} <= set(
        re.split(r"[^a-z]+", str(refused.value).lower())
    )
    assert trace.get_tracer_provider() is before


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
