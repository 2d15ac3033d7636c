"""The harness: a tenant's workflows in a test, which moves the clock and decides how steps end and workers die."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypedDict
from uuid import UUID, uuid4

from typing_extensions import Unpack

from kernel.blobs import POSTGRES_BLOBS, BlobStore
from kernel.command import KernelLimits
from kernel.commands.run_create import RunCreate
from kernel.commands.run_purge import delete_runs
from kernel.definition.registry import Registry
from kernel.definition.workflow import Workflow
from kernel.execution.durations import Duration, parse_duration
from kernel.kernel import Kernel, TransactionProvider
from kernel.locking import lock_run
from kernel.testing.kills import Kill, When
from kernel.testing.run import HarnessRun
from kernel.testing.session import Session
from tenancy import TenantTransaction


class StartOptions(TypedDict, total=False):
    """What `start` takes beside workflow and input, as `RunCreate` does."""

    config: Mapping[str, object]
    priority: int
    run_at: datetime | None
    tags: Sequence[str]
    definition_version: str | None
    idempotency_key: str | None


class Harness:
    """Runs workflows of a registry for one tenant, in a test, in transactions of the database that is given.

    An async context manager: at its end the runs that it started are gone, as `close` says. Where the test has failed
    and they cannot be had either, the test's error is raised, with a note.

    `transactions` opens one for a tenant: `Database.transaction`. `tenant_id` is a fresh one unless given; all that is
    due in it is executed, so give a tenant to one harness at a time and let no worker serve it. `outcome_linger` is
    the worker's setting of that name: None writes each step's outcome by itself, which leaves the most gaps. `blobs`
    keeps what is too large for its row.
    """

    def __init__(  # noqa: PLR0913 - the public signature
        self,
        workflows: Registry | Workflow,
        transactions: TransactionProvider,
        *,
        tenant_id: UUID | None = None,
        limits: KernelLimits | None = None,
        outcome_linger: Duration | None = None,
        blobs: BlobStore = POSTGRES_BLOBS,
    ) -> None:
        registry = workflows if isinstance(workflows, Registry) else Registry([workflows])
        linger_s = None if outcome_linger is None else parse_duration(outcome_linger, name="outcome_linger")
        kernel = Kernel(registry, limits=limits, blobs=blobs)
        self._session = Session(kernel, tenant_id or uuid4(), transactions, linger_s)
        self._run_ids: list[UUID] = []
        self._created: list[UUID] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Runs of this harness are left in the database: {type(failure).__name__}: {failure}")

    async def close(self) -> None:
        """Take the runs that this harness created out of the database, whatever they were at; a repeat does nothing.

        Their bodies under way are told that they are cancelled. Another's run that an idempotency key led to stays, and
        so does all else of the tenant. A run that somebody holds is waited for.
        """
        while self._created:
            run_id = self._created[-1]
            self._session.abort(run_id)
            async with self.transaction() as tx:
                if await lock_run(tx, run_id) is not None:
                    await delete_runs(tx, [run_id])
            self._created.pop()

    @property
    def tenant_id(self) -> UUID:
        """The tenant whose runs these are."""
        return self._session.tenant_id

    @property
    def kernel(self) -> Kernel:
        """The kernel, for commands of the test's own in a `transaction`."""
        return self._session.kernel

    def transaction(self) -> AbstractAsyncContextManager[TenantTransaction]:
        """Open a transaction of the tenant's on the harness's clock."""
        return self._session.transaction()

    async def start(
        self,
        workflow_id: str,
        input: object,  # noqa: A002 - the word of `RunCreate`
        **options: Unpack[StartOptions],
    ) -> HarnessRun:
        """Create a run; nothing of it is executed before `go` or `advance`. `input` is JSON data or a model.

        Raises:
            KernelError: the run is refused, as `RunCreate` says.
        """
        async with self.transaction() as tx:
            created = await self.kernel.dispatch(RunCreate(workflow_id, input, **options), tx)
        self._run_ids.append(created.run_id)
        if not created.replayed:
            self._created.append(created.run_id)
        return HarnessRun(self._session, created.run_id, workflow_id)

    # -- the clock ----------------------------------------------------------------------------------------------------

    async def advance(self, duration: Duration) -> None:
        """Move the engine's clock on; what is due, and what comes due on the way, is done at its time.

        A poll every minute is polled sixty times in an hour. What a dead worker held is taken back when its lease
        lapses.

        Raises:
            ValueError: the duration is none, or a mock does not fit its step.
        """
        session = self._session
        until = session.offset + timedelta(seconds=parse_duration(duration))
        await session.work()
        while (due_in := await session.next_due(self._run_ids)) is not None and session.offset + due_in <= until:
            session.offset += due_in
            await session.work()
        session.offset = until
        await session.work()

    def stand_still(self, duration: Duration) -> None:
        """Move the engine's clock on while no worker is up: what came due waits for `go` or `advance`.

        Raises:
            ValueError: the duration is none.
        """
        self._session.offset += timedelta(seconds=parse_duration(duration))

    # -- the script ---------------------------------------------------------------------------------------------------

    def mock_result(self, stage_id: str, step_id: str, value: object) -> None:
        """Let a step end with a value, as if its function, poll or signal had given it; a sleep ends at once.

        It is recorded like a real one. Decide before the run gets to the step.

        Raises:
            ValueError: no workflow of the harness has that stage.
        """
        self._session.script.result(stage_id, step_id, value)

    def mock_error(self, stage_id: str, step_id: str, error: Exception, *, times: int | None = None) -> None:
        """Let a step raise, in place of its function or at the end of its wait; the retries of a `run` step count.

        With `times` only the next few times: then its function is called again.

        Raises:
            ValueError: no workflow of the harness has that stage, or `times` is less than 1.
        """
        self._session.script.error(stage_id, step_id, error, times)

    def mock_timeout(self, stage_id: str, step_id: str) -> None:
        """Let a `wait_for` or `wait_for_signal` time out when the body comes to it, without moving the clock.

        For a step of another kind `go` raises a ValueError.

        Raises:
            ValueError: no workflow of the harness has that stage.
        """
        self._session.script.timeout(stage_id, step_id)

    def unmock(self, stage_id: str, step_id: str) -> None:
        """Let a step end by itself again.

        Raises:
            ValueError: no workflow of the harness has that stage.
        """
        self._session.script.forget(stage_id, step_id)

    def skip_sleeps(self) -> None:
        """Let every sleep end at once, from now on."""
        self._session.script.are_sleeps_skipped = True

    # -- death --------------------------------------------------------------------------------------------------------

    def kill_before(self, number: int) -> Kill:
        """Kill the worker before its n-th write from now on: what it did since the last one is lost.

        Writes are the moves of steps, settles, and the begin of a stage that has a `when`. The lease stays until the
        clock has moved past it (`limits.stale_lease_threshold`, 5 minutes); so do those of its steps.

        Raises:
            ValueError: the number is less than 1.
        """
        return self._appoint("before", number)

    def kill_after(self, number: int) -> Kill:
        """Kill the worker after its n-th write from now on: it is committed, and the body never hears of it.

        Raises:
            ValueError: the number is less than 1.
        """
        return self._appoint("after", number)

    def gaps(self) -> Iterator[Kill]:
        """Yield a kill for each gap between two writes of the loop's body, until there is none left.

        The body does the same thing each time, with a run of its own; in the last round nothing is killed.

            for gap in harness.gaps():
                run = await harness.start("orders", {"order_id": "o-1"})
                await run.go()
                await harness.advance("10m")
                assert await run.output() == {"total": 3}, gap
        """
        number, is_left = 1, True
        try:
            while is_left:
                for kill in (self.kill_before(number), self.kill_after(number)):
                    self._session.kill = kill
                    yield kill
                    is_left = kill.happened
                    if not is_left:
                        break
                number += 1
        finally:
            self._session.kill = None

    def _appoint(self, when: When, number: int) -> Kill:
        if number < 1:
            message = f"the first write is number 1, not {number}"
            raise ValueError(message)
        self._session.kill = Kill(when, number)
        return self._session.kill
