"""The kernel: a function from (the caller's open transaction, a command) to a result.

It never begins, commits, rolls back, makes a savepoint, opens a connection, keeps a timer between commands or takes a
session lock. Who opens the transaction owns it.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar, cast
from uuid import UUID

from kernel import commands
from kernel.arguments import check_arguments
from kernel.blobs import POSTGRES_BLOBS, BlobStore
from kernel.command import Command, KernelLimits, Scope, carry_out
from kernel.commands.job_execute import JobExecute, execute_between
from kernel.completion import RunCompletion, run_to_completion
from kernel.definition.registry import Registry
from kernel.errors import TransactionRequiredError
from tenancy import TenantTransaction

R = TypeVar("R")
TransactionProvider = Callable[[UUID], AbstractAsyncContextManager[TenantTransaction]]
__all__ = ["BoundKernel", "Kernel", "TransactionProvider", "commands"]


class Kernel:
    """Carries out commands for the workflows of a registry.

    A host passes `transactions`, a provider of one transaction a tenant (`Database.transaction`), and may then
    dispatch with a `tenant_id` alone.
    Whoever has a transaction open dispatches with it, or binds the kernel to it. `skip_interactive_transactions`
    says that no provider is ever to be used: each command needs the caller's transaction. `blobs` says which payloads
    are too large for their rows, and keeps them.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        transactions: TransactionProvider | None = None,
        skip_interactive_transactions: bool = False,
        limits: KernelLimits | None = None,
        blobs: BlobStore = POSTGRES_BLOBS,
    ) -> None:
        self.scope = Scope(registry, limits or KernelLimits(), blobs)
        self._transactions = None if skip_interactive_transactions else transactions

    async def dispatch(
        self, command: Command[R], tx: TenantTransaction | None = None, *, tenant_id: UUID | None = None
    ) -> R:
        """Carry out a command in `tx`, or, without one, in transactions of the provider's for `tenant_id`.

        With `tx` every statement runs in it, body and settle of `job.execute` included. A refused command leaves it
        usable; a serialization failure and a deadlock are raised as the driver raised them.

        Raises:
            TransactionRequiredError: neither a transaction nor a provider and a tenant were given, or just a
                connection.
            tenancy.TenancyError: the transaction is over, aborted, read only or bound to another tenant by now.
            KernelError: whatever the command's own documentation names.
        """
        if tx is not None:
            return await carry_out(command, tx, self.scope)
        if self._transactions is None or tenant_id is None:
            message = f"{command.name} needs the caller's transaction, or a provider of transactions and a tenant"
            raise TransactionRequiredError(message)
        provider, tenant = self._transactions, tenant_id
        if isinstance(command, JobExecute):
            check_arguments(command)
            return cast("R", await execute_between(command, lambda: provider(tenant), self.scope))
        async with provider(tenant) as own:
            return await carry_out(command, own, self.scope)

    def bound_to(self, tx: TenantTransaction) -> "BoundKernel":
        """Return this kernel bound to the caller's transaction: its commands need no other argument."""
        return BoundKernel(self.scope, tx)


class BoundKernel:
    """A kernel that does everything in one transaction, which its caller owns."""

    def __init__(self, scope: Scope, tx: TenantTransaction) -> None:
        self.scope = scope
        self._tx = tx

    async def dispatch(self, command: Command[R]) -> R:
        """Carry out a command in the bound transaction."""
        return await carry_out(command, self._tx, self.scope)

    async def run_to_completion(self, run_id: UUID, max_jobs: int = 50) -> RunCompletion:
        """Start a run if it is due and execute what is due of it, at most `max_jobs` jobs, in the bound transaction.

        Bodies run inside it. A retry that is due later is not waited for.

        Raises:
            RunNotFoundError: the tenant has no such run.
        """
        return await run_to_completion(run_id, max_jobs, self._tx, self.scope)
