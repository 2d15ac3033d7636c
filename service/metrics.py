"""Every metric of a process: one definition, two ways out.

What is counted is plain numbers (`kernel.counts`, a host's own); whoever wants them, `/metrics` or OTLP, has them
observed at that moment. A metric has OpenTelemetry's name, unit and attributes; its name at `/metrics` is what the
standard makes of them (`tenantry.queue.wait` in `s` is `tenantry_queue_wait_seconds`), unless it has one of its own. No
tenant, no run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from itertools import accumulate
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kernel.counts import COUNTS, Spread

# Whoever answers with a text adds the charset by itself.
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST.partition("; charset=")[0]
Kind = Literal["counter", "updown", "gauge", "histogram"]
Attributes: TypeAlias = tuple[tuple[str, str | int], ...]
Value: TypeAlias = float | Spread
_SECONDS: Final = "s"


@dataclass(frozen=True, slots=True)
class Instrument:
    """What is measured. `labels` maps attributes to the labels of `/metrics`; others are summed over there.

    An `updown` adds up over processes, a `gauge` does not.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    own_exposed_name: str | None = None

    @property
    def exposed_name(self) -> str:
        """The name at `/metrics`; a counter's samples add `_total`, a histogram's `_bucket`, `_count` and `_sum`."""
        suffix = "_seconds" if self.unit == _SECONDS else ""
        return self.own_exposed_name or self.name.replace(".", "_") + suffix


@dataclass(frozen=True, slots=True)
class Observed:
    """What an instrument says now, by attributes."""

    instrument: Instrument
    points: Mapping[Attributes, Value]

    @classmethod
    def of(cls, instrument: Instrument, value: Value) -> "Observed":
        """Return an observation without attributes."""
        return cls(instrument, {(): value})


Source: TypeAlias = Callable[[], Iterable[Observed]]

_BY_OUTCOME: Final = {"tenantry.outcome": "outcome"}
BUILD: Final = Instrument(
    "tenantry.build_info", "gauge", "", "1, with the version of this build.", {"service.version": "version"}
)
RUNS_STARTED: Final = Instrument(
    "tenantry.runs.started", "counter", "{run}", "Runs that this process started, redriven ones included."
)
RUNS_FINISHED: Final = Instrument(
    "tenantry.runs.finished", "counter", "{run}", "Runs that this process ended, by how they ended.", _BY_OUTCOME
)
LEASES_EXPIRED: Final = Instrument("tenantry.leases.expired", "counter", "{lease}", "Lapsed leases taken back.")
JOBS_STARTED: Final = Instrument("tenantry.jobs.started", "counter", "{job}", "Executions of stages that began here.")
JOBS_FINISHED: Final = Instrument(
    "tenantry.jobs.finished", "counter", "{job}", "Executions by what they came to.", _BY_OUTCOME
)
STEP_ATTEMPTS: Final = Instrument(
    "tenantry.step.attempts", "counter", "{attempt}", "Calls of the functions of durable steps."
)
QUEUE_WAIT: Final = Instrument("tenantry.queue.wait", "histogram", _SECONDS, "From due to leased.")
JOB_EXECUTION: Final = Instrument("tenantry.job.execution", "histogram", _SECONDS, "From leased to settled.")
ENDS: Final = ("completed", "failed", "cancelled")


def engine() -> Iterator[Observed]:
    """Observe what the engine has counted in this process, whoever its host is."""
    counts = COUNTS
    yield Observed(BUILD, {(("service.version", installed_version("tenantry")),): 1})
    yield Observed.of(RUNS_STARTED, counts.runs_started)
    # Each way to end from the beginning: a rate sees no first end otherwise.
    yield Observed(RUNS_FINISHED, {_outcome(end): counts.runs_finished[end] for end in ENDS})
    yield Observed.of(LEASES_EXPIRED, counts.leases_expired)
    yield Observed.of(JOBS_STARTED, counts.jobs_started)
    yield Observed(JOBS_FINISHED, {_outcome(end): count for end, count in counts.jobs_finished.copy().items()})
    yield Observed.of(STEP_ATTEMPTS, counts.step_attempts)
    yield Observed.of(QUEUE_WAIT, counts.queue_wait)
    yield Observed.of(JOB_EXECUTION, counts.execution)


def _outcome(end: str) -> Attributes:
    return (("tenantry.outcome", end),)


# -- Prometheus -------------------------------------------------------------------------------------------------------


class Exposition:
    """Sources in the text format of Prometheus."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return what there is to say now."""
        for source in self._sources:
            for observed in source():
                yield _family(observed)

    def text(self) -> bytes:
        """Return everything."""
        return generate_latest(self._registry)


def _family(observed: Observed) -> Metric:
    instrument = observed.instrument
    name, documentation, labels = instrument.exposed_name, instrument.description, [*instrument.labels.values()]
    points = _by_labels(observed)
    if instrument.kind == "histogram":
        histogram = HistogramMetricFamily(name, documentation, labels=labels)
        for values, spread in points.items():
            assert isinstance(spread, Spread)
            histogram.add_metric(values, _buckets(spread), spread.total_s)
        return histogram
    kind = CounterMetricFamily if instrument.kind == "counter" else GaugeMetricFamily
    family = kind(name, documentation, labels=labels)
    for values, number in points.items():
        assert not isinstance(number, Spread)
        family.add_metric(values, number)
    return family


def _by_labels(observed: Observed) -> dict[tuple[str, ...], Value]:
    points: dict[tuple[str, ...], Value] = {}
    for attributes, value in observed.points.items():
        given = dict(attributes)
        values = tuple(str(given.get(name, "")) for name in observed.instrument.labels)
        points[values] = _sum(points[values], value) if values in points else value
    return points


def _sum(first: Value, second: Value) -> Value:
    if isinstance(first, Spread) and isinstance(second, Spread):
        counts = [one + other for one, other in zip(first.counts, second.counts, strict=True)]
        return Spread(first.bounds, counts, first.total_s + second.total_s)
    assert not isinstance(first, Spread)
    assert not isinstance(second, Spread)
    return first + second


def _buckets(spread: Spread) -> list[tuple[str, float]]:
    names = [*(f"{bound:g}" for bound in spread.bounds), "+Inf"]
    return [(name, float(count)) for name, count in zip(names, accumulate(spread.counts), strict=True)]
