"""A process that traces: a provider of ours in place of the process's own, what it would send kept in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from service import telemetry


class Kept(SpanExporter):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


class Tracing:
    """What was traced, by name."""

    def __init__(self, made: telemetry.Telemetry, kept: Kept) -> None:
        self.telemetry = made
        self._kept = kept

    def spans(self) -> list[ReadableSpan]:
        """Return every span that has ended, in the order of their starts."""
        assert self.telemetry.provider is not None
        self.telemetry.provider.force_flush()
        return sorted(self._kept.spans, key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@contextmanager
def tracing(root: Sampler = ALWAYS_ON) -> Iterator[Tracing]:
    """Trace until the context ends."""
    kept = Kept()
    made = telemetry.make(telemetry.resource_of("tests"), kept, root)
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = made.provider
    telemetry._current.append(made)
    try:
        yield Tracing(made, kept)
    finally:
        telemetry._current.remove(made)
        trace._TRACER_PROVIDER = before
        assert made.provider is not None
        made.provider.shutdown()
