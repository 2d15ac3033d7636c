"""`run.redrive` with another version of the workflow, or with one that is served elsewhere."""

from uuid import UUID, uuid4

import pytest

from kernel import (
    InvalidRequestError,
    Kernel,
    Registry,
    RunRedrive,
    RunRedriven,
    StageContext,
    Terminal,
    UnknownStageError,
    UnknownVersionError,
    stage,
    workflow,
)
from kernel.testing import Harness, HarnessRun
from tenancy import Database
from tests.kernel.commands.redriven import ARCHIVE, STAGES
from tests.support.looking import Look


def versions() -> tuple[Registry, Registry]:
    """One workflow before and after `middle` was put between its stages, and `last` given another name."""

    @stage("first")
    async def first(ctx: StageContext, order: dict) -> int:
        return 1

    @stage("middle")
    async def middle(ctx: StageContext, number: int) -> int:
        return number + 10

    @stage("last")
    async def last(ctx: StageContext, number: int) -> int:
        raise Terminal("broken in this version")

    @stage("final")
    async def final(ctx: StageContext, number: int) -> int:
        return number + 100

    old = workflow("play", input=dict).pipe(first).pipe(last).build()
    new = workflow("play", input=dict).pipe(first).pipe(middle).pipe(final).build()
    return Registry([old]), Registry([new])


async def completed(harness: Harness, run: HarnessRun) -> bool:
    """Execute the run as the harness's build does, whichever started it."""
    async with harness.transaction() as tx:
        return (await harness.kernel.bound_to(tx).run_to_completion(run.run_id)).outcome == "completed"


class TestVersions:
    @pytest.fixture
    def tenant_id(self) -> UUID:
        return uuid4()

    async def test_a_run_goes_on_in_the_latest_version_behind_what_it_has_done(
        self, database: Database, tenant_id: UUID, look: Look
    ) -> None:
        old, new = versions()
        run = await Harness(old, database.transaction, tenant_id=tenant_id).start("play", {})
        assert await run.go() == "failed"
        later = Harness(new, database.transaction, tenant_id=tenant_id)
        async with later.transaction() as tx:
            redriven = await later.kernel.dispatch(RunRedrive(run.run_id, definition_version="latest"), tx)
        version = new.workflows[0].definition_version
        assert redriven == RunRedriven("middle", 1, 1, version)
        assert await completed(later, run)
        assert await run.output() == 111
        assert {name: stage.number for name, stage in (await run.stages()).items()} == {
            "first": 1, "middle": 2, "final": 3,
        }  # fmt: skip
        (row,) = await look(ARCHIVE, run.run_id)
        assert (row["stage_id"], row["value"]["definition_version"]) == ("last", old.workflows[0].definition_version)

    async def test_a_stage_that_the_new_version_does_not_have_is_refused(
        self, database: Database, tenant_id: UUID
    ) -> None:
        old, new = versions()
        run = await Harness(old, database.transaction, tenant_id=tenant_id).start("play", {})
        await run.go()
        later = Harness(new, database.transaction, tenant_id=tenant_id)
        version = new.workflows[0].definition_version
        async with later.transaction() as tx:
            with pytest.raises(UnknownStageError):
                await later.kernel.dispatch(RunRedrive(run.run_id, "stage", "last", version), tx)
            with pytest.raises(InvalidRequestError, match="'middle' comes before it"):
                await later.kernel.dispatch(RunRedrive(run.run_id, "stage", "final", version), tx)
            with pytest.raises(UnknownVersionError):
                await later.kernel.dispatch(RunRedrive(run.run_id, definition_version="sha256-none"), tx)
        assert await run.status() == "FAILED"

    async def test_a_kept_stage_stands_where_the_new_version_has_it(
        self, database: Database, tenant_id: UUID, look: Look
    ) -> None:
        @stage("a")
        async def a(ctx: StageContext) -> int:
            return 1

        @stage("b")
        async def b(ctx: StageContext) -> int:
            raise Terminal("broken")

        @stage("c")
        async def c(ctx: StageContext, both: dict) -> dict:
            return both

        old = workflow("play", input=dict).pipe(a).pipe(b).build()
        new = workflow("play", input=dict).parallel(stage("d")(a.function), a).pipe(c).build()
        run = await Harness(old, database.transaction, tenant_id=tenant_id).start("play", {})
        assert await run.go() == "failed"
        later = Harness(new, database.transaction, tenant_id=tenant_id)
        async with later.transaction() as tx:
            redriven = await later.kernel.dispatch(RunRedrive(run.run_id, definition_version="latest"), tx)
        assert redriven.from_stage_id == "d"
        rows = await look(STAGES, run.run_id)
        assert [(row["stage_id"], row["group_number"], row["number"]) for row in rows] == [("d", 1, 1), ("a", 1, 2)]
        assert await completed(later, run)
        assert await run.output() == {"d": 1, "a": 1}

    @pytest.mark.parametrize("what", ["input", "output"])
    async def test_a_version_that_the_payloads_do_not_fit_is_refused(
        self, database: Database, tenant_id: UUID, what: str
    ) -> None:
        @stage("a")
        async def a(ctx: StageContext) -> int:
            return 1

        @stage("a")
        async def worded(ctx: StageContext) -> str:
            return "one"

        @stage("b")
        async def b(ctx: StageContext) -> int:
            raise Terminal("broken")

        old = workflow("play", input=dict).pipe(a).pipe(b).build()
        new = workflow("play", input=int if what == "input" else dict).pipe(worded if what == "output" else a).pipe(b)
        run = await Harness(old, database.transaction, tenant_id=tenant_id).start("play", {})
        assert await run.go() == "failed"
        later = Kernel(Registry([new.build()]))
        async with database.transaction(tenant_id) as tx:
            with pytest.raises(InvalidRequestError) as refused:
                await later.dispatch(RunRedrive(run.run_id, definition_version="latest"), tx)
        assert [(fault.pointer, fault.code) for fault in refused.value.errors] == [
            ("/definition_version", "does_not_fit")
        ]
        assert await run.status() == "FAILED"

    async def test_a_version_that_is_served_elsewhere_goes_on_there(self, database: Database, tenant_id: UUID) -> None:
        old, new = versions()
        run = await Harness(old, database.transaction, tenant_id=tenant_id).start("play", {})
        await run.go()
        elsewhere = Kernel(new)
        for start in (RunRedrive(run.run_id), RunRedrive(run.run_id, "start")):
            async with database.transaction(tenant_id) as tx:
                redriven = await elsewhere.dispatch(start, tx)
            assert redriven.definition_version == old.workflows[0].definition_version
            assert await run.status() == "RUNNING"
            assert await run.go() == "failed"
        assert {name: view.attempt for name, view in (await run.stages()).items()} == {"first": 2, "last": 3}

    async def test_a_version_that_nobody_knows_is_refused(self, database: Database, tenant_id: UUID) -> None:
        old, _ = versions()
        run = await Harness(old, database.transaction, tenant_id=tenant_id).start("play", {})
        await run.cancel()
        async with database.transaction(tenant_id) as tx:
            for version in (None, "latest"):
                with pytest.raises(UnknownVersionError):
                    await Kernel(Registry()).dispatch(RunRedrive(run.run_id, definition_version=version), tx)
