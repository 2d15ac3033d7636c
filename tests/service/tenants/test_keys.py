"""API keys as rows of their own tenant."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from service import keys, tenants
from tenancy import Database


async def test_a_key_names_its_tenant_and_is_stored_as_a_hash(database: Database, tenant: UUID) -> None:
    async with database.transaction(tenant) as tx:
        made = await tenants.create_key(tx, name="ci", scopes=["runs:write", "runs:read", "runs:read"])
        stored = await tenants.list_keys(tx)
    parsed = keys.parse(made["key"])
    assert parsed is not None
    assert (parsed.tenant_id, parsed.key_id) == (tenant, made["id"])
    assert made["scopes"] == ["runs:read", "runs:write"]
    assert [key["id"] for key in stored] == [made["id"]]
    assert "key" not in stored[0]


async def test_a_lifetime_is_counted_by_the_database(database: Database, tenant: UUID) -> None:
    async with database.transaction(tenant) as tx:
        made = await tenants.create_key(tx, expires_in=timedelta(hours=2))
    assert made["expires_at"] - made["created_at"] == timedelta(hours=2)


@pytest.mark.parametrize(
    ("request_", "pointer"),
    [
        ({"scopes": ["runs:read", "everything"]}, "/scopes/1"),
        ({"scopes": []}, "/scopes"),
        ({"name": ""}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"name": "a\0b"}, "/name"),
        ({"expires_in": timedelta(0)}, "/expires_at"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "/expires_at"),
    ],
)
async def test_an_unacceptable_key_is_refused_and_nothing_is_written(
    database: Database, tenant: UUID, request_: dict[str, object], pointer: str
) -> None:
    async with database.transaction(tenant) as tx:
        with pytest.raises(tenants.InvalidTenantError) as refused:
            await tenants.create_key(tx, **request_)  # type: ignore[arg-type]
        assert await tenants.list_keys(tx) == []
    assert [error.pointer for error in refused.value.errors] == [pointer]


async def test_revoking_twice_keeps_the_first_time(database: Database, tenant: UUID) -> None:
    async with database.transaction(tenant) as tx:
        made = await tenants.create_key(tx)
        await tenants.revoke_key(tx, made["id"])
    async with database.transaction(tenant) as tx:
        (first,) = await tenants.list_keys(tx)
        await tenants.revoke_key(tx, made["id"])
        assert await tenants.list_keys(tx) == [first]
    assert first["revoked_at"] is not None


async def test_another_tenants_key_does_not_exist(database: Database, tenant: UUID, other_tenant: UUID) -> None:
    async with database.transaction(tenant) as tx:
        made = await tenants.create_key(tx)
    async with database.transaction(other_tenant) as tx:
        assert await tenants.list_keys(tx) == []
        for key_id in (made["id"], uuid4()):
            with pytest.raises(tenants.ApiKeyNotFoundError):
                await tenants.revoke_key(tx, key_id)
