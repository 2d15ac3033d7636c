"""`tenantry db distribute`: the schema spread over a Citus cluster by tenant, once a build is ready for one."""

import asyncio
import sys
from typing import Annotated

import psycopg
import typer

from service.cli.operator import read_settings
from service.cli.output import Json, print_json, tell
from service.cli.refusals import CommandError
from tenancy import StatementFailedError, distribution
from tenancy.callers import PsycopgAdapter

_CONNECT_SECONDS = 10
HONESTLY = "Run on no cluster by any test of Tenantry: the statements are parsed, the schema is held against the rules."
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the statements and run none.")]


def distribute(*, dry_run: DryRun = False, json: Json = False) -> None:
    """Spread the schema over the Citus cluster of DIRECT_DATABASE_URL; refused until this build is ready for one."""
    url = read_settings("direct_database_url").require("direct_database_url")
    try:
        statements = asyncio.run(_distribute(url, dry_run=dry_run))
    except (psycopg.Error, StatementFailedError) as error:
        # Further lines quote the statement.
        lines = str(error.__cause__ or error).strip().split("\n")
        message = f"The database of DIRECT_DATABASE_URL refuses or is away: {lines[0]}"
        raise CommandError(message) from error
    if json:
        off = [switch.name for switch in distribution.switched_off()]
        print_json({"statements": statements, "dry_run": dry_run, "switched_off": off})
        return
    if dry_run:
        sys.stdout.write("".join(f"{statement};\n" for statement in statements))
        tell(HONESTLY)
    else:
        tell(f"Statements run: {len(statements)}.")


async def _distribute(url: str, *, dry_run: bool) -> list[str]:
    """Check the rules, then the build, then the server; run the plan in one transaction unless it is only asked for."""
    async with await psycopg.AsyncConnection.connect(
        url, connect_timeout=_CONNECT_SECONDS, prepare_threshold=None
    ) as connection:
        tx = PsycopgAdapter(connection, None)
        broken = await distribution.violations(tx)
        if broken:
            message = f"The schema cannot be distributed by tenant: {'; '.join(map(str, broken))}"
            raise CommandError(message)
        statements = await distribution.plan(tx)
        if dry_run:
            return statements
        off = distribution.switched_off()
        if off:
            needed = "; ".join(f"{switch.name}: {switch.needed}" for switch in off)
            message = f"This build is not ready for a cluster, see --dry-run. Switched off: {needed}"
            raise CommandError(message)
        if not await distribution.has_cluster(tx):
            raise CommandError("The server of DIRECT_DATABASE_URL has no Citus.")
        await distribution.distribute(tx)
        return statements
