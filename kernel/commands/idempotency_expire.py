"""`idempotency.expire`: keys that have had their time are deleted, never before their run is over."""

from dataclasses import dataclass
from typing import ClassVar

from kernel.command import Command, Scope, handles
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class KeysExpired:
    """How many keys were deleted."""

    expired: int


@dataclass(frozen=True, slots=True)
class IdempotencyExpire(Command[KeysExpired]):
    """Delete up to `limit` expired idempotency keys of this tenant. Never waits for a row."""

    name: ClassVar[str] = "idempotency.expire"
    limit: int = 1000


@handles(IdempotencyExpire)
async def idempotency_expire(command: IdempotencyExpire, tx: TenantTransaction, _scope: Scope) -> KeysExpired:
    """Run the one statement."""
    return KeysExpired(await tx.execute(SQL["expire"], limit=command.limit))
