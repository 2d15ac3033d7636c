"""Two tenants hammered by random commands at the same time, each against a model of its own: neither ever sees the other.

Both use the same workflows, tags, idempotency keys and worker id, aim half of their commands at the other's runs, and act side
by side. After each pair of commands everything that either can read is what its own model holds, to the last id.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernel import (
    IdempotencyKeyReusedError,
    Kernel,
    PostgresBlobs,
    RunCancel,
    RunCreate,
    RunListVersions,
    RunNotFoundError,
    RunPurge,
    SignalRefusedError,
    StepSignal,
)
from kernel.blobs import INLINE_BYTES
from kernel.queries.queue_get import queue_get
from kernel.queries.run_events import run_events
from kernel.queries.run_get import run_get
from kernel.queries.run_list import RunFilter, run_list
from kernel.queries.step_list import FIRST, step_list
from kernel.queries.tenant_get import tenant_usage
from kernel.states import RunStatus
from tenancy import Database, DatabaseSettings
from tenancy.isolation.catalog import TenantColumns, read_catalog
from tenancy.sql import parse
from tests.support import factories
from tests.support.blobs import unmatched
from tests.support.environment import DatabaseUrls
from tests.support.workflows import REGISTRY, HandWorker

# Groups of each workflow, and its first stage.
GROUPS = {"single": 1, "fan": 2, "chain": 3}
FIRST_STAGE = {"single": "first", "fan": "left", "chain": "first"}
OVER = (RunStatus.COMPLETED, RunStatus.CANCELLED)
LATER = datetime.now(UTC) + timedelta(days=1)
MOST = 1_000


@dataclass(frozen=True, slots=True)
class Move:
    """One command of one tenant's; `target` picks a run, of the other's when `is_foreign`."""

    kind: Literal["create", "cancel", "work", "signal", "purge"]
    workflow: str
    tag: str
    key: str | None
    target: int
    is_foreign: bool


MOVES = st.builds(
    Move,
    kind=st.sampled_from(("create", "create", "create", "work", "work", "cancel", "signal", "purge")),
    workflow=st.sampled_from(tuple(GROUPS)),
    tag=st.sampled_from(("x", "y")),
    key=st.sampled_from((None, "k1", "k2")),
    target=st.integers(0, 20),
    is_foreign=st.booleans(),
)


@dataclass(slots=True)
class Run:
    """What the model knows of a run: the groups that are done, and the steps that were signalled."""

    workflow: str
    tag: str
    status: RunStatus = RunStatus.PENDING
    done: int = 0
    signalled: set[str] = field(default_factory=set)


class Tenant:
    """One tenant and the model of all that it has."""

    def __init__(self, database: Database, tenant_id: UUID, blobs: PostgresBlobs) -> None:
        self.hand = HandWorker(database, tenant_id, name="worker")
        self.hand.kernel = Kernel(REGISTRY, blobs=blobs)
        self.kernel = self.hand.kernel
        self.runs: dict[UUID, Run] = {}
        self.keys: dict[str, tuple[tuple[str, str], UUID]] = {}

    async def make(self, move: Move, others: Sequence[UUID]) -> None:
        """Make a move and compare its answer with the model's."""
        own = list(self.runs)
        aimed = list(others) if move.is_foreign else own
        target = aimed[move.target % len(aimed)] if aimed else None
        if move.kind == "create":
            await self._create(move)
        elif move.kind == "work":
            await self._work()
        elif move.kind == "purge":
            await self._purge()
        elif move.kind == "cancel" and target is not None:
            await self._cancel(target)
        elif move.kind == "signal" and target is not None:
            await self._signal(target, move)

    async def _create(self, move: Move) -> None:
        request = (move.workflow, move.tag)
        known = self.keys.get(move.key) if move.key is not None else None
        command = RunCreate(move.workflow, {"n": 1}, tags=(move.tag,), idempotency_key=move.key)
        if known is not None and known[0] != request:
            with pytest.raises(IdempotencyKeyReusedError):
                await self._dispatch(command)
            return
        created = await self._dispatch(command)
        assert created.replayed is (known is not None)
        if known is not None:
            assert created.run_id == known[1]
            return
        assert created.run_id not in self.runs
        self.runs[created.run_id] = Run(move.workflow, move.tag)
        if move.key is not None:
            self.keys[move.key] = (request, created.run_id)

    async def _work(self) -> None:
        """Execute the next group of every run that is not over: those and no other are there to be leased."""
        jobs = await self.hand.tick(limit=MOST)
        active = {run_id for run_id, run in self.runs.items() if run.status not in OVER}
        assert {job.run_id for job in jobs} == active
        for job in jobs:
            await self.hand.settle(job)
        for run_id in active:
            run = self.runs[run_id]
            run.done += 1
            run.status = RunStatus.COMPLETED if run.done == GROUPS[run.workflow] else RunStatus.RUNNING

    async def _cancel(self, run_id: UUID) -> None:
        cancelled = await self._dispatch(RunCancel(run_id, reason="by the model"))
        run = self.runs.get(run_id)
        if run is None:
            assert (cancelled.cancelled, cancelled.status) == (False, None)
            return
        assert cancelled.cancelled is (run.status not in OVER)
        if run.status not in OVER:
            run.status = RunStatus.CANCELLED
        assert cancelled.status == run.status

    async def _signal(self, run_id: UUID, move: Move) -> None:
        run = self.runs.get(run_id)
        stage_id = FIRST_STAGE[run.workflow if run is not None else move.workflow]
        command = StepSignal(run_id, stage_id, move.tag, {"by": "the model"})
        if run is None or run.status in OVER:
            with pytest.raises(RunNotFoundError if run is None else SignalRefusedError):
                await self._dispatch(command)
            return
        signalled = await self._dispatch(command)
        assert signalled.already_completed is (move.tag in run.signalled)
        run.signalled.add(move.tag)

    async def _purge(self) -> None:
        purged = await self._dispatch(RunPurge(LATER, limit=MOST))
        over = {run_id for run_id, run in self.runs.items() if run.status in OVER}
        assert set(purged.run_ids) == over
        for run_id in over:
            del self.runs[run_id]
        self.keys = {key: kept for key, kept in self.keys.items() if kept[1] not in over}

    async def _dispatch(self, command: Any) -> Any:
        async with self.hand.transaction() as tx:
            return await self.kernel.dispatch(command, tx)

    # -- what it sees -------------------------------------------------------------------------------------------------

    async def look(self, others: Sequence[UUID]) -> None:
        """Read everything that can be read and compare it with the model."""
        async with self.hand.transaction() as tx:
            listed = await run_list(tx, RunFilter(), limit=MOST)
            assert {run.run_id: run.status for run in listed} == {one: run.status for one, run in self.runs.items()}
            for tag in ("x", "y"):
                tagged = await run_list(tx, RunFilter(tags=(tag,)), limit=MOST)
                assert {run.run_id for run in tagged} == {one for one, run in self.runs.items() if run.tag == tag}
            usage = await tenant_usage(tx)
            statuses = Counter(run.status for run in self.runs.values())
            assert (usage.stored_runs, usage.pending_runs, usage.running_jobs) == (
                len(self.runs),
                statuses[RunStatus.PENDING],
                0,
            )
            queue = await queue_get(tx, REGISTRY.served, limit=MOST)
            assert {waiting.run_id for waiting in queue.waiting} <= set(self.runs)
            versions = (await self.kernel.dispatch(RunListVersions(), tx)).versions
            assert sum(version.active for version in versions) == sum(
                count for status, count in statuses.items() if status not in OVER
            )
            for run_id, run in self.runs.items():
                steps, _ = await step_list(tx, run_id, after=FIRST, limit=MOST)
                assert {step.step_id for step in steps} == run.signalled
            for run_id in others:
                assert await run_get(tx, run_id) is None
                assert await run_events(tx, run_id, after=0, limit=MOST) == []
                assert await step_list(tx, run_id, after=FIRST, limit=MOST) == ([], False)


class World:
    """The database and the loop of one test; each example has two tenants of its own."""

    def __init__(self, urls: DatabaseUrls) -> None:
        self.runner = asyncio.Runner()
        self.urls = urls
        self.database = Database(DatabaseSettings(urls.worker, pool_size=4))
        self.superuser = self.run(psycopg.AsyncConnection.connect(urls.direct, autocommit=True))
        self.run(self.database.open())
        with psycopg.connect(urls.direct) as connection:
            catalog = read_catalog(connection, ["tenantry"], TenantColumns("tenant_id", {}))
        self.tables = [table for table in catalog.under_test() if table.tenant_column is not None]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def close(self) -> None:
        self.run(self.database.close())
        self.run(self.superuser.close())
        self.runner.close()

    async def play(self, moves: Sequence[tuple[Move, Move]]) -> None:
        """Let both make their moves side by side, and look after each pair."""
        # One has each payload in its row, the other one in the blob store.
        tenants = [
            Tenant(self.database, await factories.create_tenant(self.superuser), PostgresBlobs(inline_bytes))
            for inline_bytes in (INLINE_BYTES, 0)
        ]
        one, two = tenants
        ever: tuple[set[UUID], set[UUID]] = (set(), set())
        for first, second in moves:
            await asyncio.gather(one.make(first, sorted(ever[1])), two.make(second, sorted(ever[0])))
            for tenant, seen in zip(tenants, ever, strict=True):
                seen.update(tenant.runs)
            assert not ever[0] & ever[1]
            await asyncio.gather(one.look(sorted(ever[1])), two.look(sorted(ever[0])))
            for tenant in tenants:
                assert await unmatched(self.superuser, tenant.hand.tenant_id) == []
        for tenant in tenants:
            await self._compare_tables(tenant)

    async def _compare_tables(self, tenant: Tenant) -> None:
        """Look at every table there is, without any condition: policies alone leave the tenant its own rows."""
        async with self.database.transaction(tenant.hand.tenant_id) as tx:
            for table in self.tables:
                bare = f"select tenant_id::text as tenant from {table.identifier.as_string()}"
                shown = await tx.fetch_all(parse(f"-- name: bare\n{bare}", "here.sql")["bare"])
                stored = await self.superuser.execute(f"{bare} where tenant_id = %s".encode(), (tenant.hand.tenant_id,))
                assert [row["tenant"] for row in shown] == [row[0] for row in await stored.fetchall()], table.label


@pytest.fixture
def world(database_urls: DatabaseUrls) -> Iterator[World]:
    opened = World(database_urls)
    yield opened
    opened.close()


def check(world: World, **options: Any) -> None:
    quiet = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck), **options)

    @quiet
    @given(moves=st.lists(st.tuples(MOVES, MOVES), min_size=8, max_size=20))
    def plays(moves: list[tuple[Move, Move]]) -> None:
        world.run(world.play(moves))

    plays()


def test_each_sees_exactly_its_own(world: World) -> None:
    check(world, max_examples=8, derandomize=True, phases=[Phase.generate])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_for_long(world: World) -> None:
    check(world, max_examples=1_000)
