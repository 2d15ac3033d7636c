"""What tenants see of spans: what code claims is no one's word but its own, and nothing names a host or another tenant."""

import asyncio
import contextvars
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState

from kernel import Kernel, Registry, RunCreate, StageContext, stage, workflow
from kernel.telemetry import SCOPE
from kernel.work import Work, current_work, working
from service.owned_span import OwnedSpan
from service.spans import tenants_view
from service.telemetry import make, resource_of
from service.visibility import PUBLIC, Visibility
from tenancy import Database, DatabaseSettings
from tests.support import waiting
from tests.support.environment import DatabaseUrls
from tests.support.hosts import running, settings
from tests.support.looking import Look
from tests.support.tracing import Tracing

HIDDEN = {
    "server.address": "db-7.internal", "net.peer.name": "db-7.internal", "host.name": "node-3", "url.full": "http://db-7",
    "http.url": "http://db-7/x", "db.statement": "select 1", "db.query.text": "select 1", "process.pid": 1,
    "k8s.pod.name": "p", "code.filepath": "/app/x.py", "thread.name": "t", "exception.stacktrace": "File /app/x.py",
    "enduser.id": "somebody", "messaging.client.id": "node-3", "client.address": "10.0.0.1", "otel.scope.name": "x",
}  # fmt: skip


def ended(traced: Tracing, scope: str, name: str = "span", **options: Any) -> ReadableSpan:
    span = trace.get_tracer(scope).start_span(name, **options)
    span.end()
    return next(one for one in traced.spans() if one.get_span_context() == span.get_span_context())


def shown(span: ReadableSpan, visibility: Visibility | None = None) -> dict[str, Any]:
    assert isinstance(span, OwnedSpan)
    return tenants_view(span, visibility or Visibility())


# -- forgeries


class Forger(SpanProcessor):
    """Has the last word about every span's attributes, as a library that a body sets up could."""

    def __init__(self, tenant: str) -> None:
        self._claims = {"tenant.id": tenant, "tenantry.run.id": tenant}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's
        span.set_attributes(self._claims)

    def _on_ending(self, span: Span) -> None:
        span.set_attributes(self._claims)


@stage("forge")
async def forge(ctx: StageContext, other: dict) -> dict:
    """Does all it can think of to have its spans taken for another tenant's."""
    tenant, run = UUID(other["tenant"]), UUID(other["run"])
    tracer = trace.get_tracer(str(tenant))
    foreign = SpanContext(0xF0, 0xF1, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")]))

    def leave(name: str) -> None:
        with tracer.start_as_current_span(name, attributes={"tenant.id": str(tenant)}) as span:
            span.set_attributes({"tenantry.run.id": str(run), "tenantry.op": "run.finished", "tenantry.step": "forged"})

    (variable,) = [var for var in contextvars.copy_context() if var.name == "tenantry_work"]
    sealed, genuine = variable.get(), current_work()
    assert genuine is not None
    stolen = replace(genuine, tenant_id=tenant, run_id=run)

    class Chameleon(UUID):
        """Is another's id to whoever reads it, and hashes as its own."""

        def __hash__(self) -> int:
            return hash(genuine.tenant_id)

        def __eq__(self, other: object) -> bool:
            return True

    disguised = replace(genuine, tenant_id=Chameleon(int=tenant.int))
    for value in (
        stolen,
        replace(sealed, work=stolen),
        replace(sealed, work=disguised),
        replace(sealed, work="x"),
        "x",
    ):
        token = variable.set(value)
        leave("through the variable")
        variable.reset(token)
    context = baggage.set_baggage("tenant.id", str(tenant))
    with tracer.start_as_current_span("through baggage", context):
        leave("below baggage")
    above = trace.set_span_in_context(trace.NonRecordingSpan(foreign))
    with tracer.start_as_current_span("through a parent", above, links=[Link(foreign, {"tenant.id": str(tenant)})]):
        leave("below a foreign parent")
    bare = threading.Thread(target=leave, args=["in a bare thread"])
    bare.start()
    bare.join()

    async def nest() -> None:
        leave("in a nested loop")

    await asyncio.to_thread(asyncio.run, nest())
    trace.get_tracer_provider().add_span_processor(Forger(str(tenant)))  # type: ignore[attr-defined]
    leave("past a processor")
    # Attached, and never detached: the context goes with this body's task.
    attach(set_value("tenant.id", str(tenant), context))
    leave("in an attached context")
    tracer = trace.get_tracer(SCOPE)
    leave("as the engine")
    with trace.get_tracer("mine").start_as_current_span("through links", links=[Link(foreign)]):
        pass
    return {}


Errand = tuple[UUID, asyncio.Future[None]]
ERRANDS: list[tuple[asyncio.Queue[Errand], asyncio.Task[None]]] = []


async def run_errands(queue: asyncio.Queue[Errand]) -> None:
    while True:
        tenant_id, done = await queue.get()
        with trace.get_tracer("mine").start_as_current_span("errand", attributes={"for": str(tenant_id)}):
            done.set_result(None)


@stage("share")
async def share(ctx: StageContext, given: dict) -> dict:
    """Has a task do something for it, which the first that needs it starts: its context is that one's for ever."""
    if not ERRANDS:
        queue: asyncio.Queue[Errand] = asyncio.Queue()
        ERRANDS.append((queue, asyncio.get_running_loop().create_task(run_errands(queue))))
    done = asyncio.get_running_loop().create_future()
    ERRANDS[0][0].put_nowait((ctx.tenant_id, done))
    await done
    return {}


REGISTRY = Registry(
    [workflow("forger", input=dict).pipe(forge).build(), workflow("sharer", input=dict).pipe(share).build()]
)


async def test_no_body_can_have_its_spans_taken_for_another_tenants(
    traced: Tracing, database_urls: DatabaseUrls, tenant: UUID, other_tenant: UUID, look: Look
) -> None:
    async with Database(DatabaseSettings(database_urls.worker)) as database:
        later = {"run_at": datetime.now(UTC) + timedelta(hours=1)}
        async with database.transaction(other_tenant) as tx:
            theirs = (await Kernel(REGISTRY).dispatch(RunCreate("forger", {}, **later), tx)).run_id
        async with database.transaction(tenant) as tx:
            given = {"tenant": str(other_tenant), "run": str(theirs)}
            mine = (await Kernel(REGISTRY).dispatch(RunCreate("forger", given), tx)).run_id

    async def is_over() -> bool:
        return bool(await look("select from tenantry.workflow_runs where run_id = %s and status = 'COMPLETED'", mine))

    async with running(settings(database_urls), REGISTRY):
        await waiting.until(is_over, "the forger is over", 20)
    assert [
        row["name"] for row in await look("select name from tenantry.spans where tenant_id = %s", other_tenant)
    ] == ["run.create forger"]
    rows = await look("select * from tenantry.spans where tenant_id = %s and run_id = %s", tenant, mine)
    names = {row["name"] for row in rows}
    assert {"in a nested loop", "past a processor", "in an attached context"} <= names
    assert "in a bare thread" not in names
    assert {"through baggage", "below baggage", "through a parent", "as the engine", "through links"} <= names
    assert "through the variable" not in names
    for row in rows:
        assert row["attributes"]["tenant.id"] == str(tenant)
        assert row["attributes"]["tenantry.run.id"] == str(mine)
        assert (
            not [link for link in row["links"] if link["trace_id"] == f"{0xF0:032x}"]
            or row["trace_id"] == f"{0xF0:032x}"
        )
        assert str(other_tenant) not in str(row["attributes"])
    # What it said in the engine's words outside of the engine's scope is gone, and so it is from what operators get.
    assert {row["attributes"].get("tenantry.step") for row in rows if row["name"] == "below baggage"} == {None}
    for span in (*traced.named("through the variable"), *traced.named("in a bare thread")):
        assert not [name for name in span.attributes or {} if name.startswith(("tenant.", "tenantry."))]


async def test_a_task_that_outlives_its_tenants_body_tells_that_tenant_nothing_of_the_next(
    traced: Tracing, database_urls: DatabaseUrls, tenant: UUID, other_tenant: UUID, look: Look
) -> None:
    worker = DatabaseSettings(database_urls.worker)
    async with Database(worker) as database, running(settings(database_urls), REGISTRY):
        for owner in (tenant, other_tenant):
            async with database.transaction(owner) as tx:
                run_id = (await Kernel(REGISTRY).dispatch(RunCreate("sharer", {}), tx)).run_id

            async def is_over(run_id: UUID = run_id) -> bool:
                query = "select from tenantry.workflow_runs where run_id = %s and status = 'COMPLETED'"
                return bool(await look(query, run_id))

            await waiting.until(is_over, "the run is over", 20)
    ((_, task),) = ERRANDS
    task.cancel()
    ERRANDS.clear()
    rows = await look("select tenant_id, attributes from tenantry.spans where name = 'errand'")
    assert [(row["tenant_id"], row["attributes"]["for"]) for row in rows] == [(tenant, str(tenant))]
    assert len(traced.named("errand")) == 2


def test_a_span_is_whose_it_was_when_it_began_whoever_ends_it(traced: Tracing) -> None:
    mine, theirs = Work(uuid4(), uuid4()), Work(uuid4(), uuid4())
    with working(mine):
        span = trace.get_tracer("mine").start_span("long")
    with working(theirs):
        span.set_attribute("tenant.id", str(theirs.tenant_id))
        span.end()
    (owned,) = traced.spans()
    assert isinstance(owned, OwnedSpan)
    assert owned.work == mine
    assert (owned.attributes or {})["tenant.id"] == str(mine.tenant_id)


# -- the allow-list


def test_a_librarys_span_shows_what_the_conventions_call_by_harmless_names_alone(traced: Tracing) -> None:
    said = {**HIDDEN, "http.request.method": "GET", "http.response.status_code": 200, "aws.secret": "x", "order": 7}
    with working(Work(uuid4(), uuid4())):
        for scope in ("opentelemetry.instrumentation.httpx", "httpx", "prometheus-client", "asyncio"):
            said_here = {name: value for name, value in said.items() if not name.startswith("db.")}
            seen = shown(ended(traced, scope, attributes=said_here))["attributes"]
            assert {name for name in seen if not name.startswith(("tenant.", "tenantry."))} == {
                "http.request.method", "http.response.status_code",
            }, scope  # fmt: skip


def test_a_bodys_own_span_shows_what_it_says_but_for_places(traced: Tracing) -> None:
    said = {
        **{name: value for name, value in HIDDEN.items() if not name.startswith("db.")},
        "order": 7,
        "user.id": "u-1",
    }
    with working(Work(uuid4(), uuid4())):
        for scope in ("billing", "a library", __name__):
            seen = shown(ended(traced, scope, attributes=said))["attributes"]
            assert {name for name in seen if not name.startswith(("tenant.", "tenantry."))} == {"order", "user.id"}, (
                scope
            )


def test_a_workflow_that_is_installed_as_a_package_is_own_code_all_the_same(
    traced: Tracing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "shop_flows"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    with working(Work(uuid4(), uuid4())):
        span = ended(traced, "shop_flows.billing", attributes={"order": 7})
    assert "order" not in shown(span)["attributes"]
    assert shown(span, Visibility({"shop_flows.orders"}))["attributes"]["order"] == 7


@pytest.mark.parametrize(
    "scope", ["opentelemetry.instrumentation.asyncpg", "opentelemetry.instrumentation.sqlalchemy", "mine"]
)
def test_spans_of_databases_are_no_tenants(traced: Tracing, scope: str) -> None:
    with working(Work(uuid4(), uuid4())):
        said = {"db.system": "postgresql"} if scope == "mine" else {}
        span = ended(traced, scope, "select tenantry.workflow_runs", attributes=said)
    assert Visibility().is_private(span)


def test_what_a_tenant_is_sent_quotes_no_exception_no_host_and_nobodys_state(traced: Tracing) -> None:
    state = TraceState([("vendor", "node-3")])
    parent = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    with working(Work(uuid4(), uuid4())):
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        span = trace.get_tracer("mine", "1", schema_url="http://schema/node-3").start_span("work", context)
        span.record_exception(OSError("db-7.internal refused"))
        span.add_event("asked", {"server.address": "db-7.internal", "order": 7})
        span.set_status(Status(StatusCode.ERROR, "db-7.internal refused"))
        span.end()
    (owned,) = traced.spans()
    assert isinstance(owned, OwnedSpan)
    copy = Visibility().copy(owned)
    assert "db-7" not in copy.to_json()
    assert "node-3" not in copy.to_json()
    assert [(event.name, dict(event.attributes or {})) for event in copy.events] == [("asked", {"order": 7})]
    assert copy.status.status_code is StatusCode.ERROR
    assert set(copy.resource.attributes) == {"service.name"}


def test_no_name_on_the_list_is_one_of_a_place() -> None:
    for name in PUBLIC:
        assert not any(
            word in name for word in ("address", "host", "port", "url.full", "path", "query", "statement", "pid")
        )


def test_spans_that_never_end_are_forgotten_and_however_many_are_open_none_loses_its_owner() -> None:
    made = make(resource_of("tests"), None, ALWAYS_ON)
    assert made.provider is not None
    assert made.processor is not None
    tracer = made.provider.get_tracer("t")
    with working(Work(uuid4(), uuid4())):
        early = tracer.start_span("early")
    with working(Work(uuid4(), uuid4())):
        held = [tracer.start_span("held open") for _ in range(5_000)]
        for _ in range(25):
            tracer.start_span("dropped")
    assert len(made.processor._owners) == 1 + len(held)
    early.end()
    assert sum(len(tenant.spans) for tenant in made.store._tenants.values()) == 1
    del held
    assert len(made.processor._owners) == 0
    made.provider.shutdown()


def test_whose_modules_the_bodies_are_is_read_off_the_registry() -> None:
    assert REGISTRY.modules == {__name__}
