"""What a body said last is there as soon as its outcome is, in every host."""

from uuid import UUID

from kernel import Registry, RunCreate, StageContext, stage, workflow
from tenancy import Database
from tests.support.environment import DatabaseUrls
from tests.support.hosts import running, settings
from tests.support.looking import Look
from tests.support.waiting import until


@stage("talk", max_attempts=1)
async def talk(ctx: StageContext, fails: bool) -> None:
    ctx.log("info", "first", n=1)
    ctx.progress(0.5, "half")
    ctx.log("warning", "last")
    if fails:
        raise RuntimeError("as asked")


REGISTRY = Registry([workflow("talk", input=bool).pipe(talk).build()])


async def test_who_sees_the_end_of_a_run_sees_what_its_bodies_said(
    database_urls: DatabaseUrls, database: Database, tenant: UUID, look: Look
) -> None:
    async with running(settings(database_urls), REGISTRY) as host:
        run_ids: list[UUID] = []
        for fails in (False, True):
            async with database.transaction(tenant) as tx:
                run_ids.append((await host.kernel.dispatch(RunCreate("talk", fails), tx)).run_id)

        ends: dict[UUID, dict[str, object]] = {}

        async def all_over() -> bool:
            rows = await look(
                "select run.run_id, run.status, array(select line.message from tenantry.workflow_logs as line"
                " where line.run_id = run.run_id order by line.log_id) as lines,"
                " array(select event.type from tenantry.outbox_events as event"
                " where event.run_id = run.run_id order by event.sequence) as events"
                " from tenantry.workflow_runs as run where run.tenant_id = %s and run.status in ('COMPLETED', 'FAILED')",
                tenant,
            )
            # What was seen first: later is too late to tell.
            for row in rows:
                ends.setdefault(row["run_id"], row)
            return len(ends) == len(run_ids)

        await until(all_over, "both runs are over")
    opening = ["workflow:created", "workflow:started", "stage:started", "stage:progress"]
    for run_id, status, end in zip(run_ids, ("COMPLETED", "FAILED"), ("completed", "failed"), strict=True):
        seen = ends[run_id]
        assert (seen["status"], seen["lines"]) == (status, ["first", "last"])
        assert seen["events"] == [*opening, f"stage:{end}", f"workflow:{end}"]
