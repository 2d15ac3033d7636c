"""The budgets of performance.md: what a run may cost, what finding work may cost, and that depth does not matter."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from kernel.commands import job_claim, run_claim_pending
from service.worker import dispatcher
from tenancy import Statement, load_sql
from tests.bench import api
from tests.bench.meter import Meter
from tests.bench.ours import Setting, fresh_database, workers
from tests.bench.report import OURS, Figure
from tests.bench.servers import BenchCluster
from tests.bench.spine import Spine
from tests.bench.workflows import REGISTRY, STEPS, TEN, three

SQL = load_sql(__file__)
CLAIM = 64
REPEATS = 25
ROUNDS = 10
UNSERVED = "of-another-build"
THREE: Mapping[str, object] = {"workflow": three.id, "version": three.definition_version}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How big the crowds are; the budgets are promised for the defaults."""

    tenants: int = 10_000
    waiting: int = 1_000_000
    pending: int = 1_000_000
    unserved: int = 100_000


def costs(cluster: BenchCluster, rounds: int = ROUNDS) -> Iterator[Figure]:
    """What a run costs at 64 concurrent of one tenant, at 64 tenants with one each, and alone with the API."""
    with fresh_database(cluster) as (urls, spine), workers(urls, Setting(), spine) as pids:
        meter = Meter(cluster, urls.database, pids)
        for tenants, each, most in ((1, 1000, (0.3, 2)), (64, 64, (5, 30))):
            owners = spine.add_tenants(tenants, f"of-{tenants}-")
            writing = statements = 0
            for _ in range(rounds):
                with spine.connection.transaction():
                    spine.add_runs(owners, each)
                    before = meter.read()
                spine.await_end(owners, 120)
                cost = before.until(meter.read())
                writing, statements = writing + cost.writing, statements + cost.statements
            spine.verify(owners, each * rounds)
            where = "64 concurrent runs of one tenant" if tenants == 1 else "64 tenants with a run each"
            yield _budget(f"writing tx, {where}", writing / each / rounds, most[0], "a run")
            yield _budget(f"statements, {where}", statements / each / rounds, most[1], "a run")
        alone, stepping = api.writes_of_one(spine, meter, 20), api.writes_of_one(spine, meter, 20, TEN)
        meter.close()
    yield _budget("writing tx, a run alone, API included", alone, 6, "a run")
    where = f"a run of one stage with {STEPS} steps alone, API, tick and settle included"
    yield _budget(f"writing tx, {where}", stepping, STEPS + 3, "a run")


def due_query(cluster: BenchCluster, sizes: Sizes) -> Iterator[Figure]:
    """The question who has work, among many tenants that have none."""
    with fresh_database(cluster) as (_, spine):
        owners = spine.add_tenants(sizes.tenants)
        _send(spine, "add_history", **THREE)
        _send(spine, "add_waiting_jobs", tenant_id=owners[0], count=sizes.waiting, **THREE)
        _send(spine, "add_due_jobs", count=10, **THREE)
        _send(spine, "settle_statistics")
        served = json.dumps([{"workflow_id": name, "version": version} for name, version in REGISTRY.served])
        params = {"served": served, "after": dispatcher.FIRST, "page": dispatcher.PAGE}
        _, executing, rows = _explain(spine, dispatcher.SQL["due"], params, None)
        assert rows == 10, rows
        planning, first, _ = _explain(spine, dispatcher.SQL["due"], params, None, is_planned_anew=True)
    where = f"{sizes.tenants:,} tenants, {sizes.waiting:,} jobs not due, 10 due"
    yield _budget(f"due query, executing: {where}", executing, 1, "ms")
    yield _budget(f"due query, with planning: {where}", planning + first, 2, "ms")


def depth(cluster: BenchCluster, sizes: Sizes) -> Iterator[Figure]:
    """A claim of 64 runs, and of 64 jobs, out of many, each against a thousand."""
    with fresh_database(cluster) as (_, spine):
        base = _crowd(spine, "base", [(1000, three.definition_version, True)])
        flat = {name: claim(spine, base) for name, claim in CLAIMS.items()}
        crowds = {
            f"{sizes.pending:,} pending": [(sizes.pending, three.definition_version, True)],
            f"{sizes.waiting:,} not due": [
                (1000, three.definition_version, True),
                (sizes.waiting, three.definition_version, False),
            ],
            f"{sizes.unserved:,} unserved": [(1000, three.definition_version, True), (sizes.unserved, UNSERVED, True)],
        }
        owners = {name: _crowd(spine, f"crowd-{index}", crowd) for index, (name, crowd) in enumerate(crowds.items())}
        for name, claim in CLAIMS.items():
            for crowd, owner in owners.items():
                took = claim(spine, owner)
                label = f"{name}, {crowd} ({took:.2f} ms) against 1,000 ({flat[name]:.2f} ms)"
                yield _budget(label, took / flat[name], 1.2, "times")


def _crowd(spine: Spine, prefix: str, runs: list[tuple[int, str, bool]]) -> UUID:
    (owner,) = spine.add_tenants(prefix=prefix)
    for count, version, ready in runs:
        _send(spine, "add_pending", tenant_id=owner, count=count, workflow=three.id, version=version, ready=ready)
    _send(spine, "add_jobs_of_runs", tenant_id=owner)
    _send(spine, "settle_statistics")
    return owner


def _claim_runs(spine: Spine, owner: UUID) -> float:
    statement, params = run_claim_pending.claim_call(REGISTRY, CLAIM)
    return _claim(spine, statement, params, owner)


def _claim_jobs(spine: Spine, owner: UUID) -> float:
    statement, params = job_claim.claim_call(REGISTRY, CLAIM)
    return _claim(spine, statement, params, owner)


def _claim(spine: Spine, statement: Statement, params: Mapping[str, object], owner: UUID) -> float:
    planning, executing, rows = _explain(spine, statement, params, owner)
    assert rows == CLAIM, rows
    return planning + executing


CLAIMS: Mapping[str, Callable[[Spine, UUID], float]] = {
    "claim of 64 runs": _claim_runs,
    "claim of 64 jobs": _claim_jobs,
}


def _explain(
    spine: Spine,
    statement: Statement,
    params: Mapping[str, object],
    owner: UUID | None,
    *,
    is_planned_anew: bool = False,
) -> tuple[float, float, int]:
    """Execute as its role, roll back, many times; return the medians of planning and executing (ms), and its rows.

    What a function plans counts as executing. `is_planned_anew`: the plans that functions keep are thrown away before.
    """
    text = f"explain (analyze, timing off, format json) {statement.pyformat}".encode()
    plans: list[dict[str, float]] = []
    rows = 0
    for _ in range(REPEATS):
        with spine.connection.transaction(force_rollback=True):
            if is_planned_anew:
                _send(spine, "forget_plans")
            _send(spine, "bind", role=statement.role, tenant_id=str(owner or ""))
            answer = spine.connection.execute(text, {**params, "tenant_id": owner}).fetchone()
            assert answer is not None
            plan = answer["QUERY PLAN"][0]
            rows = round(plan["Plan"]["Actual Rows"])
            plans.append(plan)
    planning = statistics.median(plan["Planning Time"] for plan in plans)
    return planning, statistics.median(plan["Execution Time"] for plan in plans), rows


def _send(spine: Spine, name: str, **params: object) -> None:
    spine.connection.execute(SQL[name].pyformat.encode(), params)


def _budget(what: str, value: float, most: float, unit: str) -> Figure:
    return Figure("budget", OURS, what, value, unit=unit, budget=most)
