"""Metrics on their way out by OTLP: the same observations that `/metrics` shows, sent at the interval of the SDK.

A thread of its own asks for them, so that no loop waits for a collector; nothing of it exists when no endpoint is set.
"""

import logging
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from time import monotonic, time_ns
from typing import Final

from opentelemetry.context import attach, set_value
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kernel.counts import Spread
from kernel.telemetry import SCOPE
from service.exporters import metric_exporter_of
from service.metrics import Attributes, Instrument, Observed, Source, Value

logger = logging.getLogger(__name__)
DEFAULT_INTERVAL_MS: Final = 60_000.0


def sender_of(environ: Mapping[str, str], resource: Resource) -> "MetricSender | None":
    """Return what sends metrics as the variables say, started; None when they want none.

    Raises:
        SettingsError: names the variable that cannot be followed.
    """
    exporter = metric_exporter_of(environ)
    return None if exporter is None else start_sender(exporter, environ, resource)


def start_sender(exporter: MetricExporter, environ: Mapping[str, str], resource: Resource) -> "MetricSender":
    """Return what sends metrics with an exporter, at the interval that the variables say; started."""
    temporality = environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    translation = Translation(resource, is_delta=temporality in {"delta", "lowmemory"})
    sender = MetricSender(exporter, translation, interval_of(environ))
    sender.start()
    return sender


def interval_of(environ: Mapping[str, str]) -> float:
    """Return how many seconds lie between two exports."""
    try:
        interval_ms = float(environ.get("OTEL_METRIC_EXPORT_INTERVAL") or DEFAULT_INTERVAL_MS)
    except ValueError:
        interval_ms = 0.0
    return (interval_ms if interval_ms > 0 else DEFAULT_INTERVAL_MS) / 1000


class Translation:
    """Makes of observations what OTLP carries; remembers the last values where only the difference is to be sent."""

    def __init__(self, resource: Resource, *, is_delta: bool = False) -> None:
        self._resource = resource
        self._is_delta = is_delta
        self._since_ns = time_ns()
        self._last: dict[tuple[str, Attributes], Value] = {}

    def of(self, observations: list[Observed]) -> MetricsData:
        """Translate what was observed just now."""
        now_ns = time_ns()
        metrics = [self._metric(observed, now_ns) for observed in observations if observed.points]
        if self._is_delta:
            self._since_ns = now_ns
        scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, observed: Observed, now_ns: int) -> Metric:
        instrument = observed.instrument
        delta = self._is_delta and instrument.kind in {"counter", "histogram"}
        temporality = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
        values = {
            attributes: self._since_last(instrument, attributes, value) if delta else value
            for attributes, value in observed.points.items()
        }
        data: Sum | Gauge | Histogram
        if instrument.kind == "histogram":
            spreads = [self._spread(attributes, value, now_ns) for attributes, value in values.items()]
            data = Histogram(spreads, temporality)
        else:
            numbers = [self._number(attributes, value, now_ns) for attributes, value in values.items()]
            is_sum = instrument.kind != "gauge"
            data = Sum(numbers, temporality, instrument.kind == "counter") if is_sum else Gauge(numbers)
        return Metric(instrument.name, instrument.description, instrument.unit, data)

    def _since_last(self, instrument: Instrument, attributes: Attributes, value: Value) -> Value:
        key = instrument.name, attributes
        if not isinstance(value, Spread):
            before = self._last.get(key, 0)
            self._last[key] = value
            assert not isinstance(before, Spread)
            return value - before
        # A copy: the one that is observed goes on counting.
        now = Spread(value.bounds, [*value.counts], value.total_s)
        last = self._last.get(key)
        self._last[key] = now
        if not isinstance(last, Spread):
            return now
        counts = [count - former for count, former in zip(now.counts, last.counts, strict=True)]
        return Spread(value.bounds, counts, now.total_s - last.total_s)

    def _number(self, attributes: Attributes, value: Value, now_ns: int) -> NumberDataPoint:
        assert not isinstance(value, Spread)
        return NumberDataPoint(dict(attributes), self._since_ns, now_ns, value)

    def _spread(self, attributes: Attributes, value: Value, now_ns: int) -> HistogramDataPoint:
        assert isinstance(value, Spread)
        counts = [*value.counts]
        return HistogramDataPoint(
            attributes=dict(attributes),
            start_time_unix_nano=self._since_ns,
            time_unix_nano=now_ns,
            count=sum(counts),
            sum=value.total_s,
            bucket_counts=counts,
            explicit_bounds=value.bounds,
            # Not kept: over a whole life they say little, and each would be a comparison a job.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )


class MetricSender(Thread):
    """Sends what the sources say once an interval, and once more when it is closed."""

    def __init__(self, exporter: MetricExporter, translation: Translation, interval_s: float) -> None:
        super().__init__(name="tenantry-metrics", daemon=True)
        self._exporter = exporter
        self._translation = translation
        self._interval_s = interval_s
        self._sources: list[Source] = []
        self._refreshers: list[Callable[[], None]] = []
        self._registering = Lock()
        self._closing = Event()

    def add(self, source: Source, refresh: Callable[[], None] | None = None) -> None:
        """Have a source observed from now on, after `refresh` where it has to look something up."""
        with self._registering:
            self._sources.append(source)
            if refresh is not None:
                self._refreshers.append(refresh)

    def run(self) -> None:
        """Send until closed."""
        # What instruments HTTP clients must not trace the sending of telemetry.
        attach(set_value("suppress_instrumentation", value=True))
        while not self._closing.wait(self._interval_s):
            self._send()
        self._send()

    def close(self, timeout_s: float) -> None:
        """Send a last time, for so long at most: a collector that is away must not hold a process that ends."""
        deadline = monotonic() + timeout_s
        self._closing.set()
        self.join(timeout_s)
        # Ends the repeats of a request that is under way; the thread is a daemon.
        self._exporter.shutdown(timeout_millis=max(deadline - monotonic(), 0) * 1000)

    def _send(self) -> None:
        try:
            with self._registering:
                sources, refreshers = [*self._sources], [*self._refreshers]
            if not self._closing.is_set():
                for refresh in refreshers:
                    refresh()
            observations = [observed for source in sources for observed in source()]
            self._exporter.export(self._translation.of(observations))
        except Exception:
            # Whatever a source of the application's own raises: the thread must live to send the next time.
            logger.exception("metrics_not_sent")
