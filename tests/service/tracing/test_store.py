"""The span store: whose a span is, how many are kept, what a tenant gets to see, and how they go."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import Link, SpanContext, TraceFlags

from kernel import Kernel, KernelLimits, Registry, RunCreate, RunPurge, StageContext, stage, workflow
from kernel.queries.run_trace import run_trace
from kernel.work import Work, working
from service import spans
from service.settings import Settings
from service.spans import LINGER_S, MANY, SpanStore, prune
from service.worker import maintenance
from service.worker.dispatcher import Dispatcher
from tenancy import Database
from tests.support import waiting
from tests.support.environment import DatabaseUrls
from tests.support.hosts import running, settings
from tests.support.looking import Look
from tests.support.tracing import Tracing
from tests.support.workflows import HandWorker

FOREIGN = SpanContext(0xF0, 0xF1, is_remote=True, trace_flags=TraceFlags(1))


@stage("forge")
async def forge(ctx: StageContext, other: dict) -> dict:
    """Does all it can to have its spans taken for another tenant's."""
    claims: dict[str, Any] = {"tenant.id": other["tenant"], "tenantry.run.id": other["run"]}
    token = context.attach(baggage.set_baggage("tenant.id", other["tenant"]))
    for name in ("tenantry", "a library"):
        tracer = trace.get_tracer(name)
        with tracer.start_as_current_span("forged", attributes=claims, links=[Link(FOREIGN, claims)]) as span:
            span.set_attributes({**claims, "server.address": "db-7.internal", "order": 7})
    with trace.get_tracer("a driver").start_as_current_span("SELECT", attributes={"db.system": "postgresql"}):
        pass
    context.detach(token)
    return {}


REGISTRY = Registry([workflow("forger", input=dict).pipe(forge).build()])


@pytest.fixture
async def made_runs(traced: Tracing, database: Database, tenant: UUID, other_tenant: UUID) -> dict[UUID, UUID]:
    """A run of each tenant, each told to pass itself off as the other's."""
    ids: dict[UUID, UUID] = {}
    for owner, other in ((tenant, other_tenant), (other_tenant, tenant)):
        async with database.transaction(owner) as tx:
            given = {"tenant": str(other), "run": str(ids.get(other, uuid4()))}
            ids[owner] = (await Kernel(REGISTRY).dispatch(RunCreate("forger", given), tx)).run_id
    return ids


@pytest.fixture
async def executed(made_runs: dict[UUID, UUID], database_urls: DatabaseUrls, look: Look) -> dict[UUID, UUID]:
    async def are_over() -> bool:
        runs = await look("select status from tenantry.workflow_runs where run_id = any(%s)", [*made_runs.values()])
        return {run["status"] for run in runs} == {"COMPLETED"}

    async with running(settings(database_urls), REGISTRY):
        await waiting.until(are_over, "both runs completed", 20)
    return made_runs


async def test_spans_of_two_tenants_in_one_flush_never_mix_and_no_body_can_forge_a_tenant(
    executed: dict[UUID, UUID], look: Look
) -> None:
    for owner, run_id in executed.items():
        rows = await look("select * from tenantry.spans where tenant_id = %s", owner)
        assert {row["run_id"] for row in rows} == {run_id}
        assert sorted(row["name"] for row in rows) == [
            "forged", "forged", "job.execute forger/forge", "job.settle forger/forge", "run.create forger", "run.finished",
            "run.started",
        ]  # fmt: skip
        assert {row["attributes"]["tenant.id"] for row in rows} == {str(owner)}
        assert {row["attributes"]["tenantry.run.id"] for row in rows} == {str(run_id)}


async def test_a_tenant_sees_no_hosts_no_statements_and_no_links_to_others(
    executed: dict[UUID, UUID], database: Database
) -> None:
    ((owner, run_id), (other, _)) = executed.items()
    async with database.transaction(owner) as tx:
        kept = await run_trace(tx, run_id)
    async with database.transaction(other) as tx:
        assert await run_trace(tx, run_id) == []
    shown = " ".join(span.attributes + span.links + span.name for span in kept)
    assert '"order":7' in shown.replace(" ", "")
    for hidden in ("db-7.internal", "SELECT", str(other), "host.name", "process."):
        assert hidden not in shown
    assert [span.links for span in kept] == ["[]"] * len(kept)


async def test_a_run_keeps_so_many_spans_and_no_more(
    traced: Tracing, hand: HandWorker, database: Database, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MAX_SPANS", 5)
    run_id = await hand.create("single")
    for _ in range(3):
        with working(Work(hand.tenant_id, run_id)):
            for number in range(3):
                trace.get_tracer("t").start_span(f"span {number}").end()
        await traced.telemetry.store.flush(database)
    assert len(await look("select from tenantry.spans where run_id = %s", run_id)) == 5


async def test_spans_of_a_run_that_was_rolled_back_are_nobodys(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    with working(Work(hand.tenant_id, uuid4())):
        trace.get_tracer("t").start_span("of no run").end()
    await traced.telemetry.store.flush(database)
    assert await look("select from tenantry.spans where tenant_id = %s", hand.tenant_id) == []


async def test_a_store_that_is_not_emptied_stays_bounded(
    traced: Tracing, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MAX_WAITING", 10)
    with working(Work(tenant, uuid4())):
        for _ in range(25):
            trace.get_tracer("t").start_span("one of many").end()
    waiting_spans = traced.telemetry.store._tenants[tenant]
    assert (len(waiting_spans.spans), waiting_spans.dropped) == (10, 15)


async def test_a_quiet_tenants_spans_wait_for_more_of_them_and_many_do_not(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    now = 0.0
    store = SpanStore(clock=lambda: now)
    run_id = await hand.create("single")

    async def stored(*names: str) -> int:
        with working(Work(hand.tenant_id, run_id)):
            for name in names:
                trace.get_tracer("t").start_span(name).end()
        store.export([span for name in set(names) for span in traced.named(name)])
        await store.flush_due(database)
        return len(await look("select from tenantry.spans where run_id = %s", run_id))

    assert await stored("first") == 0
    now = LINGER_S - 0.1
    assert await stored("second") == 0
    now = LINGER_S
    assert await stored() == 2
    assert await stored("third") == 2
    assert await stored(*["one of many"] * (MANY - 1)) == 2 + MANY


async def test_when_much_waits_in_all_nobody_waits_any_longer(
    traced: Tracing, hand: HandWorker, database: Database, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MAX_WAITING_OF_ALL", 4)
    run_id = await hand.create("single")
    with working(Work(uuid4(), uuid4())):
        trace.get_tracer("t").start_span("another tenant's").end()
    await traced.telemetry.store.flush_due(database)
    # The run's own `run.create` and the other's: half of what there is room for.
    assert len(await look("select from tenantry.spans where run_id = %s", run_id)) == 1


async def test_what_waits_when_a_process_stops_is_written(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    async with traced.telemetry.writing(database):
        run_id = await hand.create("single")
    assert [row["name"] for row in await look("select name from tenantry.spans where run_id = %s", run_id)] == [
        "run.create single"
    ]


async def test_a_span_is_no_larger_than_its_share_and_loses_nothing_that_the_engine_says(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    run_id = await hand.create("single")
    with working(Work(hand.tenant_id, run_id)):
        huge = {f"list {number}": ["x" * 10_000] * 100 for number in range(100)}
        trace.get_tracer("t").start_span("huge", attributes={**huge, "nested": [["y" * 10_000] * 100] * 100}).end()
    await traced.telemetry.store.flush(database)
    (row,) = await look(
        "select attributes::text as text from tenantry.spans where run_id = %s and name = 'huge'", run_id
    )
    assert len(row["text"]) < 20_000
    assert str(hand.tenant_id) in row["text"]


async def test_what_a_body_writes_into_a_span_is_stored_whatever_it_is(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    run_id = await hand.create("single")
    with working(Work(hand.tenant_id, run_id)):
        odd: dict[str, Any] = {
            "nul\0": "a\0b",
            "surrogate": "\ud800",
            "long": "x" * 100_000,
            "list": ["\0"],
            "big": 2**40,
        }
        trace.get_tracer("t").start_span("odd\0name", attributes=odd).end()
    await traced.telemetry.store.flush(database)
    (row,) = await look("select * from tenantry.spans where run_id = %s and name like 'odd%%'", run_id)
    assert len(row["attributes"]["long"]) < 2_000
    assert row["attributes"]["big"] == 2**40


async def test_old_spans_go_and_young_ones_stay(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    run_id = await hand.create("single")
    await traced.telemetry.store.flush(database)
    for older_than, left in ((timedelta(hours=-1), 1), (timedelta(hours=1), 0)):
        async with database.transaction(hand.tenant_id) as tx:
            await prune(tx, datetime.now(UTC) + older_than)
        assert len(await look("select from tenantry.spans where run_id = %s", run_id)) == left


@pytest.mark.parametrize(("pages", "left"), [(20, 0), (1, 3)])
async def test_a_workers_rounds_throw_old_spans_away_page_after_page_up_to_a_bound(
    traced: Tracing, hand: HandWorker, monkeypatch: pytest.MonkeyPatch, pages: int, left: int
) -> None:
    database = hand.database
    run_id = await hand.create("single")
    with working(Work(hand.tenant_id, run_id)):
        for number in range(6):
            trace.get_tracer("t").start_span(f"span {number}").end()
    await traced.telemetry.store.flush(database)
    monkeypatch.setattr(spans, "PRUNE_PAGE", 2)
    monkeypatch.setattr(maintenance, "PRUNE_PAGES", pages)

    async def kept(retention: timedelta) -> int:
        rounds = maintenance.Maintenance(
            Settings(span_retention=retention), hand.kernel, database, Dispatcher(database, REGISTRY, KernelLimits())
        )
        await rounds._purge(hand.tenant_id)
        async with database.transaction(hand.tenant_id) as tx:
            return len(await run_trace(tx, run_id))

    assert await kept(timedelta(hours=1)) == 7
    # Negative: what is to come is old as well, since ids say nothing below a millisecond.
    assert await kept(timedelta(hours=-1)) == left


async def test_purge_takes_the_spans_of_its_runs(
    traced: Tracing, hand: HandWorker, database: Database, look: Look
) -> None:
    run_id = await hand.create("single")
    (job,) = await hand.tick()
    await hand.settle(job)
    await traced.telemetry.store.flush(database)
    assert len(await look("select from tenantry.spans where run_id = %s", run_id)) == 3
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunPurge(datetime.now(UTC) + timedelta(hours=1)), tx)
    assert await look("select from tenantry.spans where run_id = %s", run_id) == []
