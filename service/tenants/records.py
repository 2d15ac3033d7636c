"""Tenants and their limits: created, listed, changed, suspended and resumed, each deed with its audit row."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from kernel.errors import FieldError
from service.tenants.errors import InvalidTenantError, TenantDeletingError, TenantExistsError, TenantNotFoundError
from tenancy import Database, RoleTransaction, Row, load_sql

SQL = load_sql(__file__)
OPERATOR: Final = "tenantry_operator"
LIMITS: Final = ("running_jobs", "pending_runs", "runs_per_minute", "payload_bytes")
CREATE_LIMITS: Final = LIMITS[1:]
MAX_LIMIT = 2**31 - 1
MAX_WEIGHT = 1000
MAX_NAME_LENGTH = 200
_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class TenantChanges:
    """What to change about a tenant; what is not given stays.

    `limits` maps some of `running_jobs pending_runs runs_per_minute payload_bytes` to a number, or to None for no
    limit. `retention` of None keeps finished runs for ever.
    """

    limits: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    weight: int | _Unchanged = UNCHANGED
    retention: timedelta | _Unchanged | None = UNCHANGED

    def __post_init__(self) -> None:
        """Refuse what the database would refuse."""
        faults = _limit_faults(self.limits)
        if self.weight is not UNCHANGED and not (_is_whole(self.weight) and 1 <= self.weight <= MAX_WEIGHT):
            faults.append(
                FieldError("/weight", "out_of_range", f"The weight is a whole number from 1 to {MAX_WEIGHT}.")
            )
        if isinstance(self.retention, timedelta) and self.retention <= timedelta():
            faults.append(FieldError("/retention", "out_of_range", "The retention is a positive duration."))
        if faults:
            raise InvalidTenantError(tuple(faults))


async def create_tenant(
    database: Database, slug: str, name: str | None = None, limits: Mapping[str, int | None] | None = None
) -> dict[str, Any]:
    """Create an active tenant and answer it as `get_tenant` does; the name defaults to the slug.

    Raises:
        InvalidTenantError: the slug, the name or a limit is unacceptable.
        TenantExistsError: the slug is taken.
    """
    changes = _checked_creation(slug, name, limits or {})
    async with database.role_transaction(OPERATOR) as tx:
        created = await tx.fetch_one(SQL["create_tenant"], slug=slug, name=slug if name is None else name)
        if created is None:
            raise TenantExistsError(slug)
        tenant_id: UUID = created["tenant_id"]
        await _write_changes(tx, tenant_id, changes)
        tenant = await _read_one(tx, tenant_id=tenant_id)
        await record_deed(tx, tenant_id, "tenant.created", {"slug": slug, "limits": dict(changes.limits)})
    return tenant


async def list_tenants(database: Database, *, limit: int = 50, after: UUID | None = None) -> list[dict[str, Any]]:
    """List up to `limit` tenants in the order they were created, from the one behind `after`."""
    async with database.role_transaction(OPERATOR) as tx:
        rows = await tx.fetch_all(SQL["get_tenants"], tenant_id=None, slug=None, after=after, limit=limit)
    return [_tenant(row) for row in rows]


async def get_tenant(database: Database, tenant_id: UUID) -> dict[str, Any]:
    """Return the tenant: `id slug name status weight retention limits created_at`; `retention` in seconds or None.

    Raises:
        TenantNotFoundError: there is none of this id.
    """
    async with database.role_transaction(OPERATOR) as tx:
        return await _read_one(tx, tenant_id=tenant_id)


async def find_tenant(database: Database, slug: str) -> dict[str, Any]:
    """Return the tenant of this slug, as `get_tenant` does.

    Raises:
        TenantNotFoundError: there is none.
    """
    async with database.role_transaction(OPERATOR) as tx:
        return await _read_one(tx, slug=slug)


async def update_tenant(database: Database, tenant_id: UUID, changes: TenantChanges) -> dict[str, Any]:
    """Change limits, weight or retention and return the tenant as it is then.

    Raises:
        TenantNotFoundError: there is none of this id.
        TenantDeletingError: it is being deleted.
    """
    async with database.role_transaction(OPERATOR) as tx:
        await _lock(tx, tenant_id)
        await _write_changes(tx, tenant_id, changes)
        tenant = await _read_one(tx, tenant_id=tenant_id)
        told = {key: tenant[key] for key in ("limits", "weight", "retention")}
        await record_deed(tx, tenant_id, "tenant.updated", told)
    return tenant


async def suspend_tenant(database: Database, tenant_id: UUID) -> dict[str, Any]:
    """Suspend the tenant: its keys are refused and nothing new is claimed, what runs goes on; a repeat changes nothing.

    Raises:
        TenantNotFoundError, TenantDeletingError: as `update_tenant`.
    """
    return await _set_status(database, tenant_id, "suspended", "tenant.suspended")


async def resume_tenant(database: Database, tenant_id: UUID) -> dict[str, Any]:
    """Make a suspended tenant active again; a repeat changes nothing.

    Raises:
        TenantNotFoundError, TenantDeletingError: as `update_tenant`.
    """
    return await _set_status(database, tenant_id, "active", "tenant.resumed")


async def record_deed(tx: RoleTransaction, tenant_id: UUID, action: str, details: Mapping[str, object]) -> None:
    """Write the audit row, as the tenant, in the operator's transaction; no statement of the operator's can follow."""
    await tx.fetch_all(SQL["become_tenant"], tenant_id=tenant_id)
    await tx.execute(
        SQL["record_deed"], tenant_id=tenant_id, actor="operator", action=action, details=json.dumps(dict(details))
    )


async def _set_status(database: Database, tenant_id: UUID, status: str, action: str) -> dict[str, Any]:
    async with database.role_transaction(OPERATOR) as tx:
        before = await _lock(tx, tenant_id)
        if before != status:
            await tx.execute(SQL["set_status"], tenant_id=tenant_id, status=status)
        tenant = await _read_one(tx, tenant_id=tenant_id)
        if before != status:
            await record_deed(tx, tenant_id, action, {})
    return tenant


async def _lock(tx: RoleTransaction, tenant_id: UUID) -> str:
    row = await tx.fetch_one(SQL["lock_tenant"], tenant_id=tenant_id)
    if row is None:
        raise TenantNotFoundError(tenant_id)
    if row["status"] == "deleting":
        raise TenantDeletingError(row["slug"])
    return str(row["status"])


async def _write_changes(tx: RoleTransaction, tenant_id: UUID, changes: TenantChanges) -> None:
    if changes.weight is not UNCHANGED or changes.retention is not UNCHANGED:
        await tx.execute(
            SQL["set_scheduling"],
            tenant_id=tenant_id,
            change_weight=changes.weight is not UNCHANGED,
            weight=None if changes.weight is UNCHANGED else changes.weight,
            change_retention=changes.retention is not UNCHANGED,
            retention=None if changes.retention is UNCHANGED else changes.retention,
        )
    if "running_jobs" in changes.limits:
        await tx.execute(SQL["set_claim_limits"], tenant_id=tenant_id, running_jobs=changes.limits["running_jobs"])
    if any(limit in changes.limits for limit in CREATE_LIMITS):
        given: dict[str, object] = {limit: changes.limits.get(limit) for limit in CREATE_LIMITS}
        given |= {f"change_{limit}": limit in changes.limits for limit in CREATE_LIMITS}
        await tx.execute(SQL["set_create_limits"], tenant_id=tenant_id, **given)
    if changes.limits:
        await tx.execute(SQL["drop_empty_limits"], tenant_id=tenant_id)


async def _read_one(tx: RoleTransaction, *, tenant_id: UUID | None = None, slug: str | None = None) -> dict[str, Any]:
    row = await tx.fetch_one(SQL["get_tenants"], tenant_id=tenant_id, slug=slug, after=None, limit=1)
    if row is None:
        raise TenantNotFoundError(slug if tenant_id is None else tenant_id)
    return _tenant(row)


def _tenant(row: Row) -> dict[str, Any]:
    retention = row["retention"]
    return {
        "id": row["tenant_id"],
        "slug": row["slug"],
        "name": row["name"],
        "status": row["status"],
        "weight": row["weight"],
        "retention": None if retention is None else retention.total_seconds(),
        "limits": {limit: row[limit] for limit in LIMITS},
        "created_at": row["created_at"],
    }


def _checked_creation(slug: str, name: str | None, limits: Mapping[str, int | None]) -> TenantChanges:
    faults = _limit_faults(limits)
    if not _SLUG.fullmatch(slug):
        text = "A slug is 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end."
        faults.append(FieldError("/slug", "invalid", text))
    if name is not None and not (0 < len(name) <= MAX_NAME_LENGTH and "\0" not in name):
        faults.append(FieldError("/name", "invalid", f"A name has 1 to {MAX_NAME_LENGTH} characters and no NUL."))
    if faults:
        raise InvalidTenantError(tuple(faults))
    return TenantChanges(limits=limits)


def _limit_faults(limits: Mapping[str, int | None]) -> list[FieldError]:
    faults = [
        FieldError(f"/limits/{name}", "unknown_field", f"There is no limit {name!r}.")
        for name in limits
        if name not in LIMITS
    ]
    for name, value in limits.items():
        if name in LIMITS and value is not None and not (_is_whole(value) and 0 <= value <= MAX_LIMIT):
            text = f"The limit {name} is a whole number from 0 to {MAX_LIMIT}, or null."
            faults.append(FieldError(f"/limits/{name}", "out_of_range", text))
    return faults


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
