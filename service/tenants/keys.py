"""API keys: made, listed and revoked inside a transaction of the tenant they belong to."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from kernel.errors import FieldError
from service import keys
from service.tenants.errors import ApiKeyNotFoundError, InvalidTenantError
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
SCOPES: Final = ("runs:read", "runs:write", "signals:write", "schedules:write", "webhooks:write", "keys:admin")
MAX_NAME_LENGTH = 200


async def create_key(
    tx: TenantTransaction,
    *,
    name: str = "key",
    scopes: Sequence[str] = SCOPES,
    expires_at: datetime | None = None,
    expires_in: timedelta | None = None,
) -> dict[str, Any]:
    """Make a key and return `id name scopes created_at expires_at key`; the secret in `key` is never seen again.

    Without `expires_at` (aware) or `expires_in` the key does not expire.

    Raises:
        InvalidTenantError: the name is empty or too long, a scope is unknown, or the expiry is not in the future.
    """
    await _check(tx, name, scopes, expires_at, expires_in)
    ids = await tx.fetch_one(SQL["new_key_id"])
    if ids is None:
        raise LookupError("new_key_id")
    minted = keys.mint(tx.tenant_id, ids["key_id"])
    row = await tx.fetch_one(
        SQL["create_key"],
        key_id=ids["key_id"],
        name=name,
        secret_hash=minted.secret_hash,
        scopes=[scope for scope in SCOPES if scope in scopes],
        expires_at=expires_at,
        expires_in=expires_in,
    )
    if row is None:
        raise LookupError("create_key")
    created = {column: row[column] for column in ("name", "scopes", "created_at", "expires_at")}
    return {"id": row["key_id"], **created, "key": minted.text}


async def list_keys(tx: TenantTransaction, *, limit: int = 50, after: UUID | None = None) -> list[dict[str, Any]]:
    """List up to `limit` keys, oldest first: `id name scopes created_at expires_at revoked_at last_used_at`."""
    rows = await tx.fetch_all(SQL["list_keys"], limit=limit, after=after)
    columns = ("name", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at")
    return [{"id": row["key_id"], **{column: row[column] for column in columns}} for row in rows]


async def revoke_key(tx: TenantTransaction, key_id: UUID) -> None:
    """Revoke the key from this transaction's commit on; a repeat changes nothing.

    Raises:
        ApiKeyNotFoundError: this tenant has no such key.
    """
    if await tx.fetch_one(SQL["revoke_key"], key_id=key_id) is None:
        raise ApiKeyNotFoundError(key_id)


async def _check(
    tx: TenantTransaction,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None,
    expires_in: timedelta | None,
) -> None:
    faults = [
        FieldError(f"/scopes/{index}", "unknown_scope", f"There is no scope {scope!r}; there are {', '.join(SCOPES)}.")
        for index, scope in enumerate(scopes)
        if scope not in SCOPES
    ]
    if not scopes:
        faults.append(FieldError("/scopes", "missing", "A key has at least one scope."))
    if not (0 < len(name) <= MAX_NAME_LENGTH and "\0" not in name):
        faults.append(FieldError("/name", "invalid", f"A name has 1 to {MAX_NAME_LENGTH} characters and no NUL."))
    if expires_in is not None and expires_in <= timedelta():
        faults.append(FieldError("/expires_at", "out_of_range", "A key expires in the future."))
    if expires_at is not None:
        answer = await tx.fetch_one(SQL["expires_in_future"], expires_at=expires_at)
        if answer is None or not answer["future"]:
            faults.append(FieldError("/expires_at", "out_of_range", "A key expires in the future."))
    if faults:
        raise InvalidTenantError(tuple(faults))
