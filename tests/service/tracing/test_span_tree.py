"""The tree of spans of a run: what is a child, what is linked, what is an error, and who decides on sampling."""

from contextlib import suppress
from datetime import timedelta
from uuid import UUID, uuid4

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from kernel import Kernel, Registry, RunCancel, RunCreate, StageContext, Step, StepSignal, stage, workflow
from kernel.telemetry import format_traceparent
from kernel.work import Work, working
from service.owned_span import OwnedSpan
from service.spans import tenants_view
from service.visibility import Visibility
from tenancy import Database
from tests.support import waiting
from tests.support.environment import DatabaseUrls
from tests.support.hosts import running, settings
from tests.support.looking import Look
from tests.support.tracing import Kept, Tracing, tracing
from tests.support.workflows import HandWorker

# What a request of a body's takes along.
OUTBOUND: dict[str, str] = {}


@stage("work")
async def work(ctx: StageContext, given: dict) -> dict:
    with trace.get_tracer("a library").start_as_current_span("GET"):
        propagate.inject(OUTBOUND)
    await ctx.step.run("charge", lambda: 1)
    ctx.log("info", "charged")
    return {}


@stage("waits")
async def waits(ctx: StageContext, given: dict) -> dict:
    await ctx.step.run("before", lambda: 1)
    return {"answer": await ctx.step.wait_for_signal("approve", timeout="1h")}


@stage("obeys")
async def obeys(ctx: StageContext, given: dict) -> dict:
    async def wait_for_the_end(step: Step) -> None:
        await step.abort_signal.wait()
        step.abort_signal.raise_if_aborted()

    await ctx.step.run("wait", wait_for_the_end)
    return {}


@stage("charges", max_attempts=1)
async def charges(ctx: StageContext, given: dict) -> dict:
    return {"charged": await ctx.step.run("charge", lambda: 1)}


@stage("flaky", max_attempts=1)
async def flaky(ctx: StageContext, given: dict) -> dict:
    raise LookupError(f"secret {given}")


REGISTRY = Registry(
    [
        workflow("straight", input=dict).pipe(work).build(),
        workflow("patient", input=dict).pipe(waits).build(),
        workflow("harmless", input=dict).pipe(charges).build(),
        workflow("obedient", input=dict).pipe(obeys).build(),
        workflow("broken", input=dict).pipe(flaky).build(),
    ]
)


async def start(database: Database, tenant: UUID, workflow_id: str) -> UUID:
    async with database.transaction(tenant) as tx:
        return (await Kernel(REGISTRY).dispatch(RunCreate(workflow_id, {"n": 1}), tx)).run_id


async def execute(
    urls: DatabaseUrls, look: Look, run_id: UUID, until: str = "run.status in ('COMPLETED', 'FAILED')"
) -> None:
    async def is_so() -> bool:
        return bool(await look(f"select from tenantry.workflow_runs as run where run_id = %s and {until}", run_id))

    async with running(settings(urls), REGISTRY):
        await waiting.until(is_so, until, 20)


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def context(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


async def test_a_run_that_goes_straight_through_is_one_readable_trace(
    traced: Tracing, database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look
) -> None:
    run_id = await start(database, tenant, "straight")
    await execute(database_urls, look, run_id)
    create, job = traced.one("run.create straight"), traced.one("job.execute straight/work")
    (stored,) = await look("select traceparent from tenantry.workflow_runs where run_id = %s", run_id)
    assert stored["traceparent"] == format_traceparent(context(create))
    assert (create.kind, job.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    of_run = [traced.one(name) for name in ("run.started", "run.finished")]
    assert {parent_id(span) for span in (job, *of_run)} == {context(create).span_id}
    assert {parent_id(traced.one(name)) for name in ("GET", "step.run charge")} == {context(job).span_id}
    ours = [span for span in traced.spans() if (span.attributes or {}).get("tenantry.run.id") == str(run_id)]
    settle = traced.one("job.settle straight/work")
    assert (parent_id(settle), settle.kind) == (context(job).span_id, SpanKind.CLIENT)
    assert len(ours) == 7
    assert {context(span).trace_id for span in ours} == {context(create).trace_id}
    assert all((span.attributes or {})["tenant.id"] == str(tenant) for span in ours)
    assert dict(traced.one("GET").attributes or {}) == {
        "tenant.id": str(tenant), "tenantry.run.id": str(run_id), "tenantry.workflow": "straight",
        "tenantry.stage": "work", "tenantry.attempt": 1, "tenantry.op": "job.execute",
    }  # fmt: skip
    assert isinstance((job.attributes or {})["tenantry.queue.wait_ms"], int)
    operations = {
        (span.attributes or {})["messaging.operation.type"]: (span.attributes or {})["messaging.system"]
        for span in (create, traced.one("tick"), job, settle)
    }
    assert operations == dict.fromkeys(("send", "receive", "process", "settle"), "tenantry")
    assert (traced.one("tick").attributes or {})["messaging.batch.message_count"] == 1
    assert [span.start_time == span.end_time for span in of_run] == [True, True]
    # No baggage: whoever a body calls is told the trace, and neither tenant nor run.
    assert list(OUTBOUND.items()) == [("traceparent", format_traceparent(context(traced.one("GET"))))]


async def test_what_comes_after_a_wait_is_a_trace_of_its_own_that_is_linked(
    traced: Tracing, database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look
) -> None:
    run_id = await start(database, tenant, "patient")
    await execute(
        database_urls, look, run_id,
        "exists (select from tenantry.workflow_stages as stage where stage.run_id = run.run_id and stage.status = 'SUSPENDED')",
    )  # fmt: skip
    async with database.transaction(tenant) as tx:
        await Kernel(REGISTRY).dispatch(StepSignal(run_id, "waits", "approve", {}), tx)
    await execute(database_urls, look, run_id)
    create = context(traced.one("run.create patient"))
    first, second = traced.named("job.execute patient/waits")
    assert (parent_id(first), context(first).trace_id) == (create.span_id, create.trace_id)
    assert parent_id(second) is None
    assert context(second).trace_id != create.trace_id
    assert [link.context.span_id for link in second.links] == [create.span_id]
    # A replay spends no span on what it does not do again.
    assert len(traced.named("step.run before")) == 1
    assert [(event.name, dict(event.attributes or {})) for event in second.events] == [
        ("steps.replayed", {"tenantry.steps": 2})
    ]
    life = [name for name in traced.names() if name.startswith("run.")]
    assert life == ["run.create patient", "run.started", "run.suspended", "run.resumed", "run.finished"]
    assert {span.status.status_code for span in traced.spans()} == {StatusCode.UNSET}


async def test_a_failed_attempt_is_an_error_without_its_message(
    traced: Tracing, database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look
) -> None:
    run_id = await start(database, tenant, "broken")
    await execute(database_urls, look, run_id)
    job, finished = traced.one("job.execute broken/flaky"), traced.one("run.finished")
    assert (job.status.status_code, (job.attributes or {})["error.type"]) == (StatusCode.ERROR, "LookupError")
    assert (finished.attributes or {})["tenantry.outcome"] == "failed"
    assert (finished.attributes or {})["error.type"] == "STAGE_FAILED"
    assert "secret" not in "".join(span.to_json() for span in traced.spans())


async def test_a_step_that_stops_when_it_is_told_to_is_no_error(
    traced: Tracing, database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look
) -> None:
    run_id = await start(database, tenant, "obedient")

    async def has_begun() -> bool:
        return bool(await look("select from tenantry.workflow_steps where run_id = %s", run_id))

    async def has_ended() -> bool:
        return bool(traced.named("job.execute obedient/obeys"))

    async with running(settings(database_urls), REGISTRY):
        await waiting.until(has_begun, "the step has begun", 20)
        async with database.transaction(tenant) as tx:
            await Kernel(REGISTRY).dispatch(RunCancel(run_id), tx)
        await waiting.until(has_ended, "the body has stopped", 20)
    traced.one("step.run wait")
    assert {span.status.status_code for span in traced.spans()} == {StatusCode.UNSET}


class Faulty(SpanProcessor):
    """Fails wherever it is asked, as one that a host has added may."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's
        raise RuntimeError(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError(span.name)


async def test_a_processor_that_fails_costs_no_run_anything(
    traced: Tracing, database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look
) -> None:
    assert traced.telemetry.provider is not None
    traced.telemetry.provider.add_span_processor(Faulty())
    run_id = await start(database, tenant, "harmless")
    await execute(database_urls, look, run_id)
    (run,) = await look("select status, output from tenantry.workflow_runs where run_id = %s", run_id)
    assert (run["status"], run["output"]) == ("COMPLETED", {"charged": 1})


async def test_a_run_that_is_not_sampled_leaves_no_span_anywhere(
    database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look
) -> None:
    with tracing(ALWAYS_OFF) as traced:
        run_id = await start(database, tenant, "patient")
    (stored,) = await look("select traceparent from tenantry.workflow_runs where run_id = %s", run_id)
    assert int(stored["traceparent"][-2:], 16) & 1 == 0
    with tracing() as traced:
        await execute(
            database_urls, look, run_id,
            "exists (select from tenantry.workflow_stages as stage where stage.run_id = run.run_id and stage.status = 'SUSPENDED')",
        )  # fmt: skip
        async with database.transaction(tenant) as tx:
            await Kernel(REGISTRY).dispatch(StepSignal(run_id, "waits", "approve", {}), tx)
        await execute(database_urls, look, run_id)
        assert [name for name in traced.names() if name != "tick"] == []


async def test_a_lease_that_ran_out_is_told_by_whoever_takes_it_back(traced: Tracing, hand: HandWorker) -> None:
    run_id = await hand.create("single")
    await hand.tick()
    await hand.tick(offset=timedelta(minutes=10))
    expired = traced.one("lease.expired")
    assert parent_id(expired) == context(traced.one("run.create single")).span_id
    stamped = dict(expired.attributes or {})
    assert (stamped["tenantry.run.id"], stamped["tenantry.stage"]) == (str(run_id), "first")
    assert stamped["tenantry.reason"] == "LEASE_HEARTBEAT_LOST"


async def test_an_application_is_the_parent_of_the_runs_it_starts(traced: Tracing, hand: HandWorker) -> None:
    with trace.get_tracer("an application").start_as_current_span("order") as order:
        await hand.create("single")
    assert parent_id(traced.one("run.create single")) == order.get_span_context().span_id


async def test_a_run_that_another_tenants_work_makes_is_no_part_of_its_trace(
    traced: Tracing, hand: HandWorker, other_tenant: UUID
) -> None:
    with (
        working(Work(other_tenant, uuid4())),
        trace.get_tracer("an application").start_as_current_span("their body") as body,
    ):
        await hand.create("single")
    create = traced.one("run.create single")
    theirs = body.get_span_context()
    assert (create.parent, context(create).trace_id == theirs.trace_id) == (None, False)
    # The operator may know; the tenant sees nothing of it.
    assert [link.context.span_id for link in create.links] == [theirs.span_id]
    assert isinstance(create, OwnedSpan)
    shown = tenants_view(create, Visibility())
    assert (shown["links"], shown["parent_span_id"]) == ([], None)


async def test_what_was_rolled_back_is_told_to_no_trace(traced: Tracing, hand: HandWorker) -> None:
    run_id = await hand.create("single")
    with suppress(LookupError):
        async with hand.transaction() as tx:
            await hand.kernel.dispatch(RunCancel(run_id), tx)
            await hand.kernel.dispatch(RunCreate("single", {"n": 2}), tx)
            raise LookupError
    assert traced.names() == ["run.create single"]


async def test_an_applications_own_provider_gets_the_engines_spans_with_their_stamp(hand: HandWorker) -> None:
    kept = Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        run_id = await hand.create("single")
        async with hand.transaction() as tx:
            await hand.kernel.bound_to(tx).run_to_completion(run_id)
    finally:
        trace._TRACER_PROVIDER = before
        provider.shutdown()
    told = {span.name: dict(span.attributes or {}) for span in kept.spans}
    assert told.keys() == {
        "run.create single", "run.started", "job.execute single/first", "job.settle single/first", "run.finished"
    }  # fmt: skip
    for name, attributes in told.items():
        assert (attributes["tenant.id"], attributes["tenantry.run.id"]) == (str(hand.tenant_id), str(run_id)), name
        assert attributes["tenantry.op"] == name.split()[0]
