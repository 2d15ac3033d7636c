"""Sets up OpenTelemetry's SDK for a process of ours, from the standard `OTEL_*` variables.

Without any of them a bounded share of the runs is sampled and kept in the span store. With an OTLP endpoint everything
that is sampled goes there too, and what is counted. `OTEL_SDK_DISABLED=true` switches all of it off, and the engine
then does not even look.
Where the process already has a provider (an application that embeds the engine), that one is left alone.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed_version
from threading import Thread
from time import monotonic
from typing import Any, Final
from uuid import uuid4
from weakref import ref

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import ProxyTracerProvider, Tracer

from kernel.telemetry import SCOPE
from kernel.work import Work, current_work
from service.engine_span import EngineSpan, EngineTracer
from service.environment import SettingsError
from service.exporters import metric_exporter_of, span_exporter_of
from service.metrics import Source, engine
from service.otlp import MetricSender, start_sender
from service.owned_span import OwnedSpan, is_sound
from service.sampling import RunSampler, sampler_of
from service.spans import SpanStore
from service.visibility import Visibility
from tenancy import Database

# Of an attribute of a span or an event, unless `OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` says otherwise.
MAX_TEXT: Final = 16_384
REFRESH_WITHIN_S: Final = 3.0


class OwningProcessor(SpanProcessor):
    """Stamps every span, libraries' included, with the work it is part of, and hands it on as that work's.

    The owner is taken when the span starts, from the engine's context variable, and kept here, where the span's own
    code does not reach it, for as long as there is the span: one that never ends is forgotten with it, and however many
    spans one tenant's bodies leave open, no other's lose their owner.
    """

    def __init__(self, processors: Sequence[SpanProcessor], store: SpanStore) -> None:
        self._processors = processors
        self._store = store
        self._owners: dict[int, tuple[ref[trace.Span], Work]] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's signature
        """Take the owner of what does not begin on somebody's behalf anyway, and stamp it."""
        if isinstance(span, EngineSpan):
            return
        work = current_work()
        if work is not None and not work.is_over and span.context is not None:
            self.own(span, work)
            span.set_attributes(work.attributes())

    def own(self, span: trace.Span, work: Work) -> None:
        """Name the owner of a span that has begun."""
        owners, span_id = self._owners, span.get_span_context().span_id
        owners[span_id] = ref(span, lambda _span: owners.pop(span_id, None)), work

    def on_end(self, span: ReadableSpan) -> None:
        """Hand it on. One with ids that are none has nowhere to belong to, and no exporter could encode it."""
        if span.context is None:
            return
        _, work = self._owners.pop(span.context.span_id, (None, None))
        if not is_sound(span.context) or (span.parent is not None and not is_sound(span.parent)):
            return
        owned = OwnedSpan(span, work)
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


class EngineProvider(TracerProvider):
    """The SDK's, but for who asks in the engine's name: its tracer makes spans of its own."""

    def __init__(self, sampler: Sampler, resource: Resource, limits: SpanLimits, processor: OwningProcessor) -> None:
        processors = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
        super().__init__(sampler, resource, False, processors, span_limits=limits)
        self.add_span_processor(processor)
        self._engine = EngineTracer(self, super().get_tracer(SCOPE), processors, processor.own, limits)

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> Tracer:
        """Return the tracer of a scope."""
        is_engine = (instrumenting_module_name, args, kwargs) == (SCOPE, (), {})
        return self._engine if is_engine else super().get_tracer(instrumenting_module_name, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a process tells of itself with; `provider` is None where nothing of ours traces.

    `metrics` is None where none leave.
    """

    store: SpanStore
    processor: OwningProcessor | None = None
    provider: TracerProvider | None = None
    metrics: MetricSender | None = None

    def own(self, span: trace.Span, work: Work) -> None:
        """Name the owner of a span that began before it was known whose it is."""
        if self.processor is not None and span.is_recording():
            span.set_attributes(work.attributes())
            self.processor.own(span, work)

    async def run(self, database: Database) -> None:
        """Write tenants' spans until cancelled, and once more then; without tracing there is nothing to do."""
        if self.provider is not None:
            await self.store.run(database)

    def close(self, timeout_s: float = 3.0) -> None:
        """Send what waits, for so long at most: a collector that is away must not hold a process that ends."""
        deadline = monotonic() + timeout_s
        closings: list[Callable[[], None]] = []
        if self.provider is not None:
            closings.append(self.provider.shutdown)
        if self.metrics is not None:
            closings.append(partial(self.metrics.close, timeout_s))
        threads = [Thread(target=closing, daemon=True) for closing in closings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(deadline - monotonic(), 0))

    def measure(self, source: Source, refresh: Callable[[], Awaitable[None]] | None = None) -> None:
        """Send what a source says, if metrics leave; `refresh` is awaited before, in the loop that runs now."""
        if self.metrics is None:
            return
        loop = asyncio.get_running_loop()
        self.metrics.add(source, None if refresh is None else partial(_refresh, refresh, loop))

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


def set_up(
    service: str,
    tenant_header: str | None = None,
    modules: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Telemetry:
    """Set up traces and metrics for this process, once; `service` is its name unless `OTEL_SERVICE_NAME` gives one.

    With `tenant_header` (`X-Scope-OrgID`), spans leave grouped by tenant. `modules` are those of the stages' functions.

    Raises:
        SettingsError: names the variable that cannot be followed.
    """
    is_taken = not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
    if is_taken or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return current()
    visibility, resource = Visibility(modules), resource_of(service)
    spans, sampler = span_exporter_of(environ, tenant_header, visibility), sampler_of(environ)
    metrics = metric_exporter_of(environ)
    try:
        traced = make(resource, spans, sampler, visibility)
    except ValueError as error:
        # Limits and sizes of batches, which the SDK reads by itself.
        raise SettingsError(f"otel: {' '.join(str(error).split())}") from error
    made = traced if metrics is None else replace(traced, metrics=start_sender(metrics, environ, resource))
    if made.metrics is not None:
        made.metrics.add(engine)
    trace.set_tracer_provider(made.provider)  # type: ignore[arg-type]
    _current.append(made)
    return made


def make(
    resource: Resource, exporter: SpanExporter | None, root: Sampler, visibility: Visibility | None = None
) -> Telemetry:
    """Return a provider of ours with its processor and store; nothing global is touched."""
    limits, store = _limits(), SpanStore(visibility)
    processor = OwningProcessor([BatchSpanProcessor(exporter)] if exporter is not None else [], store)
    sampler = RunSampler(root)
    provider = EngineProvider(sampler, resource, limits, processor)
    return Telemetry(store, processor, provider)


def _limits() -> SpanLimits:
    """Return the SDK's limits, as the variables have them, with one of ours for the length of a text.

    Spans wait in memory, thousands of them: without a limit each could hold on to whatever a body wrote into it.
    """
    limits = SpanLimits()
    if limits.max_span_attribute_length is None and limits.max_attribute_length is None:
        return SpanLimits(max_attribute_length=MAX_TEXT)
    return limits


def resource_of(service: str) -> Resource:
    """Return what this process is called by whoever receives what it tells: by itself, where the variables do not say.

    Without an id of its own the counts of two processes would be taken for one that jumps.
    """
    given = Resource.create().attributes
    own = {
        SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or service,
        SERVICE_VERSION: given.get(SERVICE_VERSION) or installed_version("tenantry"),
        SERVICE_INSTANCE_ID: given.get(SERVICE_INSTANCE_ID) or str(uuid4()),
    }
    return Resource.create(own)


def _refresh(refresh: Callable[[], Awaitable[None]], loop: asyncio.AbstractEventLoop) -> None:
    """Have something looked up in its loop, from a thread that waits for it; not in a loop that has ended."""

    async def look() -> None:
        await refresh()

    if loop.is_running():
        looked = asyncio.run_coroutine_threadsafe(look(), loop)
        with contextlib.suppress(FutureTimeoutError, CancelledError):
            looked.result(REFRESH_WITHIN_S)
