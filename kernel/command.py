"""What a command is, and how the function that carries it out is found.

A command is a frozen dataclass that names its result: `class RunCancel(Command[RunCancelled])`. Its handler is the one
function decorated with `@handles(RunCancel)`, in the module that carries the command's wire name.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Generic, TypeVar, cast

from kernel.arguments import check_arguments
from kernel.blobs import POSTGRES_BLOBS, BlobStore
from kernel.definition.registry import Registry
from kernel.errors import TransactionRequiredError
from tenancy import TenantTransaction

R = TypeVar("R")
# While a replay runs, its stage's next poll is at least this far ahead: it comes only when the process died.
REPLAY_MARGIN = timedelta(seconds=60)


class Command(Generic[R]):
    """A request to the kernel; `name` is its wire name, `is_read` says that it writes nothing."""

    __slots__ = ()
    name: ClassVar[str]
    is_read: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The figures that semantics.md leaves to settings.

    `job_absolute_timeout` of zero switches the absolute cap off. `replay_margin` is how far ahead each heartbeat keeps
    the next poll of a running replay: at least two rounds of heartbeats. Times are the database's. Without an
    `idempotency_ttl` keys are kept for as long as the database says, for SQL and for everybody: 24 h, or its
    `tenantry.idempotency_ttl`.
    """

    max_payload_bytes: int = 16 * 1024 * 1024
    idempotency_ttl: timedelta | None = None
    stale_lease_threshold: timedelta = timedelta(seconds=300)
    job_absolute_timeout: timedelta = timedelta(hours=1)
    replay_margin: timedelta = REPLAY_MARGIN


@dataclass(frozen=True, slots=True)
class Scope:
    """What a handler knows beside its command and its transaction."""

    registry: Registry
    limits: KernelLimits = field(default_factory=KernelLimits)
    blobs: BlobStore = POSTGRES_BLOBS


C = TypeVar("C")
Handler = Callable[[C, TenantTransaction, Scope], Awaitable[R]]
_handlers: dict[type[object], Callable[[object, TenantTransaction, Scope], Awaitable[object]]] = {}


def handles(command_type: type[Command[R]]) -> Callable[[Handler[C, R]], Handler[C, R]]:
    """Register the decorated function as the one that carries out `command_type`."""

    def register(handler: Handler[C, R]) -> Handler[C, R]:
        if command_type in _handlers:
            message = f"{command_type.__name__} has a handler already"
            raise TypeError(message)
        _handlers[command_type] = cast("Callable[[object, TenantTransaction, Scope], Awaitable[object]]", handler)
        return handler

    return register


def command_types() -> tuple[type[object], ...]:
    """Return every command that has a handler."""
    return tuple(_handlers)


async def carry_out(command: Command[R], tx: TenantTransaction, scope: Scope) -> R:
    """Check the command's arguments, that `tx` is still its tenant's, and run the handler in it.

    Whatever is refused here is refused before the first write, and leaves the transaction usable.

    Raises:
        TypeError: the object is no command of the kernel's.
        TransactionRequiredError: `tx` is a connection and not what was made of it.
        InvalidRequestError: an argument that no database could take; the pointers name the fields.
        KernelError: whatever the command's own documentation names.
    """
    handler = _handler_of(command)
    check_arguments(command)
    await check_transaction(tx, command.name, writes=not command.is_read)
    return await handler(command, tx, scope)


async def check_transaction(tx: TenantTransaction, what: str, *, writes: bool) -> None:
    """Refuse what is no transaction of a tenant's, or not any more; `what` wants it.

    Raises:
        TransactionRequiredError: `tx` is a connection and not what was made of it.
        tenancy.TenancyError: see `TenantTransaction.confirm`.
    """
    if not hasattr(tx, "confirm"):
        message = f"{what} needs what tenancy.bind made of the connection, not a {type(tx).__name__}"
        raise TransactionRequiredError(message)
    await tx.confirm(writes=writes)


def _handler_of(command: Command[R]) -> Callable[[Command[R], TenantTransaction, Scope], Awaitable[R]]:
    try:
        handler = _handlers[type(command)]
    except KeyError:
        message = f"{type(command).__name__} is not a kernel command"
        raise TypeError(message) from None
    return cast("Callable[[Command[R], TenantTransaction, Scope], Awaitable[R]]", handler)
