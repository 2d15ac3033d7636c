"""`tenantry db …`: the schema, over the direct connection that nothing else uses."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import typer
from sqlalchemy.exc import DBAPIError

from service.cli import audits
from service.cli.operator import read_settings
from service.cli.output import Json, print_fields, print_json, tell
from service.cli.refusals import CommandError

app = typer.Typer(help="The database: migrate, status, audit.", no_args_is_help=True)
app.command("audit")(audits.audit)


@app.command("migrate")
def migrate(*, json: Json = False) -> None:
    """Bring the database of DIRECT_DATABASE_URL to this build's schema; many may do so at once."""
    import migrations  # noqa: PLC0415 - Alembic takes long to load, and other commands have no use for it

    url = _direct_url()
    with _explained():
        before = migrations.status(url)
        try:
            migrations.upgrade(url)
        except migrations.RolesMissingError as error:
            (sys.stderr if json else sys.stdout).write(f"{error.script.rstrip()}\n")
            message = "This user may not create the roles: have one that may run the SQL above, then try again."
            raise CommandError(message) from None
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
    import migrations  # noqa: PLC0415 - as above

    with _explained():
        answer: dict[str, Any] = dict(migrations.status(_direct_url()))
    if json:
        print_json(answer)
    else:
        print_fields(answer)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a driver's error into its first line: the others quote the statement, and values with it."""
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        lines = str(cause).strip().split("\n")
        message = f"The database of DIRECT_DATABASE_URL refuses or is away: {lines[0]}"
        raise CommandError(message) from error


def _direct_url() -> str:
    return read_settings("direct_database_url").require("direct_database_url")
