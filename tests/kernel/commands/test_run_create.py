"""`run.create` writes a run, its event and its key together, or nothing."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel, Field

from kernel import (
    IdempotencyKeyReusedError,
    InvalidConfigError,
    InvalidInputError,
    InvalidRequestError,
    PayloadTooLargeError,
    RateLimitedError,
    RunCreate,
    TenantSuspendedError,
    UnknownVersionError,
    UnknownWorkflowError,
)
from tenancy import Database
from tests.support import factories
from tests.support.looking import Look
from tests.support.workflows import HandWorker, Number, chain

COUNTS = """
    select (select count(*) from tenantry.workflow_runs where tenant_id = %s) as runs,
           (select count(*) from tenantry.outbox_events where tenant_id = %s) as events,
           (select count(*) from tenantry.idempotency_keys where tenant_id = %s) as keys
"""


async def counts(look: Look, tenant: UUID) -> tuple[int, int, int]:
    (row,) = await look(COUNTS, tenant, tenant, tenant)
    return row["runs"], row["events"], row["keys"]


async def test_writes_a_pending_run_that_is_ready_pinned_and_announced(hand: HandWorker, look: Look) -> None:
    run_id = await hand.create("chain", 7, priority=9, tags=["b", "a", "b"])

    (run,) = await look("select *, input::text as text from tenantry.workflow_runs where run_id = %s", run_id)
    assert run["status"] == "PENDING"
    assert run["ready"]
    assert run["version"] == chain.definition_version
    assert run["text"] == '{"n":7}' or run["input"] == {"n": 7}
    assert run["rank"] == run["available_at"] - timedelta(minutes=9)
    assert run["created_at"] == run["available_at"]
    assert run_id.version == 7
    (event,) = await look("select * from tenantry.outbox_events where run_id = %s", run_id)
    assert (event["sequence"], event["type"]) == (1, "workflow:created")
    tags = await look("select tag from tenantry.workflow_run_tags where run_id = %s order by tag", run_id)
    assert [row["tag"] for row in tags] == ["a", "b"]


async def test_a_model_is_an_input_as_its_json_is(hand: HandWorker, look: Look) -> None:
    class Aliased(BaseModel):
        number: int = Field(alias="n")

    run_id = await hand.create("chain", idempotency_key="k")
    async with hand.transaction() as tx:
        same = await hand.kernel.dispatch(RunCreate("chain", Aliased(n=1), idempotency_key="k"), tx)
        other = await hand.kernel.dispatch(RunCreate("chain", Number(n=2)), tx)
    assert (same.run_id, same.replayed) == (run_id, True)
    (run,) = await look("select input from tenantry.workflow_runs where run_id = %s", other.run_id)
    assert run["input"] == {"n": 2}


async def test_a_model_without_a_json_form_is_refused(hand: HandWorker) -> None:
    class Opaque(BaseModel):
        n: Any

    async with hand.transaction() as tx:
        with pytest.raises(InvalidInputError) as refused:
            await hand.kernel.dispatch(RunCreate("chain", Opaque(n=object())), tx)
    assert [fault.pointer for fault in refused.value.errors] == ["/input"]


async def test_a_run_at_in_the_future_waits_unready(hand: HandWorker, look: Look) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)

    run_id = await hand.create("chain", 1, run_at=at)

    (run,) = await look("select ready, available_at from tenantry.workflow_runs where run_id = %s", run_id)
    assert run == {"ready": False, "available_at": at}
    assert await hand.tick() == ()
    leased = await hand.tick(offset=timedelta(hours=2))
    assert [job.run_id for job in leased] == [run_id]


@pytest.mark.parametrize(
    ("command", "error", "pointer"),
    [
        (RunCreate("nowhere", {"n": 1}), UnknownWorkflowError, "/workflow"),
        (RunCreate("chain", {"n": "x"}), InvalidInputError, "/input/n"),
        (RunCreate("chain", {}), InvalidInputError, "/input/n"),
        (RunCreate("chain", {"n": float("nan")}), InvalidInputError, "/input/n"),
        (RunCreate("chain", {"n": 1, "x": "a\0b"}), InvalidInputError, "/input/x"),
        (RunCreate("chain", {"n": 1, "x": "\ud800"}), InvalidInputError, "/input/x"),
        (RunCreate("chain", {"n": 1}, config={"nobody": {}}), InvalidConfigError, "/config/nobody"),
        (RunCreate("chain", {"n": 1}, priority=10), InvalidRequestError, "/priority"),
        (RunCreate("chain", {"n": 1}, priority=True), InvalidRequestError, "/priority"),
        (RunCreate("chain", {"n": 1}, priority=1.5), InvalidRequestError, "/priority"),  # type: ignore[arg-type]
        (RunCreate("chain", {"n": 1}, tags=["x" * 65]), InvalidRequestError, "/tags/0"),
        (RunCreate("chain", {"n": 1}, tags=["x"] * 21), InvalidRequestError, "/tags"),
        (RunCreate("chain", {"n": 1}, run_at=datetime(2030, 1, 1)), InvalidRequestError, "/run_at"),  # noqa: DTZ001
        (RunCreate("chain", {"n": 1}, idempotency_key=""), InvalidRequestError, "/idempotency_key"),
        (RunCreate("chain", {"n": 1}, idempotency_key="x" * 256), InvalidRequestError, "/idempotency_key"),
        (RunCreate("chain", {"n": 1}, definition_version="sha256-0"), UnknownVersionError, "/definition_version"),
    ],
)
async def test_refuses_bad_requests_with_a_pointer_writes_nothing_and_leaves_the_transaction_usable(
    hand: HandWorker, look: Look, command: RunCreate, error: type[InvalidRequestError], pointer: str
) -> None:
    async with hand.transaction() as tx:
        with pytest.raises(error) as refused:
            await hand.kernel.dispatch(command, tx)
        created = await hand.kernel.dispatch(RunCreate("chain", {"n": 1}), tx)

    assert refused.value.errors[0].pointer == pointer
    assert created.status == "PENDING"
    assert await counts(look, hand.tenant_id) == (1, 1, 0)


async def test_an_oversize_payload_is_refused(hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look) -> None:
    await factories.limit_tenant(superuser, hand.tenant_id, payload_bytes=100)

    async with hand.transaction() as tx:
        with pytest.raises(PayloadTooLargeError):
            await hand.kernel.dispatch(RunCreate("chain", {"n": 1, "pad": "x" * 200}), tx)

    assert await counts(look, hand.tenant_id) == (0, 0, 0)


async def test_a_suspended_tenant_creates_nothing(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    await factories.set_tenant_status(superuser, hand.tenant_id, "suspended")

    with pytest.raises(TenantSuspendedError):
        await hand.create()

    assert await counts(look, hand.tenant_id) == (0, 0, 0)


async def test_a_repeat_with_the_same_key_returns_the_first_run_and_emits_nothing(hand: HandWorker, look: Look) -> None:
    async with hand.transaction() as tx:
        one = await hand.kernel.dispatch(RunCreate("chain", {"n": 1, "m": 2}, idempotency_key="k"), tx)
    async with hand.transaction() as tx:
        two = await hand.kernel.dispatch(RunCreate("chain", {"m": 2, "n": 1}, idempotency_key="k"), tx)

    assert (one.replayed, two.replayed) == (False, True)
    assert one.run_id == two.run_id
    assert await counts(look, hand.tenant_id) == (1, 1, 1)


@pytest.mark.parametrize(
    "other",
    [
        RunCreate("chain", {"n": 2}, idempotency_key="k"),
        RunCreate("chain", {"n": 1.0}, idempotency_key="k"),
        RunCreate("single", {"n": 1}, idempotency_key="k"),
        RunCreate("chain", {"n": 1}, idempotency_key="k", priority=6),
        RunCreate("chain", {"n": 1}, idempotency_key="k", tags=["t"]),
        RunCreate("chain", {"n": 1}, idempotency_key="k", run_at=datetime(2030, 1, 1, tzinfo=UTC)),
    ],
)
async def test_the_same_key_with_another_request_is_refused(hand: HandWorker, look: Look, other: RunCreate) -> None:
    await hand.create("chain", 1, idempotency_key="k")

    async with hand.transaction() as tx:
        with pytest.raises(IdempotencyKeyReusedError):
            await hand.kernel.dispatch(other, tx)

    assert await counts(look, hand.tenant_id) == (1, 1, 1)


async def test_keys_belong_to_their_tenant(database: Database, hand: HandWorker, other_tenant: UUID) -> None:
    mine = await hand.create("chain", 1, idempotency_key="k")

    theirs = await HandWorker(database, other_tenant).create("chain", 2, idempotency_key="k")

    assert mine != theirs


async def test_fifty_at_once_with_one_key_create_one_run(hand: HandWorker, look: Look) -> None:
    async def create() -> tuple[UUID, bool]:
        async with hand.transaction() as tx:
            created = await hand.kernel.dispatch(RunCreate("chain", {"n": 1}, idempotency_key="k"), tx)
        return created.run_id, created.replayed

    answers = await asyncio.gather(*(create() for _ in range(50)))

    assert len({run_id for run_id, _ in answers}) == 1
    assert sum(not replayed for _, replayed in answers) == 1
    assert await counts(look, hand.tenant_id) == (1, 1, 1)


async def test_a_key_is_free_again_when_its_transaction_rolled_back(hand: HandWorker) -> None:
    async def create_and_fail() -> None:
        async with hand.transaction() as tx:
            await hand.kernel.dispatch(RunCreate("chain", {"n": 1}, idempotency_key="k"), tx)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await create_and_fail()

    async with hand.transaction() as tx:
        created = await hand.kernel.dispatch(RunCreate("chain", {"n": 2}, idempotency_key="k"), tx)

    assert not created.replayed


async def test_an_expired_key_is_taken_over_only_when_its_run_is_over(hand: HandWorker) -> None:
    first = await hand.create("single", 1, idempotency_key="k")
    late = timedelta(hours=25)
    async with hand.transaction(late) as tx:
        repeat = await hand.kernel.dispatch(RunCreate("single", {"n": 1}, idempotency_key="k"), tx)
    assert (repeat.run_id, repeat.replayed) == (first, True)
    (job,) = await hand.tick()
    await hand.settle(job)

    async with hand.transaction(late) as tx:
        taken = await hand.kernel.dispatch(RunCreate("single", {"n": 5}, idempotency_key="k"), tx)

    assert taken.run_id != first
    assert not taken.replayed


async def test_pending_runs_and_runs_per_minute_are_bounded_also_at_once(
    hand: HandWorker, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    await factories.limit_tenant(superuser, hand.tenant_id, pending_runs=3)

    async def create(number: int) -> bool:
        try:
            await hand.create("chain", number, idempotency_key=f"k{number}")
        except RateLimitedError as refused:
            return refused.limit != "pending_runs"
        return True

    accepted = await asyncio.gather(*(create(number) for number in range(8)))

    assert sum(accepted) == 3
    # A refused request does not use up its key, and writes nothing else.
    assert await counts(look, hand.tenant_id) == (3, 3, 3)
    await factories.limit_tenant(superuser, hand.tenant_id, pending_runs=None, runs_per_minute=4)
    assert await create(100)
    with pytest.raises(RateLimitedError) as refused:
        await hand.create("chain", 101)
    assert refused.value.limit == "runs_per_minute"
    assert 0 < refused.value.retry_after_s <= 60
