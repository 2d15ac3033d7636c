"""`tenantry version`: what this build is."""

from importlib.metadata import version as installed_version

import typer

from service.cli.output import Json, print_json


def version(*, json: Json = False) -> None:
    """Print this build's version."""
    number = installed_version("tenantry")
    if json:
        print_json({"version": number})
    else:
        typer.echo(number)
