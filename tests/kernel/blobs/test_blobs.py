"""Payloads too large for their rows: kept once for their run, found again by every reader, gone with the run."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from kernel import (
    BlobKey,
    JobExecute,
    Kernel,
    KernelLimits,
    LeasedJob,
    PayloadTooLargeError,
    PostgresBlobs,
    RunCreate,
    RunPurge,
    RunTransition,
    StageCompleted,
)
from kernel.blobs import INLINE_BYTES, POSTGRES_BLOBS
from kernel.queries.run_get import run_get
from kernel.queries.run_list import RunFilter, run_list
from tenancy import Database, TenantTransaction, load_sql
from tests.kernel.blobs.large import (
    LARGE,
    LARGEST,
    WORKFLOWS,
    blobs_of,
    complete,
    create,
    settle_all,
    text_of,
    view_of,
)
from tests.support.blobs import Shelf
from tests.support.looking import Look
from tests.support.workflows import HandWorker

SQL = load_sql(__file__)


@pytest.mark.parametrize(
    ("text", "is_large"),
    [(text_of(INLINE_BYTES), False), (text_of(INLINE_BYTES + 1), True), (LARGE, True)],
    ids=["at the limit", "one beyond", "beyond in bytes only"],
)
async def test_a_payload_stays_in_its_row_up_to_the_limit_in_bytes_and_not_one_beyond(
    worker: HandWorker, look: Look, text: str, *, is_large: bool
) -> None:
    run_id = await complete(worker, "echo", text)

    assert await blobs_of(look, run_id) == ([json.dumps(text, ensure_ascii=False)] if is_large else [])
    (run,) = await look("select * from tenantry.workflow_runs where run_id = %s", run_id)
    (row,) = await look("select * from tenantry.workflow_stages where run_id = %s", run_id)
    digests = {run["input_digest"], run["output_digest"], row["output_digest"]}
    assert [run["input"], run["output"], row["output"]] == [None if is_large else text] * 3
    assert len(digests) == 1
    assert (digests == {None}) is not is_large
    view = await view_of(worker, run_id)
    assert json.loads(view.input) == json.loads(view.output or "") == text


@pytest.mark.parametrize("given", [None, False, 0, "", [], {}, "null"])
async def test_what_is_small_or_falsy_is_where_it_always_was(worker: HandWorker, look: Look, given: object) -> None:
    run_id = await complete(worker, "echo", given)
    (row,) = await look(
        "select run.input::text, run.output::text, stage.output::text as made, run.output_digest,"
        " (select count(*) from tenantry.workflow_blobs as blob where blob.run_id = run.run_id) as blobs"
        " from tenantry.workflow_runs as run join tenantry.workflow_stages as stage using (tenant_id, run_id)"
        " where run_id = %s",
        run_id,
    )
    text = json.dumps(given, separators=(",", ":"))
    assert row == {"input": text, "output": text, "made": text, "output_digest": None, "blobs": 0}


async def test_five_megabytes_pass_a_chain_byte_for_byte_and_are_kept_once(worker: HandWorker, look: Look) -> None:
    run_id = await create(worker, "chain", json.loads(LARGEST))
    await settle_all(worker)
    view = await view_of(worker, run_id)
    assert view.input == view.output == LARGEST
    assert await blobs_of(look, run_id) == [LARGEST]


async def test_a_config_may_be_large_too(worker: HandWorker, look: Look) -> None:
    config = {"echo": {"table": LARGE}}
    run_id = await create(worker, "echo", LARGE, config=config)
    (job,) = await worker.tick()
    assert json.loads(job.run_config) == config
    assert json.loads((await view_of(worker, run_id)).config) == config
    assert len(await blobs_of(look, run_id)) == 2


async def test_a_parallel_group_is_put_together_from_what_is_kept(worker: HandWorker, look: Look) -> None:
    run_id = await complete(worker, "fan", LARGE)
    view = await view_of(worker, run_id)
    assert json.loads(view.output or "") == {"left": {"left": LARGE}, "right": LARGE}
    # The input is the right one's output; the left one's and the run's are their own.
    assert len(await blobs_of(look, run_id)) == 3


@dataclass(frozen=True)
class Counted(PostgresBlobs):
    """Counts the payloads that are read."""

    read: list[BlobKey] = field(default_factory=list[BlobKey], kw_only=True)

    async def get(self, tx: TenantTransaction, keys: Collection[BlobKey]) -> Mapping[BlobKey, str]:
        self.read.extend(keys)
        return await PostgresBlobs.get(self, tx, keys)


async def test_a_settle_reads_what_its_siblings_made_only_when_their_group_ends(worker: HandWorker) -> None:
    store = Counted()
    worker.kernel = Kernel(WORKFLOWS, blobs=store)
    run_id = await create(worker, "wide", 1)
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted(json.dumps(LARGE)))
    jobs = await worker.tick()
    made = {job.stage_id: json.dumps(job.stage_id * INLINE_BYTES) for job in jobs}
    read: list[int] = []
    for job in jobs:
        store.read.clear()
        await worker.settle(job, StageCompleted(made[job.stage_id]))
        read.append(len(store.read))
    # The last one makes the run's output of them; what the group before made came with the lease.
    assert read == [0, 0, 2]
    output = json.loads((await view_of(worker, run_id)).output or "")
    assert output == {stage_id: json.loads(text) for stage_id, text in made.items()}


async def test_a_transition_by_itself_finds_the_outputs(worker: HandWorker, look: Look, superuser: Any) -> None:
    run_id = await create(worker, "echo", LARGE)
    (job,) = await worker.tick()
    await worker.settle(job, StageCompleted(job.input))
    # As a crash of another release could leave it: all stages are done, the run is not.
    await superuser.execute(
        "update tenantry.workflow_runs set status = 'RUNNING', completed_at = null, output_digest = null"
        " where run_id = %s",
        [run_id],
    )
    async with worker.transaction() as tx:
        assert (await worker.kernel.dispatch(RunTransition(run_id), tx)).action == "completed"
    assert json.loads((await view_of(worker, run_id)).output or "") == LARGE


async def test_a_body_is_given_what_is_kept_also_after_its_worker_died(worker: HandWorker, look: Look) -> None:
    run_id = await create(worker, "require", LARGE)
    (first,) = await worker.tick()
    await worker.settle(first, StageCompleted(first.input))
    second: tuple[LeasedJob, ...] = await worker.tick()
    # Its lease lapses, and another worker, which has held nothing of this in its memory, takes the job over.
    assert await worker.tick(offset=timedelta(seconds=400)) == ()
    async with worker.transaction(timedelta(seconds=400)) as tx:
        done = await Kernel(WORKFLOWS).dispatch(JobExecute(run_id, second[0].stage_id), tx)
    assert done.output == {"first": LARGE, "input": LARGE}
    assert json.loads((await view_of(worker, run_id)).output or "") == {"first": LARGE, "input": LARGE}


async def test_a_digest_that_is_left_over_means_nothing(worker: HandWorker, superuser: Any) -> None:
    run_id = await complete(worker, "echo", LARGE)
    await superuser.execute("update tenantry.workflow_runs set status = 'RUNNING' where run_id = %s", [run_id])
    assert (await view_of(worker, run_id)).output is None
    await superuser.execute(
        "update tenantry.workflow_runs set status = 'COMPLETED', output = '1' where run_id = %s", [run_id]
    )
    assert (await view_of(worker, run_id)).output == "1"


async def test_lists_of_runs_read_no_payload(worker: HandWorker, superuser: Any) -> None:
    run_id = await complete(worker, "echo", LARGE)
    await superuser.execute("delete from tenantry.workflow_blobs where run_id = %s", [run_id])
    async with worker.transaction() as tx:
        assert [run.run_id for run in await run_list(tx, RunFilter(), limit=10)] == [run_id]


async def test_no_tenant_reads_another_ones(worker: HandWorker, database: Database, other_tenant: UUID) -> None:
    run_id = await complete(worker, "echo", LARGE)
    async with worker.transaction() as tx:
        row = await tx.fetch_one(SQL["digest"], run_id=run_id)
        assert row is not None
        key: BlobKey = (run_id, row["output_digest"])
        assert set(await POSTGRES_BLOBS.get(tx, [key])) == {key}
    async with database.transaction(other_tenant) as tx:
        assert await POSTGRES_BLOBS.get(tx, [key]) == {}
        # Nor can it hide one from its owner: the key begins with the tenant.
        await POSTGRES_BLOBS.put(tx, {key: "mine"})
    assert json.loads((await view_of(worker, run_id)).output or "") == LARGE


async def test_purge_leaves_no_payload(worker: HandWorker, look: Look) -> None:
    run_id = await complete(worker, "chain", LARGE)
    kept = await complete(worker, "chain", LARGE)
    async with worker.transaction() as tx:
        purge = RunPurge(datetime.now(UTC) + timedelta(days=1), limit=1)
        assert (await worker.kernel.dispatch(purge, tx)).run_ids == (run_id,)
    assert await blobs_of(look, run_id) == []
    assert len(await blobs_of(look, kept)) == 1


async def test_the_hard_limit_counts_the_whole_payload(database: Database, tenant: UUID, look: Look) -> None:
    kernel = Kernel(WORKFLOWS, limits=KernelLimits(max_payload_bytes=2 * INLINE_BYTES))
    async with database.transaction(tenant) as tx:
        with pytest.raises(PayloadTooLargeError):
            await kernel.dispatch(RunCreate("echo", text_of(2 * INLINE_BYTES)), tx)
    assert await look("select from tenantry.workflow_blobs where tenant_id = %s", tenant) == []


async def test_a_transaction_that_rolls_back_keeps_nothing(database: Database, tenant: UUID, look: Look) -> None:
    async def undone() -> None:
        async with database.transaction(tenant) as tx:
            run_id = (await Kernel(WORKFLOWS).dispatch(RunCreate("chain", LARGE), tx)).run_id
            assert (await Kernel(WORKFLOWS).bound_to(tx).run_to_completion(run_id)).outcome == "completed"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await undone()
    assert await look("select from tenantry.workflow_blobs where tenant_id = %s", tenant) == []


async def test_the_threshold_is_the_stores(database: Database, tenant: UUID, look: Look) -> None:
    async with database.transaction(tenant) as tx:
        kernel = Kernel(WORKFLOWS, blobs=PostgresBlobs(inline_bytes=10))
        run_id = (await kernel.dispatch(RunCreate("echo", {"words": "more than ten"}), tx)).run_id
        await kernel.bound_to(tx).run_to_completion(run_id)
        other_id = (await kernel.dispatch(RunCreate("echo", [1]), tx)).run_id
        await kernel.bound_to(tx).run_to_completion(other_id)
    assert await blobs_of(look, run_id) == ['{"words":"more than ten"}']
    assert await blobs_of(look, other_id) == []


async def test_another_store_takes_the_place_of_the_table(database: Database, tenant: UUID, look: Look) -> None:
    shelf = Shelf()
    kernel = Kernel(WORKFLOWS, blobs=shelf)
    async with database.transaction(tenant) as tx:
        run_id = (await kernel.dispatch(RunCreate("fan", "more than ten"), tx)).run_id
        assert (await kernel.bound_to(tx).run_to_completion(run_id)).outcome == "completed"
        view = await run_get(tx, run_id, shelf)
    assert view is not None
    assert json.loads(view.output or "") == {"left": {"left": "more than ten"}, "right": "more than ten"}
    assert len(shelf.kept) == 3
    assert await blobs_of(look, run_id) == []


async def test_what_the_store_has_lost_is_said(database: Database, tenant: UUID) -> None:
    async with database.transaction(tenant) as tx:
        run_id = (await Kernel(WORKFLOWS).dispatch(RunCreate("echo", LARGE), tx)).run_id
        view = await run_get(tx, run_id, Shelf())
    assert view is not None
    assert (view.input, set(view.lost)) == (None, {"input"})
