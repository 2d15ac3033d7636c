"""Where spans and metrics go by OTLP, as the `OTEL_EXPORTER_OTLP_*` variables say: over HTTP, over gRPC, or nowhere."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Final, Literal, TypeAlias

from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.util.re import parse_env_headers

from service.environment import SettingsError
from service.owned_span import OwnedSpan
from service.visibility import Visibility

logger = logging.getLogger(__name__)
Signal: TypeAlias = Literal["TRACES", "METRICS"]
HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"
OPERATOR: Final = "operator"
MAX_EXPORTERS: Final = 256
# For how long nothing is sent for a tenant whose spans were not taken.
PAUSE_S: Final = 30.0


class TenantExporter(SpanExporter):
    """Sends each tenant's spans by themselves, with that tenant's id in a header, and all spans to the operator.

    A tenant's copy is what the tenant may see: no hosts, no statements, no links to what is not its own. Whose
    spans were not taken has none sent for a while: an export is repeated for ten seconds, in which nobody's leave.
    """

    def __init__(
        self, make: Callable[[str], SpanExporter], visibility: Visibility, clock: Callable[[], float] = monotonic
    ) -> None:
        """`make` returns the exporter that sends with a given value of the header."""
        self._make = make
        self._visibility = visibility
        self._exporters: OrderedDict[str, SpanExporter] = OrderedDict()
        self._clock = clock
        self._refused: dict[str, float] = {}

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the groups one after the other; one that fails does not stop the others."""
        groups: dict[str, list[ReadableSpan]] = {OPERATOR: list(spans)}
        for span in spans:
            if isinstance(span, OwnedSpan) and span.work is not None and not self._visibility.is_private(span):
                groups.setdefault(str(span.work.tenant_id), []).append(self._visibility.copy(span))
        results = {self._send(owner, group) for owner, group in groups.items()}
        return SpanExportResult.SUCCESS if results == {SpanExportResult.SUCCESS} else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close every exporter."""
        for exporter in self._exporters.values():
            exporter.shutdown()

    def _send(self, owner: str, group: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._clock() < self._refused.get(owner, -inf):
            return SpanExportResult.FAILURE
        try:
            result = self._exporter(owner).export(group)
        except Exception:
            # Whatever an exporter makes of one owner's spans, the others' are still to be sent.
            logger.exception("spans_not_sent", extra={"owner": owner, "spans": len(group)})
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._refused.pop(owner, None)
        elif owner != OPERATOR:
            self._refused[owner] = self._clock() + PAUSE_S
        return result

    def _exporter(self, owner: str) -> SpanExporter:
        found = self._exporters.pop(owner, None) or self._make(owner)
        self._exporters[owner] = found
        if len(self._exporters) > MAX_EXPORTERS:
            forgotten, exporter = self._exporters.popitem(last=False)
            self._refused.pop(forgotten, None)
            exporter.shutdown()
        return found


def is_wanted(signal: Signal, environ: Mapping[str, str]) -> bool:
    """Whether the variables say that spans, or metrics, leave by OTLP: to an endpoint, and by nothing else."""
    exporters = environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() or "otlp"
    endpoints = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    return "otlp" in [name.strip() for name in exporters.split(",")] and any(environ.get(name) for name in endpoints)


def span_exporter_of(
    environ: Mapping[str, str], tenant_header: str | None, visibility: Visibility | None = None
) -> SpanExporter | None:
    """Return where spans go, None when nowhere; with `tenant_header` each tenant's by themselves.

    Raises:
        SettingsError: names the variable that cannot be followed.
    """
    if not is_wanted("TRACES", environ):
        return None
    protocol = protocol_of("TRACES", environ)
    if tenant_header is None:
        return _span_exporter(protocol, environ, {})
    header = tenant_header.lower()
    # The operator's at once: what is wrong with the variables is told at the start, not by the first span.
    exporters = {OPERATOR: _span_exporter(protocol, environ, {header: OPERATOR})}

    def make(owner: str) -> SpanExporter:
        return exporters.pop(owner, None) or _span_exporter(protocol, environ, {header: owner})

    return TenantExporter(make, visibility or Visibility())


def metric_exporter_of(environ: Mapping[str, str]) -> MetricExporter | None:
    """Return where metrics go, None when nowhere.

    Raises:
        SettingsError: names the variable that cannot be followed.
    """
    if not is_wanted("METRICS", environ):
        return None
    with _refusals():
        if protocol_of("METRICS", environ) == HTTP:
            return metric_exporter.OTLPMetricExporter()
        # Large, and seldom wanted: not before it is.
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415

        return OTLPMetricExporter()


def protocol_of(signal: Signal, environ: Mapping[str, str]) -> str:
    """Return how to speak to the collector.

    Raises:
        SettingsError: it is neither `http/protobuf` nor `grpc`.
    """
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if text := environ.get(name, "").strip().lower():
            if text not in {HTTP, GRPC}:
                raise SettingsError(f"{name.lower()}: {text!r} is neither {HTTP} nor {GRPC}")
            return text
    return HTTP


def _span_exporter(protocol: str, environ: Mapping[str, str], headers: Mapping[str, str]) -> SpanExporter:
    with _refusals():
        if protocol == HTTP:
            return trace_exporter.OTLPSpanExporter(headers=headers)
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        # Over HTTP the library adds them to those of the variables; here it would leave those out.
        given = environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        return OTLPSpanExporter(headers={**parse_env_headers(given, liberal=True), **headers})


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell what the library finds wrong with its variables as a setting that is."""
    try:
        yield
    except Exception as error:
        # Each exporter has classes of its own for it.
        raise SettingsError(f"otel_exporter_otlp: {' '.join(str(error).split())}") from error
