"""What a command is, and how the function that carries it out is found.

A command is a frozen dataclass that names its result: `class RunCancel(Command[RunCancelled])`. Its handler is the one
function decorated with `@handles(RunCancel)`, in the module that carries the command's wire name.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Generic, TypeVar, cast

from kernel.definition.registry import Registry
from tenancy import TenantTransaction

R = TypeVar("R")


class Command(Generic[R]):
    """A request to the kernel; `name` is its wire name."""

    __slots__ = ()
    name: ClassVar[str]


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The figures that semantics.md leaves to settings.

    `job_absolute_timeout` of zero switches the absolute cap off. Times are the database's.
    """

    max_payload_bytes: int = 16 * 1024 * 1024
    idempotency_ttl: timedelta = timedelta(hours=24)
    stale_lease_threshold: timedelta = timedelta(seconds=300)
    job_absolute_timeout: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a handler knows beside its command and its transaction."""

    registry: Registry
    limits: KernelLimits = field(default_factory=KernelLimits)


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


def handler_of(command: Command[R]) -> Callable[[Command[R], TenantTransaction, Scope], Awaitable[R]]:
    """Return the handler of a command.

    Raises:
        TypeError: the object is no command of the kernel's.
    """
    try:
        handler = _handlers[type(command)]
    except KeyError:
        message = f"{type(command).__name__} is not a kernel command"
        raise TypeError(message) from None
    return cast("Callable[[Command[R], TenantTransaction, Scope], Awaitable[R]]", handler)
