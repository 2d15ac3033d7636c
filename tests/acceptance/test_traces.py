"""What `/v1/runs/{id}/trace` tells of real runs on real processes, and that a run is traced wholly or not at all."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from service.tenants import create_key
from tenancy import Database
from tests.support import waiting
from tests.support.arena import start_worker
from tests.support.environment import DatabaseUrls
from tests.support.metrics import OtlpReceiver, number_of
from tests.support.processes import Process, answers
from tests.support.system import free_port

WORKFLOWS = "tests.support.journeys:REGISTRY"
QUICK = {"workflows": WORKFLOWS, "stale_lease_threshold": "1500ms", "heartbeat_interval": "500ms"}
BIND = "select set_config('role', 'tenantry_tenant', true), set_config('tenantry.tenant_id', %s, true)"
Span = dict[str, Any]


class Place:
    """An API process, the tenant that asks it, and what its runs' bodies write."""

    def __init__(self, urls: DatabaseUrls, tenant_id: UUID, client: httpx.AsyncClient, folder: Path) -> None:
        self.urls = urls
        self.tenant_id = tenant_id
        self.client = client
        self.task = {"diary": str(folder / "diary"), "mended": str(folder / "mended")}

    async def start(self, workflow: str) -> str:
        answered = await self.client.post("/v1/runs", json={"workflow": workflow, "input": self.task})
        assert answered.status_code == 201, answered.text
        return str(answered.json()["id"])

    async def start_by_sql(self, workflow: str, number: int = 1) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.urls.straight("tenantry_worker")) as sql:
            await sql.execute(BIND, [str(self.tenant_id)])
            ids = []
            for _ in range(number):
                given = [str(uuid4()), workflow, f'{{"diary": "{self.task["diary"]}"}}']
                cursor = await sql.execute("select tenantry.enqueue(%s, %s, %s)", given)
                ids.append(str((await cursor.fetchone() or ("",))[0]))
            return ids

    async def ask(self, run_id: str, what: str, body: object = None) -> None:
        answered = await self.client.post(f"/v1/runs/{run_id}/{what}", json=body)
        assert answered.status_code == 200, answered.text

    async def become(self, run_id: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until a run is as asked for, and return it."""
        shown: dict[str, Any] = {}

        async def look() -> bool:
            shown.update((await self.client.get(f"/v1/runs/{run_id}")).json())
            return is_so(shown)

        await waiting.until(look, f"run {run_id}", 30)
        return shown

    async def over(self, run_id: str, status: str = "COMPLETED") -> dict[str, Any]:
        return await self.become(run_id, lambda run: run["status"] == status)

    async def hung(self, number: int) -> None:
        diary = Path(self.task["diary"])
        await waiting.until(
            lambda: diary.exists() and len(diary.read_text().split("\n")) > number, f"{number} hang", 30
        )

    async def trace(self, run_id: str, number: int) -> list[Span]:
        """Return the run's spans once there are so many; they are written within 2.5 s."""
        spans: list[Span] = []

        async def look() -> bool:
            spans[:] = (await self.client.get(f"/v1/runs/{run_id}/trace")).json()["data"]
            return len(spans) >= number

        try:
            await waiting.until(look, f"{number} spans", 15)
        except waiting.NeverHappenedError as error:
            msg = f"{error}: {sorted(span['name'] for span in spans)}"
            raise waiting.NeverHappenedError(msg) from None
        return spans


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    opened = OtlpReceiver()
    yield opened
    opened.close()


@pytest.fixture
async def key(database: Database, tenant: UUID) -> str:
    async with database.transaction(tenant) as tx:
        return str((await create_key(tx))["key"])


@pytest.fixture
async def place(
    database_urls: DatabaseUrls, tenant: UUID, key: str, receiver: OtlpReceiver, request: pytest.FixtureRequest
) -> AsyncIterator[Place]:
    port, folder = free_port(), request.getfixturevalue("tmp_path")
    environment = {
        **database_urls.environment("api"), "TENANTRY_WORKFLOWS": WORKFLOWS, "TENANTRY_PORT": str(port),
        **sampled(getattr(request, "param", "always_on"), receiver),
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(Process("api", environment=environment))
        await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the API is ready", 30)
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            yield Place(database_urls, tenant, client, folder)


def sampled(sampler: str, receiver: OtlpReceiver) -> dict[str, str]:
    return {
        "OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0.5", "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "400",
    }  # fmt: skip


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver, database_urls: DatabaseUrls) -> Iterator[Any]:
    with ExitStack() as stack:

        def start(sampler: str = "always_on") -> Process:
            for name, value in sampled(sampler, receiver).items():
                monkeypatch.setenv(name, value)
            return stack.enter_context(start_worker(database_urls, **QUICK))

        yield start


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span["name"] == name]


def one(spans: list[Span], name: str) -> Span:
    (span,) = named(spans, name)
    return span


def told(spans: list[Span], of: str = "run.") -> list[str]:
    """Return the names of a run's markers, and of what else begins so, in their order."""
    return [span["name"] for span in spans if span["name"].startswith(of)]


def check_tree(spans: list[Span], run_id: str, tenant_id: UUID) -> None:
    """What holds of every trace: whose it is, that it is whole, and that what is no child is linked to the creation."""
    ids = {span["span_id"] for span in spans}
    create = next(span for span in spans if span["name"].startswith("run.create "))
    for span in spans:
        assert span["attributes"]["tenantry.run.id"] == run_id
        assert span["attributes"]["tenant.id"] == str(tenant_id)
        assert not [name for name in span["attributes"] if name.startswith(("host.", "server.", "process.", "db."))]
        assert span["parent_span_id"] in ids | {None}, span["name"]
        assert {link["span_id"] for link in span["links"]} <= {create["span_id"]}
        if span["trace_id"] != create["trace_id"] and span["parent_span_id"] is None:
            assert [link["trace_id"] for link in span["links"]] == [create["trace_id"]], span["name"]
    assert "db-7.internal" not in str(spans)
    for marker in spans:
        if marker["name"] in {"run.started", "run.suspended", "run.resumed", "run.finished", "lease.expired"}:
            assert (marker["parent_span_id"], marker["trace_id"]) == (create["span_id"], create["trace_id"])
            assert marker["start_time"] == marker["end_time"]
    for execution in spans:
        if execution["name"].startswith("job.execute "):
            settles = [span for span in spans if span["parent_span_id"] == execution["span_id"]]
            assert [span["kind"] for span in settles if span["name"].startswith("job.settle ")] == ["CLIENT"]


async def test_the_traces_of_runs_tell_what_became_of_them(
    place: Place, worker: Callable[..., Process], receiver: OtlpReceiver
) -> None:
    first = worker()
    journey, mendable, cancelled = [await place.start(name) for name in ("journey", "mendable", "hanging")]
    (by_sql,) = await place.start_by_sql("short")
    await place.over(mendable, "FAILED")
    Path(place.task["mended"]).touch()
    await place.ask(mendable, "redrive")
    await place.hung(1)
    await place.ask(cancelled, "cancel")
    await place.become(journey, lambda run: any(each["status"] == "SUSPENDED" for each in run["stages"]))
    await place.ask(journey, "signals", {"stage_id": "approval", "step_id": "approve", "payload": {}})
    for run_id in (journey, mendable, by_sql):
        await place.over(run_id)
    killed = await place.start("hanging")
    await place.hung(2)
    # A killed worker takes with it what it had not written yet.
    await place.trace(killed, 3)
    check_journey(await place.trace(journey, 19), journey, place.tenant_id)
    check_mendable(await place.trace(mendable, 14), mendable, place.tenant_id)
    check_cancelled(await place.trace(cancelled, 6), cancelled, place.tenant_id)
    await check_sql(place, by_sql)
    first.kill()
    second = worker()
    await place.over(killed)
    check_killed(await place.trace(killed, 7), killed, place.tenant_id)
    assert second.stop() == 0
    last = [
        one
        for one in receiver.metrics()
        if "tenantry.queue.wait" in one and one[""]["service.name"] == "tenantry-worker"
    ][-1]
    assert number_of(last["tenantry.leases.expired"]) == 1
    assert number_of(last["tenantry.runs.finished"], tenantry__outcome="completed") == 1
    api = [one for one in receiver.metrics() if one[""]["service.name"] == "tenantry-api"][-1]
    assert number_of(api["tenantry.runs.finished"], tenantry__outcome="cancelled") == 1
    assert "http.server.request.duration" in api
    assert any("tenantry.queue.depth" in one for one in receiver.metrics())


def check_journey(spans: list[Span], run_id: str, tenant_id: UUID) -> None:
    check_tree(spans, run_id, tenant_id)
    request, create = one(spans, "POST /v1/runs"), one(spans, "run.create journey")
    assert (request["kind"], create["kind"], create["parent_span_id"]) == ("SERVER", "PRODUCER", request["span_id"])
    assert told(spans) == ["run.create journey", "run.started", "run.suspended", "run.resumed", "run.finished"]
    assert one(spans, "run.suspended")["attributes"]["tenantry.wait.kind"] == "signal"
    assert one(spans, "run.finished")["attributes"]["tenantry.outcome"] == "completed"
    prepared = one(spans, "job.execute journey/prepare")
    assert (prepared["parent_span_id"], prepared["kind"]) == (create["span_id"], "CONSUMER")
    assert one(spans, "step.run charge")["parent_span_id"] == prepared["span_id"]
    assert one(spans, "look up")["attributes"]["order"] == 7
    waited, resumed = named(spans, "job.execute journey/approval")
    assert waited["parent_span_id"] == create["span_id"]
    assert one(spans, "step.run before")["parent_span_id"] == waited["span_id"]
    assert (resumed["parent_span_id"], resumed["attributes"]["tenantry.replay"]) == (None, True)
    assert one(spans, "step.run after")["parent_span_id"] == resumed["span_id"]
    assert [span["attributes"]["tenantry.outcome"] for span in (waited, resumed)] == ["suspended", "completed"]
    failed, retried = named(spans, "job.execute journey/flaky")
    assert (failed["status"], failed["attributes"]["error.type"]) == ("ERROR", "LookupError")
    assert [span["attributes"]["tenantry.attempt"] for span in (failed, retried)] == [1, 2]
    assert (failed["parent_span_id"], retried["parent_span_id"]) == (create["span_id"], None)
    assert len({span["trace_id"] for span in spans}) == 3
    assert {span["name"] for span in spans if span["status"] == "ERROR"} == {failed["name"]}


def check_mendable(spans: list[Span], run_id: str, tenant_id: UUID) -> None:
    check_tree(spans, run_id, tenant_id)
    assert told(spans) == ["run.create mendable", "run.started", "run.finished", "run.started", "run.finished"]
    failed, mended = named(spans, "run.finished")
    assert [span["attributes"]["tenantry.outcome"] for span in (failed, mended)] == ["failed", "completed"]
    assert (failed["status"], mended["status"]) == ("ERROR", "UNSET")
    once, again = named(spans, "job.execute mendable/broken")
    assert (once["parent_span_id"], again["parent_span_id"]) == (one(spans, "run.create mendable")["span_id"], None)


def check_cancelled(spans: list[Span], run_id: str, tenant_id: UUID) -> None:
    check_tree(spans, run_id, tenant_id)
    assert told(spans) == ["run.create hanging", "run.started", "run.finished"]
    assert one(spans, "run.finished")["attributes"]["tenantry.outcome"] == "cancelled"
    execution = one(spans, "job.execute hanging/hang")
    # To be told to stop is no failure.
    assert (execution["status"], execution["attributes"]["tenantry.outcome"]) == ("UNSET", "ghost")


async def check_sql(place: Place, run_id: str) -> None:
    spans = await place.trace(run_id, 7)
    check_tree(spans, run_id, place.tenant_id)
    create = one(spans, "run.create short")
    assert (create["parent_span_id"], create["start_time"]) == (None, create["end_time"])
    assert one(spans, "job.execute short/prepare")["parent_span_id"] == create["span_id"]
    assert told(spans) == ["run.create short", "run.started", "run.finished"]
    assert (await place.over(run_id))["trace_id"] == create["trace_id"]


def check_killed(spans: list[Span], run_id: str, tenant_id: UUID) -> None:
    check_tree(spans, run_id, tenant_id)
    assert told(spans, "lease.") == ["lease.expired"]
    expired = one(spans, "lease.expired")
    assert (expired["attributes"]["tenantry.stage"], expired["attributes"]["tenantry.attempt"]) == ("hang", 1)
    # What the killed worker had begun to tell went with it; the second attempt is a trace of its own.
    execution = one(spans, "job.execute hanging/hang")
    assert (execution["parent_span_id"], execution["attributes"]["tenantry.attempt"]) == (None, 2)
    assert told(spans) == ["run.create hanging", "run.started", "run.finished"]


RUNS = 12


@pytest.mark.parametrize("place", ["traceidratio"], indirect=True)
async def test_a_run_is_traced_by_every_process_or_by_none(place: Place, worker: Callable[..., Process]) -> None:
    """Whoever makes a run decides; of a run from SQL it is the worker that starts it. No other process's setting counts."""
    by_http = [await place.start("hanging") for _ in range(RUNS)]
    by_sql = await place.start_by_sql("hanging", RUNS)
    first = worker("traceidratio")
    await place.hung(2 * RUNS)
    async with await psycopg.AsyncConnection.connect(place.urls.direct, row_factory=dict_row) as superuser:
        query = "select run_id, traceparent from tenantry.workflow_runs where tenant_id = %s"
        runs = await (await superuser.execute(query, [place.tenant_id])).fetchall()
    decided = {str(run["run_id"]): int(run["traceparent"][-2:], 16) & 1 for run in runs}
    for run_id, is_sampled in decided.items():
        if is_sampled:
            # A killed worker takes with it what it had not written yet.
            await place.trace(run_id, 3 if run_id in by_http else 2)
    first.kill()
    worker("always_off")
    for run_id in decided:
        await place.over(run_id)
    whole = {"run.started", "lease.expired", "job.execute hanging/hang", "job.settle hanging/hang", "run.finished"}
    for run_ids in (by_http, by_sql):
        assert {decided[run_id] for run_id in run_ids} == {0, 1}
        for run_id in run_ids:
            if decided[run_id]:
                spans = await place.trace(run_id, len(whole) + 1)
                assert {span["name"] for span in spans} - {"POST /v1/runs"} == {"run.create hanging", *whole}
                check_tree(spans, run_id, place.tenant_id)
    shown = [
        (await place.client.get(f"/v1/runs/{run_id}/trace")).json()["data"] for run_id in decided if not decided[run_id]
    ]
    assert shown == [[]] * len(shown)
