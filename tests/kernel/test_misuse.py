"""Every way to misuse one's own transaction, on every connection, with many commands: a clear error, and the caller goes on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg
import pytest

import tenancy
from kernel import (
    Command,
    DuePromote,
    IdempotencyExpire,
    IdempotencyKeyReusedError,
    InvalidConfigError,
    InvalidInputError,
    InvalidRequestError,
    JobClaim,
    JobExecute,
    JobNotAvailableError,
    Kernel,
    KernelError,
    KernelLimits,
    LeaseReapStale,
    PayloadTooLargeError,
    RateLimitedError,
    RunCancel,
    RunClaimPending,
    RunCreate,
    RunListVersions,
    RunNotFoundError,
    RunPurge,
    RunReapStuck,
    RunTransition,
    SignalRefusedError,
    StagePollSuspended,
    StepSignal,
    TenantSuspendedError,
    TransactionRequiredError,
    UnknownStageError,
    UnknownVersionError,
    UnknownWorkflowError,
    WorkerTick,
)
from tenancy import (
    DatabaseUnavailableError,
    NoTransactionError,
    ReadOnlyTransactionError,
    StatementFailedError,
    TenantMismatchError,
    TenantTransaction,
    TransactionAbortedError,
)
from tests.support import factories
from tests.support.callers import ROLES, SHAPES, Caller, Shape
from tests.support.environment import DatabaseUrls
from tests.support.looking import Look
from tests.support.workflows import REGISTRY, HandWorker

KERNEL = Kernel(REGISTRY, limits=KernelLimits(max_payload_bytes=2000))
NOBODY = uuid4()
COMMANDS: tuple[Command[Any], ...] = (
    RunCreate("chain", {"n": 1}),
    RunCancel(NOBODY),
    StepSignal(NOBODY, "first", "step"),
    JobExecute(NOBODY, "first"),
    WorkerTick("w", 1),
    RunClaimPending("w"),
    JobClaim("w"),
    LeaseReapStale(),
    RunReapStuck(),
    DuePromote(),
    IdempotencyExpire(),
)
Afterwards = Literal["as it was", "after rollback", "in a new transaction", "not at all"]


@pytest.fixture
async def app_url(database_urls: DatabaseUrls, superuser: psycopg.AsyncConnection) -> str:
    await superuser.execute(ROLES)
    return database_urls.straight("app")


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


Bound = Callable[[], AbstractAsyncContextManager[tuple[Caller, TenantTransaction]]]


@asynccontextmanager
async def bound(shape: Shape, url: str, tenant: UUID) -> AsyncIterator[tuple[Caller, TenantTransaction]]:
    async with shape(url) as caller:
        await caller.begin()
        yield caller, await tenancy.bind(caller.connection, tenant)


@pytest.fixture
def bound_caller(shape: Shape, app_url: str, tenant: UUID) -> Bound:
    return lambda: bound(shape, app_url, tenant)


async def pid_of(superuser: psycopg.AsyncConnection) -> int:
    """Find the server process of the only caller."""
    cursor = await superuser.execute(
        "select pid from pg_stat_activity where usename = 'app' and datname = current_database() and state <> 'idle'"
    )
    ((pid,),) = await cursor.fetchall()
    return int(pid)


# What a caller may do to its transaction once it is bound, given the id of another tenant.


async def commits(caller: Caller, _other: UUID) -> None:
    await caller.commit()


async def rolls_back(caller: Caller, _other: UUID) -> None:
    await caller.rollback()


async def closes(caller: Caller, _other: UUID) -> None:
    await caller.close()


async def goes_on_in_the_next(caller: Caller, _other: UUID) -> None:
    await caller.commit()
    await caller.begin()
    await caller.run("select 1")


async def undoes_the_binding(caller: Caller, _other: UUID) -> None:
    await caller.run("select set_config('tenantry.tenant_id', '', true)")


async def binds_another_itself(caller: Caller, other: UUID) -> None:
    await caller.run(f"select set_config('tenantry.tenant_id', '{other}', true)")


async def binds_nonsense(caller: Caller, _other: UUID) -> None:
    await caller.run("select set_config('tenantry.tenant_id', 'nonsense', true)")


async def fails(caller: Caller, _other: UUID) -> None:
    with pytest.raises(Exception, match="division by zero"):
        await caller.run("select 1 / 0")


async def only_reads(caller: Caller, _other: UUID) -> None:
    await caller.run("set transaction read only")


@dataclass(frozen=True, slots=True)
class Misuse:
    """What the caller does, what every command then says, and how the caller can go on."""

    do: Callable[[Caller, UUID], Awaitable[None]]
    error: type[Exception] | tuple[type[Exception], ...]
    afterwards: Afterwards
    says: str = "."


MISUSES: Mapping[str, Misuse] = {
    "committed": Misuse(commits, NoTransactionError, "in a new transaction"),
    "rolled-back": Misuse(rolls_back, NoTransactionError, "in a new transaction"),
    "closed": Misuse(closes, NoTransactionError, "not at all", "closed"),
    # A session has another connection by then; the others' connection has a transaction, but not this tenant's.
    "next": Misuse(goes_on_in_the_next, (NoTransactionError, TenantMismatchError), "as it was"),
    "unbound": Misuse(undoes_the_binding, TenantMismatchError, "as it was", "no tenant"),
    "other-tenant": Misuse(binds_another_itself, TenantMismatchError, "as it was", "another tenant"),
    "no-tenant-at-all": Misuse(binds_nonsense, TenantMismatchError, "as it was"),
    "aborted": Misuse(fails, TransactionAbortedError, "after rollback", "roll it back"),
    "read-only": Misuse(only_reads, ReadOnlyTransactionError, "as it was", "read only"),
}


@pytest.mark.parametrize("misuse", MISUSES)
async def test_every_command_says_what_is_wrong_and_the_caller_goes_on(
    bound_caller: Bound, misuse: str, other_tenant: UUID, look: Look
) -> None:
    what = MISUSES[misuse]
    note = str(uuid4())
    async with bound_caller() as (caller, tx):
        await what.do(caller, other_tenant)
        for command in COMMANDS:
            with pytest.raises(what.error, match=what.says):
                await KERNEL.dispatch(command, tx)
        with pytest.raises(what.error, match=what.says):
            await KERNEL.bound_to(tx).run_to_completion(NOBODY)
        if misuse == "read-only":
            await KERNEL.dispatch(RunListVersions(), tx)
            await caller.rollback()
            await caller.begin()
        await _go_on(caller, what.afterwards, note)
    kept = await look("select note from public.app_notes where note = %s", note)
    assert len(kept) == (what.afterwards != "not at all")
    assert (
        await look("select 1 from tenantry.workflow_runs where tenant_id in (%s, %s)", tx.tenant_id, other_tenant) == []
    )


async def _go_on(caller: Caller, how: Afterwards, note: str) -> None:
    if how == "not at all":
        return
    if how == "after rollback":
        await caller.rollback()
    if how != "as it was":
        await caller.begin()
    await caller.note(note)
    await caller.commit()


async def test_a_savepoint_that_is_rolled_back_takes_the_binding_along(
    shape: Shape, app_url: str, tenant: UUID, look: Look
) -> None:
    note = str(uuid4())
    async with shape(app_url) as caller:
        await caller.begin()
        await caller.run("savepoint before")
        tx = await tenancy.bind(caller.connection, tenant)
        created = await KERNEL.dispatch(RunCreate("chain", {"n": 1}), tx)
        await caller.run("rollback to savepoint before")
        for command in COMMANDS:
            with pytest.raises(TenantMismatchError):
                await KERNEL.dispatch(command, tx)
        again = await tenancy.bind(caller.connection, tenant)
        assert (await KERNEL.dispatch(RunCancel(created.run_id), again)).status is None
        await caller.note(note)
        await caller.commit()
    assert len(await look("select 1 from public.app_notes where note = %s", note)) == 1


async def test_a_connection_is_no_transaction(shape: Shape, app_url: str, tenant: UUID, look: Look) -> None:
    note = str(uuid4())
    async with bound(shape, app_url, tenant) as (caller, tx):
        for command in COMMANDS:
            with pytest.raises(TransactionRequiredError, match=r"tenancy\.bind"):
                await KERNEL.dispatch(command, caller.connection)
            with pytest.raises(TransactionRequiredError):
                await KERNEL.dispatch(command)
        with pytest.raises(TransactionRequiredError):
            await KERNEL.bound_to(caller.connection).run_to_completion(NOBODY)
        created = await KERNEL.dispatch(RunCreate("chain", {"n": 1}), tx)
        await caller.note(note)
        await caller.commit()
    assert len(await look("select 1 from public.app_notes where note = %s", note)) == 1
    assert len(await look("select 1 from tenantry.workflow_runs where run_id = %s", created.run_id)) == 1


async def test_a_session_that_the_server_ends_is_told_as_such(
    shape: Shape, app_url: str, tenant: UUID, superuser: psycopg.AsyncConnection
) -> None:
    async with bound(shape, app_url, tenant) as (_caller, tx):
        await superuser.execute("select pg_terminate_backend(%s, 5000)", (await pid_of(superuser),))
        # Some drivers hear of it before the next statement: to them the connection is closed already.
        for command in COMMANDS:
            with pytest.raises((DatabaseUnavailableError, NoTransactionError)):
                await KERNEL.dispatch(command, tx)


async def test_a_lock_timeout_of_the_callers_is_told_with_its_code(
    shape: Shape, app_url: str, hand: HandWorker, look: Look
) -> None:
    run_id = await hand.create("chain")
    note = str(uuid4())
    async with hand.transaction() as holder, bound(shape, app_url, hand.tenant_id) as (caller, tx):
        await hand.kernel.dispatch(RunCancel(run_id), holder)
        await caller.run("set local lock_timeout = '20ms'")
        with pytest.raises(StatementFailedError) as refused:
            await KERNEL.dispatch(RunCancel(run_id), tx)
        assert refused.value.sqlstate == "55P03"
        with pytest.raises(TransactionAbortedError):
            await KERNEL.dispatch(RunCancel(run_id), tx)
        await _go_on(caller, "after rollback", note)
    assert len(await look("select 1 from public.app_notes where note = %s", note)) == 1


BAD: Mapping[str, tuple[Callable[[dict[str, UUID]], Command[Any]], type[KernelError]]] = {
    "unknown workflow": (lambda _: RunCreate("nowhere", {}), UnknownWorkflowError),
    "workflow with a NUL": (lambda _: RunCreate("a\0b", {}), UnknownWorkflowError),
    "unknown version": (lambda _: RunCreate("chain", {"n": 1}, definition_version="sha256-0"), UnknownVersionError),
    "bad input": (lambda _: RunCreate("chain", {"n": "x"}), InvalidInputError),
    "input with a NUL": (lambda _: RunCreate("chain", {"n": 1, "a": "\0"}), InvalidInputError),
    "bad config": (lambda _: RunCreate("chain", {"n": 1}, config={"nobody": {}}), InvalidConfigError),
    "large input": (lambda _: RunCreate("chain", {"n": 1, "a": "x" * 3000}), PayloadTooLargeError),
    "bad priority": (lambda _: RunCreate("chain", {"n": 1}, priority=10), InvalidRequestError),
    "naive time": (lambda _: RunCreate("chain", {"n": 1}, run_at=datetime(2030, 1, 1)), InvalidRequestError),  # noqa: DTZ001
    "bad tag": (lambda _: RunCreate("chain", {"n": 1}, tags=["a\0"]), InvalidRequestError),
    "bad key": (lambda _: RunCreate("chain", {"n": 1}, idempotency_key="\ud800"), InvalidRequestError),
    "key of another": (lambda _: RunCreate("chain", {"n": 2}, idempotency_key="taken"), IdempotencyKeyReusedError),
    "cancel no id": (lambda _: RunCancel("1"), InvalidRequestError),  # type: ignore[arg-type]
    "cancel for no text": (lambda ids: RunCancel(ids["leased"], 7), InvalidRequestError),  # type: ignore[arg-type]
    "signal to nobody": (lambda _: StepSignal(NOBODY, "first", "s"), RunNotFoundError),
    "signal to the dead": (lambda ids: StepSignal(ids["over"], "first", "s"), SignalRefusedError),
    "signal nowhere": (lambda ids: StepSignal(ids["leased"], "nowhere", "s"), UnknownStageError),
    "signal with a NUL": (lambda ids: StepSignal(ids["leased"], "first", "s", "\0"), InvalidRequestError),
    "signal to a bad stage": (lambda ids: StepSignal(ids["leased"], "\0", "s"), InvalidRequestError),
    "signal to a bad step": (lambda ids: StepSignal(ids["leased"], "first", ""), InvalidRequestError),
    "large signal": (lambda ids: StepSignal(ids["leased"], "first", "s", "x" * 3000), PayloadTooLargeError),
    "execute what is leased": (lambda ids: JobExecute(ids["leased"], "first"), JobNotAvailableError),
    "execute no stage": (lambda ids: JobExecute(ids["leased"], "a\0"), InvalidRequestError),
    "execute None": (lambda ids: JobExecute(ids["leased"], None), InvalidRequestError),  # type: ignore[arg-type]
    "transition of nobody": (lambda _: RunTransition(NOBODY), RunNotFoundError),
    "tick for fewer than none": (lambda _: WorkerTick("w", -1), InvalidRequestError),
    "tick for too many": (lambda _: WorkerTick("w", 2**31), InvalidRequestError),
    "tick of nobody": (lambda _: WorkerTick("", 1), InvalidRequestError),
    "tick of a surrogate": (lambda _: WorkerTick("\udfff", 1), InvalidRequestError),
    "claim with a NUL": (lambda _: RunClaimPending("a\0"), InvalidRequestError),
    "poll for fewer than none": (lambda _: StagePollSuspended("w", -1), InvalidRequestError),
    "claim fewer than none": (lambda _: JobClaim("w", -1), InvalidRequestError),
    "reap fewer than none": (lambda _: LeaseReapStale(-1), InvalidRequestError),
    "heal after no id": (lambda _: RunReapStuck(after="x"), InvalidRequestError),  # type: ignore[arg-type]
    "purge before a naive time": (lambda _: RunPurge(datetime(2020, 1, 1)), InvalidRequestError),  # noqa: DTZ001
    "purge what runs": (lambda _: RunPurge(datetime.now(UTC), ("RUNNING",)), InvalidRequestError),
    "expire fewer than none": (lambda _: IdempotencyExpire(-1), InvalidRequestError),
}


async def test_after_any_refused_command_the_transaction_is_still_usable(
    shape: Shape, app_url: str, hand: HandWorker, look: Look
) -> None:
    ids = {"leased": await hand.create("chain")}
    await hand.tick()
    ids["over"] = await hand.create("chain")
    async with hand.transaction() as tx:
        await hand.kernel.dispatch(RunCancel(ids["over"]), tx)
    note = str(uuid4())
    async with bound(shape, app_url, hand.tenant_id) as (caller, tx):
        await caller.note(note)
        taken = await KERNEL.dispatch(RunCreate("chain", {"n": 1}, idempotency_key="taken"), tx)
        for name, (command, error) in BAD.items():
            with pytest.raises(error) as refused:
                await KERNEL.dispatch(command(ids), tx)
            assert type(refused.value) is error, name
            assert refused.value.code
        with pytest.raises(InvalidRequestError):
            await KERNEL.bound_to(tx).run_to_completion("1")  # type: ignore[arg-type]
        assert (await KERNEL.dispatch(RunListVersions("a\0"), tx)).versions == ()
        again = await KERNEL.dispatch(RunCreate("chain", {"n": 1}, idempotency_key="taken"), tx)
        assert (again.run_id, again.replayed) == (taken.run_id, True)
        await caller.commit()
    assert len(await look("select 1 from public.app_notes where note = %s", note)) == 1
    rows = await look("select run_id from tenantry.workflow_runs where tenant_id = %s", hand.tenant_id)
    assert {row["run_id"] for row in rows} == {taken.run_id, *ids.values()}


async def test_after_a_limit_or_the_tenants_standing_the_transaction_is_still_usable(
    shape: Shape, app_url: str, tenant: UUID, superuser: psycopg.AsyncConnection, look: Look
) -> None:
    note = str(uuid4())
    await factories.limit_tenant(superuser, tenant, pending_runs=1, payload_bytes=1000)
    async with bound(shape, app_url, tenant) as (caller, tx):
        only = await KERNEL.dispatch(RunCreate("chain", {"n": 1}), tx)
        with pytest.raises(RateLimitedError):
            await KERNEL.dispatch(RunCreate("chain", {"n": 1}, idempotency_key="k"), tx)
        with pytest.raises(PayloadTooLargeError):
            await KERNEL.dispatch(RunCreate("chain", {"n": 1, "a": "x" * 1500}), tx)
        await factories.set_tenant_status(superuser, tenant, "suspended")
        with pytest.raises(TenantSuspendedError):
            await KERNEL.dispatch(RunCreate("chain", {"n": 1}), tx)
        await caller.note(note)
        await caller.commit()
    assert len(await look("select 1 from public.app_notes where note = %s", note)) == 1
    rows = await look("select run_id from tenantry.workflow_runs where tenant_id = %s", tenant)
    assert [row["run_id"] for row in rows] == [only.run_id]
    # A refused request does not use up its key.
    assert await look("select 1 from tenantry.idempotency_keys where tenant_id = %s", tenant) == []


async def test_one_of_our_own_transactions_is_refused_when_it_is_over(hand: HandWorker) -> None:
    async with hand.transaction() as tx:
        run_id = (await KERNEL.dispatch(RunCreate("chain", {"n": 1}), tx)).run_id
    for command in COMMANDS:
        with pytest.raises(NoTransactionError):
            await KERNEL.dispatch(command, tx)
    with pytest.raises(NoTransactionError):
        await tx.send([])
    # Nothing was taken out of the pool for it.
    async with hand.transaction() as own:
        done = await KERNEL.bound_to(own).run_to_completion(run_id)
    assert done.outcome == "completed"
