"""Metrics leave by OTLP as they stand at `/metrics`, when the variables say so; without them nothing of it exists."""

import threading
import time
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

from kernel.counts import COUNTS, Counts, Spread
from service import metrics, telemetry
from service.exporters import is_wanted
from service.http.metrics import HttpMetrics
from service.metrics import Exposition, Observed, Source, engine
from service.otlp import MetricSender, Translation, interval_of, sender_of
from service.worker.metrics import CONCURRENCY, DATABASE_AWAY, DEPTHS, JOBS_IN_FLIGHT, TICKS
from tests.support import waiting
from tests.support.metrics import OtlpReceiver, instruments, number_of, samples_of

ALL_OF_A_HOST = (TICKS, DATABASE_AWAY, JOBS_IN_FLIGHT, CONCURRENCY, *DEPTHS)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    opened = OtlpReceiver()
    yield opened
    opened.close()


@pytest.fixture
def environ(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    for name, value in given.items():
        # The exporter reads the process's own.
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> tuple[Source, ...]:
    """An API's, an engine's and a host's, with something to say of everything."""
    counts = Counts(runs_started=3, leases_expired=1, jobs_started=9, step_attempts=7)
    counts.runs_finished.update(completed=2, failed=1)
    counts.jobs_finished.update(completed=8, lost=1)
    counts.queue_wait.observe(0.02)
    counts.execution.observe(4000.0)
    monkeypatch.setattr(metrics, "COUNTS", counts)
    http = HttpMetrics()
    for status in (201, 201, 503):
        http.count("POST", "/v1/runs", status, 0.004)
    return engine, http.observe, lambda: [Observed.of(one, number) for number, one in enumerate(ALL_OF_A_HOST)]


def closing(sender: MetricSender | None) -> float:
    """Close a sender, and return for how long that took."""
    assert sender is not None
    began = time.monotonic()
    sender.close(2.0)
    return time.monotonic() - began


def sent(receiver: OtlpReceiver, environ: dict[str, str], *sources: Source) -> dict[str, Any]:
    sender = sender_of(environ, telemetry.resource_of("tests"))
    assert sender is not None
    for source in sources:
        sender.add(source)
    closing(sender)
    return receiver.metrics()[-1]


def test_everything_at_metrics_leaves_by_otlp_with_the_same_figures(
    receiver: OtlpReceiver, environ: dict[str, str], sources: tuple[Source, ...]
) -> None:
    exposed = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in Exposition(*sources).collect()
        for sample in family.samples
    }
    by_otlp = sent(receiver, environ, *sources)
    assert {one.name for one in instruments()} == by_otlp.keys() - {""}
    assert {name for name, *_ in exposed} == {name for one in instruments() for name in samples_of(one)}
    for one in instruments():
        assert by_otlp[one.name].unit == one.unit
        kind = by_otlp[one.name].WhichOneof("data")
        assert kind == {"counter": "sum", "updown": "sum", "gauge": "gauge", "histogram": "histogram"}[one.kind]
        for point in getattr(by_otlp[one.name], kind).data_points:
            given = {item.key: item.value.string_value or str(item.value.int_value) for item in point.attributes}
            assert "tenant" not in "".join(given).replace("tenantry.", "")
            labels = sorted(given[name] for name in one.labels if name in given)
            if kind != "histogram":
                (name,) = samples_of(one)
                assert (point.as_int or point.as_double) == exposed[name, *labels], one.name
    finished = by_otlp["tenantry.runs.finished"]
    assert [number_of(finished, tenantry__outcome=end) for end in metrics.ENDS] == [2, 1, 0]
    assert finished.sum.is_monotonic
    assert not by_otlp["tenantry.jobs.in_flight"].sum.is_monotonic


def test_a_histogram_leaves_with_its_buckets_and_the_conventions_attributes(
    receiver: OtlpReceiver, environ: dict[str, str], sources: tuple[Source, ...]
) -> None:
    by_otlp = sent(receiver, environ, *sources)
    (wait,) = by_otlp["tenantry.queue.wait"].histogram.data_points
    assert (wait.count, wait.sum) == (1, 0.02)
    assert [bound for bound, number in zip(wait.explicit_bounds, wait.bucket_counts, strict=False) if number] == [0.025]
    (execution,) = by_otlp["tenantry.job.execution"].histogram.data_points
    assert (execution.bucket_counts[-1], len(execution.bucket_counts)) == (1, len(execution.explicit_bounds) + 1)
    by_status = {
        {item.key: item.value for item in point.attributes}["http.response.status_code"].int_value: point
        for point in by_otlp["http.server.request.duration"].histogram.data_points
    }
    assert {status: point.count for status, point in by_status.items()} == {201: 2, 503: 1}
    said = {item.key: item.value.string_value for item in by_status[503].attributes}
    assert {name: said[name] for name in ("http.request.method", "http.route", "url.scheme", "error.type")} == {
        "http.request.method": "POST", "http.route": "/v1/runs", "url.scheme": "http", "error.type": "503",
    }  # fmt: skip


def test_a_process_has_a_name_a_version_and_an_id_of_its_own(
    receiver: OtlpReceiver, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = sent(receiver, environ, engine)[""]
    assert (resource["service.name"], resource["service.version"]) == ("tests", installed_version("tenantry"))
    assert UUID(resource["service.instance.id"])
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine,service.version=9")
    named = sent(receiver, environ, engine)[""]
    assert (named["service.instance.id"], named["service.version"]) == ("mine", "9")


async def test_they_leave_at_the_interval_and_once_more_at_the_end(
    receiver: OtlpReceiver, environ: dict[str, str]
) -> None:
    started = 0

    def counting() -> list[Observed]:
        nonlocal started
        started += 1
        return [Observed.of(TICKS, started)]

    sender = sender_of(environ, telemetry.resource_of("tests"))
    assert sender is not None
    sender.add(counting)
    assert sender.daemon
    await waiting.until(lambda: len(receiver.metrics()) >= 2, "metrics were sent twice")
    before = len(receiver.metrics())
    closing(sender)
    told = [number_of(one["tenantry.ticks"]) for one in receiver.metrics()]
    assert len(told) > before
    assert told == sorted(told)
    assert not sender.is_alive()


def test_a_collector_that_hangs_does_not_hold_a_process_that_ends(
    receiver: OtlpReceiver, environ: dict[str, str]
) -> None:
    receiver.is_silent.set()
    sender = sender_of(environ, telemetry.resource_of("tests"))
    assert sender is not None
    sender.add(engine)
    assert closing(sender) < 3.0


def test_a_collector_that_is_away_does_not_either(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    sender = sender_of(environ, telemetry.resource_of("tests"))
    assert sender is not None
    sender.add(engine)
    assert closing(sender) < 3.0


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/v1/metrics"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "prometheus"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "otlp,prometheus"}, True),
    ],
)
def test_the_variables_decide(environ: dict[str, str], wanted: bool) -> None:
    assert is_wanted("METRICS", environ) is wanted


def test_without_an_endpoint_there_is_no_thread_and_switched_off_there_is_none_either() -> None:
    assert sender_of({}, telemetry.resource_of("tests")) is None
    off = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert telemetry.set_up("tests", environ=off).metrics is None
    assert not [thread for thread in threading.enumerate() if thread.name == "tenantry-metrics"]


@pytest.mark.parametrize(("given", "seconds"), [("250", 0.25), ("", 60.0), ("soon", 60.0), ("-1", 60.0)])
def test_the_interval_is_the_standards(given: str, seconds: float) -> None:
    assert interval_of({"OTEL_METRIC_EXPORT_INTERVAL": given}) == seconds


def test_differences_are_sent_where_they_are_asked_for() -> None:
    spread, counter = Spread(), 0
    translation = Translation(telemetry.resource_of("tests"), is_delta=True)

    def look() -> dict[str, Any]:
        observed = [Observed.of(TICKS, counter), Observed.of(metrics.QUEUE_WAIT, spread), Observed.of(CONCURRENCY, 64)]
        (resource,) = translation.of(observed).resource_metrics
        return {metric.name: metric.data.data_points[0] for metric in resource.scope_metrics[0].metrics}

    counter = 5
    spread.observe(1.0)
    first = look()
    counter = 7
    spread.observe(1.0)
    spread.observe(3.0)
    second = look()
    assert (first["tenantry.ticks"].value, second["tenantry.ticks"].value) == (5, 2)
    assert (first["tenantry.queue.wait"].count, second["tenantry.queue.wait"].count) == (1, 2)
    assert second["tenantry.queue.wait"].sum == 4.0
    assert second["tenantry.worker.concurrency"].value == 64
    assert second["tenantry.ticks"].start_time_unix_nano == first["tenantry.ticks"].time_unix_nano


async def test_a_source_that_fails_does_not_end_the_sending(receiver: OtlpReceiver, environ: dict[str, str]) -> None:
    has_failed = threading.Event()

    def failing_once() -> list[Observed]:
        if not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("once")
        return [Observed.of(TICKS, 1)]

    sender = MetricSender(OTLPMetricExporter(), Translation(telemetry.resource_of("tests")), 0.05)
    sender.add(failing_once)
    sender.start()
    await waiting.until(lambda: bool(receiver.metrics()), "metrics were sent after the failure")
    closing(sender)


def test_what_is_counted_in_this_process_is_what_is_observed() -> None:
    before = COUNTS.jobs_started
    points = {observed.instrument.name: observed.points for observed in engine()}
    assert points["tenantry.jobs.started"] == {(): before}
