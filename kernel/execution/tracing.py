"""The span of one execution of a stage, from its lease to its settle, and the context that its body runs in."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, Span

from kernel.execution.outcome import StageFailed, StageOutcome
from kernel.jobs import LeasedJob
from kernel.telemetry import WORK, Work, failed, run_context, start_execution, tracer, working


@dataclass(frozen=True, slots=True)
class ExecutionSpan:
    """One execution's span, recording or not, and on whose behalf its body runs."""

    work: Work
    span: Span

    @classmethod
    def of(cls, tenant_id: UUID, job: LeasedJob) -> Self:
        """Start the span of a leased job's execution."""
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

    def end(self, status: str, outcome: StageOutcome | None) -> None:
        """End the span with what became of the execution: how it was settled and, if it was, its outcome.

        A failed attempt is an error; leaving to wait, giving back and being told to stop are none.
        """
        if self.span.is_recording():
            name = type(outcome).__name__.removeprefix("Stage").lower() if status == "settled" else status
            self.span.set_attribute("tenantry.outcome", name)
            if isinstance(outcome, StageFailed) and status == "settled":
                failed(self.span, outcome.error.partition(":")[0])
            self.span.end()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Run the block as this work, in the present task; one that raises ends the span as lost."""
        with working(self.work), trace.use_span(self.span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException:
                self.end("lost", None)
                raise

    def _enter(self) -> None:
        WORK.set(self.work)
        attach(trace.set_span_in_context(self.span))
