"""`tenantry workflow check`: what this build would leave behind."""

import asyncio
from typing import Any

import typer

from kernel import Registry
from service.cli.operator import read_settings
from service.cli.output import Json, print_json, print_table, tell
from service.settings import load_registry
from tenancy import Database, DatabaseSettings, load_sql

SQL = load_sql(__file__)
app = typer.Typer(help="Workflows: check.", no_args_is_help=True)


@app.callback()
def workflow() -> None:
    """Workflows: check."""


@app.command("check")
def check(*, json: Json = False) -> None:
    """Fail when this build does not serve a workflow or version that has runs which are not over."""
    settings = read_settings("workflows", "dispatcher_database_url")
    registry = load_registry(settings.require("workflows"))

    async def run() -> list[dict[str, Any]]:
        async with (
            Database(DatabaseSettings(settings.require("dispatcher_database_url"), pool_size=1)) as database,
            database.role_transaction("tenantry_scheduler") as tx,
        ):
            return [dict(row) for row in await tx.fetch_all(SQL["active_versions"])]

    stranded = [active for active in asyncio.run(run()) if not _serves(registry, active)]
    shown = [
        {"workflow": item["workflow_id"], "definition_version": item["version"] or None} | _counts(item)
        for item in stranded
    ]
    if json:
        print_json({"stranded": shown})
    elif shown:
        print_table(shown, ("workflow", "definition_version", "runs", "tenants"))
    if shown:
        names = ", ".join(f"{item['workflow']} {item['definition_version'] or '(not pinned)'}" for item in shown)
        tell(f"tenantry: this build would strand active runs of {names}")
        raise typer.Exit(1)
    if not json:
        tell("This build serves every active run.")


def _serves(registry: Registry, active: dict[str, Any]) -> bool:
    """Whether a worker of this build would go on with such runs; one that is not pinned yet takes any version."""
    if active["version"] == "":
        return registry.get(active["workflow_id"]) is not None
    return registry.find(active["workflow_id"], active["version"]) is not None


def _counts(item: dict[str, Any]) -> dict[str, int]:
    return {"runs": item["runs"], "tenants": item["tenants"]}
