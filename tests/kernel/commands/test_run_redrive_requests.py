"""`run.redrive` as a request: what is refused, its idempotency key, and the transaction it is part of."""

from typing import Any
from uuid import uuid4

import pytest

from kernel import (
    IdempotencyKeyReusedError,
    InvalidRequestError,
    RunCancel,
    RunNotFoundError,
    RunNotTerminalError,
    RunRedrive,
    RunRedriven,
)
from kernel.testing import HarnessRun
from tenancy import Database
from tests.kernel.commands.redriven import ARCHIVE, JOBS, STAGES, Play
from tests.support.looking import Look


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "pointer"),
        [
            ({"kind": "middle"}, "/kind"),
            ({"kind": "stage"}, "/stage_id"),
            ({"kind": "stage", "stage_id": ""}, "/stage_id"),
            ({"kind": "stage", "stage_id": "a\0"}, "/stage_id"),
            ({"kind": "start", "stage_id": "ship"}, "/stage_id"),
            ({"stage_id": "ship"}, "/stage_id"),
            ({"definition_version": ""}, "/definition_version"),
            ({"definition_version": "a\0"}, "/definition_version"),
            ({"idempotency_key": ""}, "/idempotency_key"),
        ],
    )
    async def test_a_bad_request(self, play: Play, fields: dict[str, Any], pointer: str) -> None:
        async with play.harness.transaction() as tx:
            with pytest.raises(InvalidRequestError) as refused:
                await play.harness.kernel.dispatch(RunRedrive(uuid4(), **fields), tx)
        assert [fault.pointer for fault in refused.value.errors] == [pointer]

    async def test_a_run_that_is_not_over(self, play: Play) -> None:
        run = await play.harness.start("play", {})
        with pytest.raises(RunNotTerminalError):
            await run.redrive()
        play.harness.kill_before(1)
        await run.go()
        with pytest.raises(RunNotTerminalError):
            await run.redrive("start")

    async def test_a_run_of_nobody_or_of_another_tenant(self, play: Play, database: Database) -> None:
        run = await play.start()
        async with database.transaction(uuid4()) as tx:
            for run_id in (run.run_id, uuid4()):
                with pytest.raises(RunNotFoundError):
                    await play.harness.kernel.dispatch(RunRedrive(run_id), tx)
        assert await run.status() == "COMPLETED"


class TestKeys:
    async def redrive(self, play: Play, run: HarnessRun, key: str = "again", **fields: Any) -> RunRedriven:
        async with play.harness.transaction() as tx:
            return await play.harness.kernel.dispatch(RunRedrive(run.run_id, idempotency_key=key, **fields), tx)

    async def test_a_repeat_is_answered_as_the_first_request_was_and_changes_nothing(self, play: Play) -> None:
        run = await play.start("ship")
        first = await self.redrive(play, run)
        assert await run.go() == "completed"
        before = await run.events()
        again = await self.redrive(play, run)
        assert (first.replayed, again.replayed) == (False, True)
        assert (again.from_stage_id, again.superseded, again.redrive_count) == ("ship", 1, 1)
        assert await run.events() == before

    async def test_the_key_with_another_request_is_refused(self, play: Play) -> None:
        run, other = await play.start("ship"), await play.start("ship")
        await self.redrive(play, run)
        for asked, fields in ((other, {}), (run, {"kind": "start"}), (run, {"definition_version": "latest"})):
            with pytest.raises(IdempotencyKeyReusedError):
                await self.redrive(play, asked, **fields)

    async def test_a_refused_request_does_not_use_up_its_key(self, play: Play) -> None:
        run = await play.harness.start("play", {})
        async with play.harness.transaction() as tx:
            for command in (RunRedrive(run.run_id, idempotency_key="k"), RunRedrive(uuid4(), idempotency_key="k")):
                with pytest.raises((RunNotTerminalError, RunNotFoundError)):
                    await play.harness.kernel.dispatch(command, tx)
            await play.harness.kernel.dispatch(RunCancel(run.run_id), tx)
            done = await play.harness.kernel.dispatch(RunRedrive(run.run_id, "start", idempotency_key="k"), tx)
        assert not done.replayed

    async def test_a_key_of_another_command_is_another_key(self, play: Play) -> None:
        run = await play.harness.start("play", {}, idempotency_key="again")
        await run.cancel()
        assert not (await self.redrive(play, run)).replayed

    async def test_an_expired_key_is_free_once_its_run_is_over_again(self, play: Play) -> None:
        run = await play.start("ship")
        await self.redrive(play, run)
        play.harness.stand_still("25h")
        assert (await self.redrive(play, run)).replayed, "the run is not over"
        assert await run.go() == "completed"
        assert (await self.redrive(play, run)).redrive_count == 2


async def test_everything_is_written_in_the_callers_transaction_or_not_at_all(play: Play, look: Look) -> None:
    class UndoError(Exception):
        pass

    run = await play.start("ship")
    before = [await look(STAGES, run.run_id), await look(JOBS, run.run_id), await run.events(), await run.steps()]

    async def undone() -> None:
        async with play.harness.transaction() as tx:
            await play.harness.kernel.dispatch(RunRedrive(run.run_id, "start", idempotency_key="k"), tx)
            raise UndoError

    with pytest.raises(UndoError):
        await undone()
    assert [
        await look(STAGES, run.run_id),
        await look(JOBS, run.run_id),
        await run.events(),
        await run.steps(),
    ] == before
    assert await look(ARCHIVE, run.run_id) == []
    assert await look("select from tenantry.idempotency_keys where run_id = %s", run.run_id) == []


async def test_a_host_of_its_own_redrives_and_completes_a_run_in_one_transaction(play: Play) -> None:
    run = await play.start("ship")
    harness = play.harness
    async with harness.transaction() as tx:
        bound = harness.kernel.bound_to(tx)
        await bound.dispatch(RunRedrive(run.run_id, "start"))
        assert (await bound.run_to_completion(run.run_id)).outcome == "completed"
    assert {view.attempt for view in (await run.stages()).values()} == {2}
