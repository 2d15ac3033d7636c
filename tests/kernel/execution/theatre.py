"""One workflow of one stage whose body the test gives, performed on a clock that the test moves."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

from kernel import Kernel, Registry, RunCreate, StageContext, StepSignal, stage, workflow
from tenancy import Database
from tests.support.looking import Look
from tests.support.workflows import CLOCK

Body = Callable[[StageContext[Any]], Coroutine[Any, Any, Any]]


class Theatre:
    """One workflow of one stage whose body the test gives; each performance is one transaction that commits."""

    def __init__(self, database: Database, tenant: UUID, look: Look, body: Body, **options: Any) -> None:
        @stage("act", **options)
        async def act(ctx: StageContext) -> Any:
            return await body(ctx)

        self.kernel = Kernel(Registry([workflow("play", input=dict[str, Any]).pipe(act).build()]))
        self.database = database
        self.tenant = tenant
        self.look = look
        self.run_id = UUID(int=0)
        self.offset = timedelta(0)

    async def start(self) -> None:
        async with self.database.transaction(self.tenant) as tx:
            self.run_id = (await self.kernel.dispatch(RunCreate("play", {}), tx)).run_id

    async def go(self) -> str:
        """Bring the run as far as it goes at this moment of the engine's clock."""
        if self.run_id.int == 0:
            await self.start()
        async with self.database.transaction(self.tenant) as tx:
            await tx.fetch_all(CLOCK["advance"], offset=f"{self.offset.total_seconds()} seconds")
            return (await self.kernel.bound_to(tx).run_to_completion(self.run_id)).outcome

    async def later(self, **times: float) -> str:
        self.offset += timedelta(**times)
        return await self.go()

    async def signal(self, step_id: str, payload: object, stage_id: str = "act") -> tuple[bool, bool]:
        async with self.database.transaction(self.tenant) as tx:
            await tx.fetch_all(CLOCK["advance"], offset=f"{self.offset.total_seconds()} seconds")
            told = await self.kernel.dispatch(StepSignal(self.run_id, stage_id, step_id, payload), tx)
        return told.signalled, told.already_completed

    async def steps(self) -> dict[str, dict[str, Any]]:
        rows = await self.look("select * from tenantry.workflow_steps where run_id = %s", self.run_id)
        return {row["step_id"]: row for row in rows}

    async def run(self) -> dict[str, Any]:
        (row,) = await self.look("select * from tenantry.workflow_runs where run_id = %s", self.run_id)
        return row

    async def stage(self) -> dict[str, Any]:
        (row,) = await self.look("select * from tenantry.workflow_stages where run_id = %s", self.run_id)
        return row

    async def events(self) -> list[str]:
        rows = await self.look(
            "select type from tenantry.outbox_events where run_id = %s order by sequence", self.run_id
        )
        return [row["type"] for row in rows]
