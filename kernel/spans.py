"""Spans that fail nobody: what hosts have set up runs when a span begins and ends, and it may raise.

The database is the truth about a run. A processor that somebody added must not cost a settle, a step or a caller's
transaction, so what it raises is logged and the span is left out.
"""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, Tracer

from kernel.work import Work, working

logger = logging.getLogger(__name__)
Attributes: TypeAlias = Mapping[str, str | bool | int | float]


class WorkTracer(Tracer):
    """A tracer that knows work: what it is asked for on somebody's behalf it stamps by itself."""

    @abstractmethod
    def begin(  # noqa: PLR0913 - as many as the API's own
        self,
        work: Work,
        name: str,
        context: Context | None,
        *,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link],
        at_ns: int | None,
    ) -> Span:
        """Return a span of `work` that begins now, or at `at_ns`; `attributes` are the engine's words."""


def begin(  # noqa: PLR0913 - as many as the API's own
    tracer: Tracer,
    name: str,
    context: Context | None = None,
    *,
    work: Work | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    links: Sequence[Link] = (),
    at_ns: int | None = None,
) -> Span:
    """Return a span that begins now, or at `at_ns`; one that records nothing in its parent's place where that fails.

    That of some `work` carries its stamp from the beginning: where an application traces with a provider of its own,
    nobody else stamps it.
    """
    try:
        if work is None:
            return tracer.start_span(name, context, kind, attributes, links, at_ns)
        if isinstance(tracer, WorkTracer):
            return tracer.begin(work, name, context, kind=kind, attributes=attributes or {}, links=links, at_ns=at_ns)
        with working(work):
            return tracer.start_span(name, context, kind, {**work.attributes(), **(attributes or {})}, links, at_ns)
    except Exception:
        # A host's sampler or processor: foreign code.
        logger.exception("span_not_begun")
        return NonRecordingSpan(trace.get_current_span(context).get_span_context())


def end(span: Span, at_ns: int | None = None) -> None:
    """End a span, now or at `at_ns`."""
    try:
        span.end(at_ns)
    except Exception:
        # A host's processor: foreign code.
        logger.exception("span_not_ended")
