"""`tenantry key …`: a tenant's API keys, past the API, as the tenant."""

import asyncio
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from kernel.execution.durations import parse_duration
from service import tenants
from service.cli.operator import operator_database, tenant_id_of
from service.cli.output import Json, print_fields, print_json, print_table, tell

app = typer.Typer(help="API keys: create, list, revoke.", no_args_is_help=True)
Tenant = Annotated[str, typer.Option("--tenant", metavar="SLUG", help="The tenant's slug.")]
PAGE = 200


@app.command("create")
def create(
    *,
    tenant: Tenant,
    name: Annotated[str, typer.Option(help="A name for people.")] = "key",
    scope: Annotated[
        list[str] | None, typer.Option(help="What it may do; may be repeated. All scopes by default.")
    ] = None,
    expires_in: Annotated[str | None, typer.Option(metavar="DURATION", help="For example 24h or 90d.")] = None,
    json: Json = False,
) -> None:
    """Make a key and print it: its secret is never seen again."""
    scopes = tuple(scope) if scope else tenants.SCOPES
    for unknown in sorted(set(scopes) - set(tenants.SCOPES)):
        message = f"there is no scope {unknown!r}; there are {', '.join(tenants.SCOPES)}"
        raise typer.BadParameter(message, param_hint="--scope")
    lifetime = _lifetime(expires_in)

    async def run() -> dict[str, Any]:
        async with operator_database() as database:
            tenant_id = await tenant_id_of(database, tenant)
            async with database.transaction(tenant_id) as tx:
                return await tenants.create_key(tx, name=name, scopes=scopes, expires_in=lifetime)

    key = asyncio.run(run())
    if json:
        print_json(key)
    else:
        print_fields(key)
        tell("Keep the key: it is not stored and cannot be shown again.")


@app.command("list")
def list_(*, tenant: Tenant, json: Json = False) -> None:
    """List a tenant's keys, revoked and expired ones included, never their secrets."""

    async def run() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with operator_database() as database:
            tenant_id = await tenant_id_of(database, tenant)
            async with database.transaction(tenant_id) as tx:
                while page := await tenants.list_keys(tx, limit=PAGE, after=found[-1]["id"] if found else None):
                    found += page
        return found

    found = asyncio.run(run())
    if json:
        print_json(found)
    else:
        print_table(found, ("id", "name", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at"))


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `key list` shows it.")],
    *,
    tenant: Tenant,
    json: Json = False,
) -> None:
    """Revoke a key: the next request that uses it is refused."""

    async def run() -> None:
        async with operator_database() as database:
            tenant_id = await tenant_id_of(database, tenant)
            try:
                wanted = UUID(key_id)
            except ValueError:
                raise tenants.ApiKeyNotFoundError(key_id) from None
            async with database.transaction(tenant_id) as tx:
                await tenants.revoke_key(tx, wanted)

    asyncio.run(run())
    if json:
        print_json({"id": key_id, "revoked": True})
    else:
        tell(f"Key {key_id} is revoked.")


def _lifetime(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return timedelta(seconds=parse_duration(text, name="--expires-in", allow_zero=False))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires-in") from None
