"""Workflows that pass large payloads on, and a hand that plays their runs."""

from typing import Any
from uuid import UUID

from kernel import (
    Registry,
    RunCreate,
    StageCompleted,
    StageContext,
    stage,
    workflow,
)
from kernel.blobs import INLINE_BYTES
from kernel.queries.run_get import RunView, run_get
from tests.support.looking import Look
from tests.support.workflows import HandWorker

LARGE = "ä" * (INLINE_BYTES // 2)
LARGEST = '"' + "x" * (5 * 1024 * 1024) + '"'


@stage("echo")
async def echo(ctx: StageContext, given: Any) -> Any:
    return given


@stage("again")
async def again(ctx: StageContext, given: Any) -> Any:
    return given


@stage("left")
async def left(ctx: StageContext, given: Any) -> Any:
    return {"left": given}


@stage("right")
async def right(ctx: StageContext, given: Any) -> Any:
    return given


@stage("require", requires=[echo])
async def require(ctx: StageContext) -> Any:
    return {"first": ctx.require(echo), "input": ctx.input}


WORKFLOWS = Registry(
    [
        workflow("echo", input=Any).pipe(echo).build(),
        workflow("chain", input=Any).pipe(echo).pipe(again).build(),
        workflow("fan", input=Any).parallel(left, right).build(),
        workflow("wide", input=Any).pipe(echo).parallel(left, right, again).build(),
        workflow("require", input=Any).pipe(echo).pipe(require).build(),
    ]
)


def text_of(size: int) -> str:
    """Return a string whose JSON text has `size` bytes."""
    return "x" * (size - 2)


async def create(worker: HandWorker, name: str, given: object, **options: Any) -> UUID:
    async with worker.transaction() as tx:
        return (await worker.kernel.dispatch(RunCreate(name, given, **options), tx)).run_id


async def settle_all(worker: HandWorker) -> None:
    """Play the bodies: every stage answers with what it is given."""
    while jobs := await worker.tick():
        for job in jobs:
            await worker.settle(job, StageCompleted(job.input))


async def complete(worker: HandWorker, name: str, given: object, **options: Any) -> UUID:
    run_id = await create(worker, name, given, **options)
    async with worker.transaction() as tx:
        assert (await worker.kernel.bound_to(tx).run_to_completion(run_id)).outcome == "completed"
    return run_id


async def view_of(worker: HandWorker, run_id: UUID) -> RunView:
    async with worker.transaction() as tx:
        view = await run_get(tx, run_id)
    assert view is not None
    return view


async def blobs_of(look: Look, run_id: UUID) -> list[str]:
    rows = await look("select content from tenantry.workflow_blobs where run_id = %s order by length(content)", run_id)
    return [row["content"] for row in rows]
