"""`tenantry tenant …`: what operators do to tenants, past the API."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer

from service import tenants
from service.cli.operator import operator_database, tenant_id_of
from service.cli.output import Json, print_fields, print_json, print_table, tell
from tenancy import Database

app = typer.Typer(help="Tenants: create, list, suspend, resume, delete, export.", no_args_is_help=True)
Slug = Annotated[str, typer.Argument(metavar="SLUG", help="The tenant's slug.")]
PAGE = 200


@app.command("create")
def create(
    slug: Slug,
    *,
    name: Annotated[str | None, typer.Option(help="A name for people; the slug by default.")] = None,
    json: Json = False,
) -> None:
    """Create a tenant."""

    async def run() -> dict[str, Any]:
        async with operator_database() as database:
            return await tenants.create_tenant(database, slug, name)

    _show(asyncio.run(run()), json=json)


@app.command("list")
def list_(*, json: Json = False) -> None:
    """List all tenants in the order they were created."""

    async def run() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with operator_database() as database:
            while page := await tenants.list_tenants(database, limit=PAGE, after=found[-1]["id"] if found else None):
                found += page
        return found

    found = asyncio.run(run())
    if json:
        print_json(found)
    else:
        print_table(found, ("id", "slug", "name", "status", "weight", "created_at"))


@app.command("suspend")
def suspend(slug: Slug, *, json: Json = False) -> None:
    """Suspend a tenant: its keys are refused, nothing new is started, what runs goes on."""
    _show(_change(slug, tenants.suspend_tenant), json=json)


@app.command("resume")
def resume(slug: Slug, *, json: Json = False) -> None:
    """Make a suspended tenant active again."""
    _show(_change(slug, tenants.resume_tenant), json=json)


@app.command("delete")
def delete(
    slug: Slug,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: delete the tenant with all it owns.")] = False,
    json: Json = False,
) -> None:
    """Delete a tenant and every row it owns."""
    if not yes:
        if not sys.stdin.isatty():
            message = "deleting is for good: say --yes"
            raise typer.BadParameter(message, param_hint="--yes")
        typer.confirm(f"Delete tenant {slug} with all its runs, keys and history?", abort=True, err=True)

    async def run() -> UUID:
        async with operator_database() as database:
            tenant_id = await tenant_id_of(database, slug)
            await tenants.delete_tenant(database, tenant_id)
            return tenant_id

    tenant_id = asyncio.run(run())
    if json:
        print_json({"id": tenant_id, "slug": slug, "deleted": True})
    else:
        tell(f"Tenant {slug} is gone.")


@app.command("export")
def export(slug: Slug, *, json: Json = False) -> None:
    """Write every row of a tenant to stdout, without secrets: JSON Lines, or with --json one array."""

    async def run() -> None:
        opening = b"[" if json else b""
        async with operator_database() as database:
            async for table, row in tenants.export_tenant(database, await tenant_id_of(database, slug)):
                sys.stdout.buffer.write(opening + _line(table, row))
                opening = b"," if json else b"\n"
        sys.stdout.buffer.write(b"]\n" if json else b"\n")
        sys.stdout.flush()

    asyncio.run(run())


def _line(table: str, row: object) -> bytes:
    text = orjson.Fragment(row) if isinstance(row, str) else row
    return orjson.dumps({"table": table, "row": text}, option=orjson.OPT_UTC_Z)


def _change(slug: str, change: Callable[[Database, UUID], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with operator_database() as database:
            return await change(database, await tenant_id_of(database, slug))

    return asyncio.run(run())


def _show(tenant: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(tenant)
    else:
        print_fields({key: value for key, value in tenant.items() if key != "limits"} | tenant["limits"])
