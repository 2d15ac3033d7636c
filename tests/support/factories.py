"""Tenants for tests, made past the product's doors by the superuser."""

from uuid import UUID, uuid4

from psycopg import AsyncConnection, sql


async def create_tenant(superuser: AsyncConnection, slug: str | None = None, *, weight: int = 1) -> UUID:
    """Create an active tenant and return its id; the slug is derived from the id when none is given."""
    tenant_id = uuid4()
    name = slug or f"t-{tenant_id}"
    await superuser.execute(
        "insert into tenantry.tenants (tenant_id, slug, name, weight) values (%s, %s, %s, %s)",
        (tenant_id, name, name, weight),
    )
    return tenant_id


async def set_tenant_status(superuser: AsyncConnection, tenant_id: UUID, status: str) -> None:
    """Make a tenant active, suspended or deleting."""
    await superuser.execute("update tenantry.tenants set status = %s where tenant_id = %s", (status, tenant_id))


async def limit_tenant(superuser: AsyncConnection, tenant_id: UUID, **limits: int | None) -> None:
    """Set limits of a tenant by their column names: running_jobs, pending_runs, runs_per_minute, payload_bytes."""
    claim = {name: limit for name, limit in limits.items() if name == "running_jobs"}
    create = {name: limit for name, limit in limits.items() if name != "running_jobs"}
    for kind, columns in (("claim", claim), ("create", create)):
        if columns:
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            news = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in columns)
            values = sql.SQL(", ").join(sql.Literal(limit) for limit in columns.values())
            upsert = sql.SQL(
                "insert into tenantry.tenant_limits (tenant_id, kind, {}) values ({}, {}, {})"
                " on conflict (tenant_id, kind) do update set {}"
            )
            await superuser.execute(upsert.format(names, sql.Literal(tenant_id), sql.Literal(kind), values, news))
