"""`tenantry db …`: the schema, over the direct connection that nothing else uses."""

from typing import Any

import typer

import migrations
from service.cli.operator import read_settings
from service.cli.output import Json, print_fields, print_json, tell

app = typer.Typer(help="The database's schema: migrate, status.", no_args_is_help=True)


@app.command("migrate")
def migrate(*, json: Json = False) -> None:
    """Bring the database of DIRECT_DATABASE_URL to this build's schema; many may do so at once."""
    url = _direct_url()
    before = migrations.status(url)
    migrations.upgrade(url)
    after = migrations.status(url)
    if json:
        print_json(after)
    elif before["current"] == after["current"]:
        tell(f"The schema is at {after['current']} already.")
    else:
        tell(f"The schema is at {after['current']} now.")


@app.command("status")
def status(*, json: Json = False) -> None:
    """Show which revision the database has, which one this build needs, and what is pending."""
    answer: dict[str, Any] = dict(migrations.status(_direct_url()))
    if json:
        print_json(answer)
    else:
        print_fields(answer)


def _direct_url() -> str:
    return read_settings("direct_database_url").require("direct_database_url")
