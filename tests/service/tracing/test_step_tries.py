"""When each attempt of a step was: as its spans tell it, and as the console draws it."""

from uuid import UUID

import pytest
from opentelemetry import trace

from kernel import Kernel, Registry, RunCreate, StageContext, Step, stage, workflow
from kernel.queries.run_get import stages_of
from kernel.queries.run_trace import step_tries
from kernel.queries.step_list import step_get
from service.console.step_stretches import StepTime, stretches_of
from tenancy import Database
from tests.support import waiting
from tests.support.environment import DatabaseUrls
from tests.support.hosts import running, settings
from tests.support.looking import Look
from tests.support.tracing import Tracing

PAUSE_S = 0.15


@stage("call")
async def call(ctx: StageContext, fails: int) -> int:
    async def ring(step: Step) -> int:
        # Of the same name, as a body may make them: it is no attempt.
        trace.get_tracer("a body").start_span("step.run ring", attributes={"tenantry.step": "other"}).end()
        if step.attempt <= fails:
            raise LookupError(step.attempt)
        return step.attempt

    return await ctx.step.run("ring", ring, retries=5, retry_delay=PAUSE_S)


REGISTRY = Registry([workflow("caller", input=int).pipe(call).build()])


@pytest.fixture
async def run_id(traced: Tracing, database: Database, database_urls: DatabaseUrls, tenant: UUID, look: Look) -> UUID:
    """A run that is over, and its spans are stored."""
    async with database.transaction(tenant) as tx:
        created = (await Kernel(REGISTRY).dispatch(RunCreate("caller", 2), tx)).run_id

    async def is_over() -> bool:
        (run,) = await look("select status from tenantry.workflow_runs where run_id = %s", created)
        return bool(run["status"] == "COMPLETED")

    async with running(settings(database_urls), REGISTRY):
        await waiting.until(is_over, "the run completed", 20)
    return created


async def test_a_step_that_failed_twice_is_three_attempts_with_pauses_between_them(
    run_id: UUID, database: Database, tenant: UUID, other_tenant: UUID
) -> None:
    async with database.transaction(tenant) as tx:
        tries = await step_tries(tx, run_id, ["ring", "other"])
        step = await step_get(tx, run_id, "call", "ring")
        (placed,) = await stages_of(tx, run_id)
    async with database.transaction(other_tenant) as tx:
        assert await step_tries(tx, run_id, ["ring"]) == []
    assert step is not None
    assert step.completed_at is not None
    assert [(each.stage_id, each.step_id, each.attempt, each.error_type) for each in tries] == [
        ("call", "ring", 1, "LookupError"), ("call", "ring", 2, "LookupError"), ("call", "ring", 3, None),
    ]  # fmt: skip
    drawn = stretches_of(StepTime(step, placed, tries, step.completed_at))
    assert [(each.kind, each.note) for each in drawn] == [
        ("failed", "Attempt 1"), ("waiting", "Before attempt 2"), ("failed", "Attempt 2"), ("waiting", "Before attempt 3"),
        ("done", "Attempt 3"),
    ]  # fmt: skip
    assert all(each.seconds >= PAUSE_S for each in drawn if each.kind == "waiting")
    assert drawn[0].start == step.created_at
    assert drawn[-1].end == step.completed_at
