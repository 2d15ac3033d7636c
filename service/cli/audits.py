"""`tenantry db audit`: every way in which a database's isolation of tenants can leak, for people and for machines."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import psycopg
import typer
from psycopg import IsolationLevel
from rich.text import Text

from service.cli import sarif
from service.cli.operator import read_settings
from service.cli.output import Json, console, print_json, tell
from service.cli.refusals import CommandError
from service.environment import PREFIX, SettingsError
from service.settings import Settings
from tenancy import StatementFailedError
from tenancy.audit import Finding, Scope
from tenancy.audit import audit as find
from tenancy.callers import PsycopgAdapter

DEFAULT = Scope()
_COLOURS = {"error": "bold red", "warning": "yellow"}
_CONNECT_SECONDS = 10


class Format(StrEnum):
    """What the findings are printed as."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


Url = Annotated[str | None, typer.Option(help="The database to audit; by default that of DIRECT_DATABASE_URL.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", help="A role that tenants' requests run as; may be repeated. By default Tenantry's own."),
]
Schemas = Annotated[
    list[str] | None, typer.Option("--schema", help="A schema to audit; may be repeated. By default Tenantry's own.")
]
Column = Annotated[str, typer.Option("--tenant-column", help="The column that says whose a row is.")]
Surrogates = Annotated[
    bool,
    typer.Option(
        "--accept-surrogate-keys",
        help="Accept primary and unique keys without the tenant that are one uuid, identity or serial column.",
    ),
]


def audit(  # noqa: PLR0913 - one parameter an option
    *,
    database_url: Url = None,
    roles: Roles = None,
    schemas: Schemas = None,
    tenant_column: Column = DEFAULT.tenant_column,
    accept_surrogate_keys: Surrogates = False,
    form: Annotated[Format | None, typer.Option("--format", help="How findings are printed.")] = None,
    json: Json = False,
) -> None:
    """List every way in which the isolation of tenants can leak; exit with 1 if there is an error among them.

    Reads only the catalogs, of any database: Tenantry's own schema, or yours with --schema and --role.
    """
    if json and form not in (None, Format.JSON):
        raise typer.BadParameter(f"--json and --format {form} cannot both be", param_hint="--format")
    url = _url(database_url)
    scope = Scope(
        tuple(roles or DEFAULT.roles), tuple(schemas or DEFAULT.schemas), tenant_column, accept_surrogate_keys
    )
    try:
        findings = asyncio.run(_find(url, scope))
    except (psycopg.Error, StatementFailedError) as error:
        # Further lines quote the statement.
        lines = str(error.__cause__ or error).strip().split("\n")
        raise CommandError(f"The database refuses or is away: {lines[0]}") from error
    _print(findings, Format.JSON if json else form or Format.TEXT)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def _url(given: str | None) -> str:
    if given is None:
        return read_settings("direct_database_url").require("direct_database_url")
    try:
        settings = Settings.from_environment({f"{PREFIX}DIRECT_DATABASE_URL": given})
        return settings.require("direct_database_url")
    except SettingsError as error:
        reason = str(error).partition(": ")[2]
        raise typer.BadParameter(reason, param_hint="--database-url") from None


async def _find(url: str, scope: Scope) -> list[Finding]:
    """Audit one moment of the catalogs; the transaction cannot write."""
    async with await psycopg.AsyncConnection.connect(
        url, connect_timeout=_CONNECT_SECONDS, prepare_threshold=None
    ) as connection:
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        await connection.set_read_only(True)
        return await find(PsycopgAdapter(connection, None), scope)


def _print(findings: Sequence[Finding], form: Format) -> None:
    if form is Format.SARIF:
        print_json(sarif.document(findings))
    elif form is Format.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        _print_text(findings)


def _print_text(findings: Sequence[Finding]) -> None:
    """Print three lines a finding: what and where, why, what closes it."""
    screen = console()
    for finding in findings:
        line = Text.assemble((finding.level, _COLOURS[finding.level]), f" {finding.code} ", (finding.object, "bold"))
        for text in (line, Text(f"  {finding.reason}"), Text(f"  fix: {finding.fix}", style="dim")):
            screen.print(text, soft_wrap=True)
    errors = sum(finding.level == "error" for finding in findings)
    tell(f"Errors: {errors}, warnings: {len(findings) - errors}.")
