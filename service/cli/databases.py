"""`tenantry db …`: the schema, over the direct connection that nothing else uses, and what a pooler must know."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from sqlalchemy.exc import DBAPIError

from service.cli import audits, distribution
from service.cli.operator import read_settings
from service.cli.output import Json, print_fields, print_json, tell
from service.cli.refusals import CommandError

# Longer ones are cut off by PgBouncer, which then refuses the login.
MAX_PASSWORD_BYTES = 2000

app = typer.Typer(help="The database: migrate, status, audit, distribute, userlist.", no_args_is_help=True)
app.command("audit")(audits.audit)
app.command("distribute")(distribution.distribute)


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


@app.command("userlist")
def userlist(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Holds a file for each login, its password.")],
    *,
    output: Annotated[Path | None, typer.Option(help="The file to write, for its owner and group alone.")] = None,
    json: Json = False,
) -> None:
    """Write PgBouncer's userlist.txt from mounted secrets: each file's name is a login, its text the password."""
    try:
        # Kubernetes keeps what it mounts in hidden folders, and links to it.
        files = sorted(file for file in directory.iterdir() if not file.name.startswith(".") and file.is_file())
        lines = [_userlist_line(file.name, file.read_bytes()) for file in files]
        if not lines:
            message = f"{directory} holds no password"
            raise CommandError(message)
        text = "".join(lines)
        if output is None and not json:
            sys.stdout.write(text)
        elif output is not None:
            _write_private(output, text)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
        raise CommandError(message) from None
    if json:
        print_json({"logins": [file.name for file in files]})


def _userlist_line(login: str, password: bytes) -> str:
    try:
        text = password.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or len(text.encode()) > MAX_PASSWORD_BYTES or any(sign in text for sign in "\0\r\n"):
        message = (
            f"The password of {login} is none that PgBouncer can hold: one line of up to {MAX_PASSWORD_BYTES} bytes"
        )
        raise CommandError(message)
    name, secret = (part.replace('"', '""') for part in (login, text))
    return f'"{name}" "{secret}"\n'


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8") as file:
        file.write(text)


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
