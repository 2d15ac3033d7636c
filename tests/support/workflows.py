"""Small workflows for tests of the kernel and the worker, and a driver that plays a worker by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

from pydantic import BaseModel

from kernel import (
    JobSettle,
    Kernel,
    KernelLimits,
    LeasedJob,
    Registry,
    RunCreate,
    Settled,
    Settlement,
    StageCompleted,
    StageContext,
    StageOutcome,
    WorkerTick,
    Workflow,
    stage,
    workflow,
)
from tenancy import Database, TenantTransaction, load_sql

CLOCK = load_sql(__file__)


class Number(BaseModel):
    """The payload of most test workflows."""

    n: int


@stage("first")
async def first(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n + 1)


@stage("second")
async def second(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n * 2)


@stage("third")
async def third(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n + 100)


@stage("left")
async def left(ctx: StageContext, number: Number) -> Number:
    return number


@stage("right")
async def right(ctx: StageContext, number: Number) -> Number:
    return Number(n=-number.n)


@stage("joined")
async def joined(ctx: StageContext, both: dict[str, Number]) -> Number:
    return Number(n=sum(number.n for number in both.values()))


@stage("fragile", max_attempts=2)
async def fragile(ctx: StageContext, number: Number) -> Number:
    raise RuntimeError("broken as asked")


def _is_even(ctx: StageContext) -> bool:
    return bool(ctx.input.n % 2 == 0)


@stage("perhaps", when=_is_even)
async def perhaps(ctx: StageContext, number: Number) -> Number:
    return Number(n=number.n // 2)


chain = workflow("chain", input=Number).pipe(first).pipe(second).pipe(third).build()
single = workflow("single", input=Number).pipe(first).build()
fan = workflow("fan", input=Number).parallel(left, right).pipe(joined).build()
failing = workflow("failing", input=Number).pipe(fragile).build()
optional = workflow("optional", input=Number).pipe(perhaps).pipe(third).build()
ALL: tuple[Workflow, ...] = (chain, single, fan, failing, optional)
REGISTRY = Registry([*ALL])


class HandWorker:
    """Plays a worker step by step: each method is one transaction of its own."""

    def __init__(self, database: Database, tenant_id: UUID, registry: Registry = REGISTRY, name: str = "hand") -> None:
        self.database = database
        self.tenant_id = tenant_id
        self.worker_id = name
        self.kernel = Kernel(registry, limits=KernelLimits(stale_lease_threshold=timedelta(seconds=300)))

    @asynccontextmanager
    async def transaction(self, offset: timedelta | None = None) -> AsyncIterator[TenantTransaction]:
        """Open a transaction of the tenant's, with the engine's clock moved by `offset`."""
        async with self.database.transaction(self.tenant_id) as tx:
            if offset is not None:
                await tx.fetch_all(CLOCK["advance"], offset=f"{offset.total_seconds()} seconds")
            yield tx

    async def create(self, workflow_id: str = "chain", n: int = 1, **options: object) -> UUID:
        async with self.transaction() as tx:
            created = await self.kernel.dispatch(RunCreate(workflow_id, {"n": n}, **options), tx)  # type: ignore[arg-type]
        return created.run_id

    async def tick(self, limit: int = 100, offset: timedelta | None = None) -> tuple[LeasedJob, ...]:
        async with self.transaction(offset) as tx:
            ticked = await self.kernel.dispatch(WorkerTick(self.worker_id, limit), tx)
        return ticked.leased

    async def settle(
        self, job: LeasedJob, outcome: StageOutcome | None = None, *, lease_ahead: int = 0, wait: bool = True
    ) -> Settled:
        settlement = Settlement(job, outcome or StageCompleted('{"n": 1}'))
        async with self.transaction() as tx:
            command = JobSettle(self.worker_id, [settlement], lease_ahead=lease_ahead, wait=wait)
            (settled,) = await self.kernel.dispatch(command, tx)
        return settled
