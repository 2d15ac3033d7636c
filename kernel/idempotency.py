"""Idempotency keys of commands that act on one run: a repeat is given the answer that the first request was given.

The key is inserted in the command's own transaction, before anything is locked; there is no state "in progress".
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from kernel import payloads
from kernel.errors import FieldError, IdempotencyKeyReusedError
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request under a key; `request` is the JSON text whose `jsonb` form is its fingerprint."""

    command: str
    key: str
    request: str
    run_id: UUID

    @property
    def _named(self) -> dict[str, Any]:
        return {"command": self.command, "key": self.key}

    async def reserve(self, tx: TenantTransaction, ttl: timedelta | None) -> str | None:
        """Take the key and return None, or return the JSON text of what its first request was answered.

        Waits for a concurrent holder's transaction to end. Without a `ttl` the database says how long the key is kept.

        Raises:
            IdempotencyKeyReusedError: the key stands for another request.
        """
        taking = {**self._named, "request": self.request, "run_id": self.run_id, "ttl": ttl}
        while True:
            if await tx.fetch_one(SQL["reserve"], **taking) is not None:
                return None
            found = await tx.fetch_one(SQL["find"], **self._named, request=self.request)
            if found is None:
                # The holder's row went between the two statements: it was purged, or refused and released.
                continue
            if found["expired"]:
                if await tx.fetch_one(SQL["take_over"], **taking, seen_expiry=found["expires_at"]) is not None:
                    return None
                continue
            if not found["same_request"]:
                raise IdempotencyKeyReusedError(self.key)
            return str(found["result"])

    async def keep(self, tx: TenantTransaction, result: str) -> None:
        """Keep the answer, a JSON text, for repeats."""
        await tx.send([(SQL["keep"], {**self._named, "result": result})])

    async def release(self, tx: TenantTransaction) -> None:
        """Give the key back: the request is refused."""
        await tx.send([(SQL["release"], self._named)])


def key_faults(key: str | None) -> list[FieldError]:
    """Return what is wrong with a key, if there is one."""
    if key is None or (1 <= len(key) <= MAX_KEY_LENGTH and payloads.clean_text(key, 4096) == key):
        return []
    message = f"must have 1 to {MAX_KEY_LENGTH} storable characters"
    return [FieldError("/idempotency_key", "invalid_key", message)]
