"""Sets up OpenTelemetry's SDK for a process of ours, from the standard `OTEL_*` variables.

Without any of them a bounded share of the runs is sampled and kept in the span store. With an OTLP endpoint everything
that is sampled goes there too. `OTEL_SDK_DISABLED=true` switches all of it off, and the engine then does not even look.
Where the process already has a provider (an application that embeds the engine), that one is left alone.
"""

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Lock, Thread
from time import monotonic
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, create_key, get_value
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import ProxyTracerProvider, get_current_span

from kernel.telemetry import RUN_SAMPLED, SAMPLING, WORK, Sampling, Work
from service.spans import OwnedSpan, SpanStore, is_private, public_attributes, public_links
from tenancy import Database

# In a context: whose share of the sampled roots a new one is taken from.
SHARE: Final = create_key("tenantry-share")
SHARE_PER_S: Final = 5.0
SHARE_BURST: Final = 50.0
MAX_SHARES: Final = 10_000
MAX_EXPORTERS: Final = 256
OPERATOR: Final = "operator"
_PARENT_BASED: Final = "parentbased_"


class RunSampler(Sampler):
    """Decides once a run: what has a parent follows it, a linked root its run, and only a new root is decided on."""

    def __init__(self, root: Sampler) -> None:
        self._root = root

    def should_sample(
        self, parent_context: Context | None, trace_id: int, *args: object, **kwargs: object
    ) -> SamplingResult:
        """Return the decision."""
        parent = get_current_span(parent_context).get_span_context()
        if parent.is_valid:
            is_sampled: object = parent.trace_flags.sampled
        else:
            is_sampled = get_value(RUN_SAMPLED, parent_context)
        sampler = self._root if is_sampled is None else ALWAYS_ON if is_sampled else ALWAYS_OFF
        return sampler.should_sample(parent_context, trace_id, *args, **kwargs)  # type: ignore[arg-type]

    def get_description(self) -> str:
        """Return what it is."""
        return f"RunSampler({self._root.get_description()})"


class ShareSampler(Sampler):
    """Samples a few roots a second of each share, bursts included: a quiet tenant is always traced, a busy one in part.

    A share is what the context says (`SHARE`), else the span's name.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._shares: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, *args: object, **kwargs: object
    ) -> SamplingResult:
        """Return the decision: sampled while the share has something left."""
        is_sampled = self._take(get_value(SHARE, parent_context) or name)
        sampler = ALWAYS_ON if is_sampled else ALWAYS_OFF
        return sampler.should_sample(parent_context, trace_id, name, *args, **kwargs)  # type: ignore[arg-type]

    def get_description(self) -> str:
        """Return what it is."""
        return f"ShareSampler({SHARE_PER_S:g}/s)"

    def _take(self, share: object) -> bool:
        now = self._clock()
        with self._lock:
            left, at = self._shares.pop(share, (SHARE_BURST, now))
            left = min(left + (now - at) * SHARE_PER_S, SHARE_BURST)
            is_had = left >= 1
            self._shares[share] = (left - is_had, now)
            if len(self._shares) > MAX_SHARES:
                self._shares.popitem(last=False)
        return is_had


class OwningProcessor(SpanProcessor):
    """Stamps every span, libraries' included, with the work it is part of, and hands it on as that work's.

    The owner is taken when the span starts, from the engine's context variable, and kept here, where the span's own
    code does not reach it.
    """

    def __init__(self, processors: Sequence[SpanProcessor], store: SpanStore) -> None:
        self._processors = processors
        self._store = store
        self._owners: dict[int, Work] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's signature
        """Take the owner."""
        work = WORK.get()
        if work is not None and span.context is not None:
            self._owners[span.context.span_id] = work
            span.set_attributes(work.attributes())

    def own(self, span_id: int, work: Work) -> None:
        """Name the owner of a span that began before it was known whose it is."""
        self._owners[span_id] = work

    def on_end(self, span: ReadableSpan) -> None:
        """Hand it on."""
        if span.context is None:
            return
        owned = OwnedSpan(span, self._owners.pop(span.context.span_id, None))
        self._store.export([owned])
        for processor in self._processors:
            processor.on_end(owned)

    def shutdown(self) -> None:
        """Send what waits and stop."""
        for processor in self._processors:
            processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits."""
        return all(processor.force_flush(timeout_millis) for processor in self._processors)


class TenantExporter(SpanExporter):
    """Sends each tenant's spans by themselves, with that tenant's id in a header, and all spans to the operator.

    A tenant's copy is what the tenant may see: no hosts, no statements, no links to what is not its own.
    """

    def __init__(self, make: Callable[[str], SpanExporter]) -> None:
        """`make` returns the exporter that sends with a given value of the header."""
        self._make = make
        self._exporters: OrderedDict[str, SpanExporter] = OrderedDict()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the groups one after the other; one that fails does not stop the others."""
        groups: dict[str, list[ReadableSpan]] = {OPERATOR: list(spans)}
        for span in spans:
            if isinstance(span, OwnedSpan) and span.work is not None and not is_private(span):
                groups.setdefault(str(span.work.tenant_id), []).append(_tenants_copy(span))
        results = [self._exporter(owner).export(group) for owner, group in groups.items()]
        return SpanExportResult.SUCCESS if set(results) == {SpanExportResult.SUCCESS} else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close every exporter."""
        for exporter in self._exporters.values():
            exporter.shutdown()

    def _exporter(self, owner: str) -> SpanExporter:
        found = self._exporters.pop(owner, None) or self._make(owner)
        self._exporters[owner] = found
        if len(self._exporters) > MAX_EXPORTERS:
            self._exporters.popitem(last=False)[1].shutdown()
        return found


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a process traces with; `provider` is None where nothing of ours does."""

    store: SpanStore
    processor: OwningProcessor | None = None
    provider: TracerProvider | None = None

    def own(self, span: trace.Span, work: Work) -> None:
        """Name the owner of a span that began before it was known whose it is."""
        if self.processor is not None and span.is_recording():
            span.set_attributes(work.attributes())
            self.processor.own(span.get_span_context().span_id, work)

    async def run(self, database: Database) -> None:
        """Write tenants' spans until cancelled, and once more then; without tracing there is nothing to do."""
        if self.provider is not None:
            await self.store.run(database)

    def close(self, timeout_s: float = 3.0) -> None:
        """Send what waits, for so long at most: a collector that is away must not hold a process that ends."""
        if self.provider is not None:
            sending = Thread(target=self.provider.shutdown, daemon=True)
            sending.start()
            sending.join(timeout_s)

    @asynccontextmanager
    async def writing(self, database: Database) -> AsyncIterator[None]:
        """Write tenants' spans beside the block; when it ends, once more."""
        if self.provider is None:
            yield
            return
        task = asyncio.get_running_loop().create_task(self.store.run(database))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


_OFF: Final = Telemetry(SpanStore())
_current: list[Telemetry] = []


def current() -> Telemetry:
    """Return what this process traces with."""
    return _current[-1] if _current else _OFF


def set_up(service: str, tenant_header: str | None = None, environ: Mapping[str, str] = os.environ) -> Telemetry:
    """Set up tracing for this process, once; `service` is its name unless `OTEL_SERVICE_NAME` gives one.

    With `tenant_header` (`X-Scope-OrgID`), spans leave grouped by tenant.
    """
    is_taken = not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
    if is_taken or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return current()
    root = sampler_of(environ)
    made = make(service, exporter_of(environ, tenant_header), root)
    SAMPLING.unmarked_share = unmarked_share_of(root)
    trace.set_tracer_provider(made.provider)  # type: ignore[arg-type]
    _current.append(made)
    return made


def make(service: str, exporter: SpanExporter | None, root: Sampler) -> Telemetry:
    """Return a provider of ours with its processor and store; nothing global is touched."""
    store = SpanStore()
    processor = OwningProcessor([BatchSpanProcessor(exporter)] if exporter is not None else [], store)
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(
        sampler=RunSampler(root), resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    return Telemetry(store, processor, provider)


def sampler_of(environ: Mapping[str, str]) -> Sampler:
    """Return the sampler of new roots that `OTEL_TRACES_SAMPLER` names, ours when it names none."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix(_PARENT_BASED)
    if name == "always_on":
        return ALWAYS_ON
    if name == "always_off":
        return ALWAYS_OFF
    if name == "traceidratio":
        return TraceIdRatioBased(float(environ.get("OTEL_TRACES_SAMPLER_ARG") or 1.0))
    return ShareSampler()


def unmarked_share_of(root: Sampler) -> float:
    """Return how many of the runs that carry no decision are sampled: those from SQL, or from where nothing traces."""
    if root is ALWAYS_ON or root is ALWAYS_OFF:
        return float(root is ALWAYS_ON)
    return root.rate if isinstance(root, TraceIdRatioBased) else Sampling().unmarked_share


def exporter_of(environ: Mapping[str, str], tenant_header: str | None) -> SpanExporter | None:
    """Return where spans go by OTLP, None when no endpoint is set."""
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    is_off = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none"
    if is_off or not any(environ.get(name) for name in endpoints):
        return None
    if tenant_header is None:
        return OTLPSpanExporter()
    return TenantExporter(lambda owner: OTLPSpanExporter(headers={tenant_header.lower(): owner}))


def _tenants_copy(span: OwnedSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=Resource({SERVICE_NAME: "tenantry"}),
        attributes=public_attributes(span.attributes),
        events=[event for event in span.events if event.name != "exception"],
        links=public_links(span),
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
