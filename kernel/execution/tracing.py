"""One execution of a stage, from its lease to its settle: its span, its body's context, and how it is counted."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Self
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, Span, SpanKind

from kernel import spans
from kernel.counts import COUNTS
from kernel.execution.outcome import StageFailed, StageOutcome
from kernel.jobs import LeasedJob
from kernel.telemetry import failed, messaging, run_context, start_execution, tracer
from kernel.work import Life, Work, enter, working


@dataclass(slots=True)
class ExecutionSpan:
    """One execution's span, recording or not, and on whose behalf its body runs; `began_at` is monotonic."""

    work: Work
    span: Span
    began_at: float = field(default_factory=monotonic)
    _settling: Span | None = None
    _has_ended: bool = False

    @classmethod
    def of(cls, tenant_id: UUID, job: LeasedJob) -> Self:
        """Count a leased job's execution as begun, and start its span."""
        COUNTS.jobs_started += 1
        COUNTS.queue_wait.observe(job.queue_wait_ms / 1000)
        attempt = job.attempt if job.begun else job.attempt + 1
        stored = (
            run_context(job.run_id, job.traceparent, job.tracestate) if tracer() is not None else INVALID_SPAN_CONTEXT
        )
        work = Work(
            tenant_id,
            job.run_id,
            job.workflow.id,
            job.stage_id,
            attempt=attempt,
            op="job.execute",
            origin=stored.trace_id,
            life=Life(),
        )
        if not stored.trace_flags.sampled:
            # Carries the decision into what the body calls.
            return cls(work, NonRecordingSpan(stored))
        is_first = not (job.replay or attempt > 1 or job.redrive_count)
        attributes: dict[str, str | int] = {"tenantry.queue.wait_ms": job.queue_wait_ms}
        if job.replay:
            attributes["tenantry.replay"] = True
        return cls(work, start_execution(work, stored, is_first=is_first, attributes=attributes))

    def context(self) -> Context:
        """Return a context for the task of a body: a copy of the present one, with this work and this span in it."""
        context = copy_context()
        context.run(self._enter)
        return context

    def settle(self) -> None:
        """Note that the body has ended and what it came to is about to be written."""
        tracing = tracer() if self.span.is_recording() else None
        if tracing is not None:
            work = replace(self.work, op="job.settle")
            self._settling = spans.begin(
                tracing,
                f"job.settle {work.workflow}/{work.stage}",
                trace.set_span_in_context(self.span),
                work=work,
                kind=SpanKind.CLIENT,
                attributes=messaging("settle", work.workflow),
            )

    def end(self, status: str, outcome: StageOutcome | None) -> None:
        """End it, once, with what became of the execution: how it was settled and, if it was, its outcome.

        A failed attempt is an error; leaving to wait, giving back and being told to stop are none.
        """
        if self._has_ended:
            return
        self._has_ended = True
        if self.work.life is not None:
            self.work.life.is_over = True
        name = outcome_name(status, outcome)
        COUNTS.jobs_finished[name] += 1
        if outcome is not None:
            COUNTS.execution.observe(monotonic() - self.began_at)
        if self._settling is not None:
            spans.end(self._settling)
        if self.span.is_recording():
            self.span.set_attribute("tenantry.outcome", name)
            if isinstance(outcome, StageFailed) and status == "settled":
                failed(self.span, outcome.error.partition(":")[0])
            spans.end(self.span)

    @contextmanager
    def entered(self) -> Generator[None]:
        """Run the block as this work, in the present task."""
        with working(self.work), trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
            yield

    def _enter(self) -> None:
        enter(self.work)
        attach(trace.set_span_in_context(self.span))


def outcome_name(status: str, outcome: StageOutcome | None) -> str:
    """Return what an execution came to, in one word: its outcome if that was settled, else why it was not."""
    return type(outcome).__name__.removeprefix("Stage").lower() if status == "settled" else status
