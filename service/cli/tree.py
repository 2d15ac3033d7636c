"""The tree of commands. A branch is imported when it is called; for their listing there is all that it needs here.

To load every branch takes several times as long as to ask the API something does.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a command or a group of them is, `module:attribute` in this package, and what the listing says of it."""

    place: str
    help: str


BRANCHES: Final = {
    "demo": Branch(
        "servers:demo",
        "Show two tenants importing invoices: a database, an API and a worker of its own, all gone afterwards.",
    ),
    "dev": Branch(
        "servers:dev",
        "Run everything for development: a database of its own, the tenant `dev`, API and worker, reloaded on change.",
    ),
    "api": Branch("servers:api", "Serve the HTTP API until SIGTERM or SIGINT."),
    "worker": Branch("servers:worker", "Execute stages until SIGTERM or SIGINT."),
    "db": Branch("databases:app", "The database: migrate, status, audit, distribute, userlist."),
    "tenant": Branch("tenants:app", "Tenants: create, list, suspend, resume, delete, export."),
    "key": Branch("keys:app", "API keys: create, list, revoke."),
    "run": Branch("runs:app", "Runs: start, list, show, steps, logs, trace, watch, cancel, redrive, signal."),
    "queue": Branch(
        "queue:queue", "Show the tenant's queue: depth, age, what runs, and why each of the first runs waits."
    ),
    "workflow": Branch("workflows:app", "Workflows: check."),
    "wait": Branch(
        "waits:wait",
        "Wait until every URL has answered with a 2xx, one after the other; 1 when one of them has not in time.",
    ),
    "version": Branch("version:version", "Print this build's version."),
}


class Tree(TyperGroup):
    """Lists stand-ins for the branches; the one that is called gives way to what it stands for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name of the command that is called, the command, and the arguments left for it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a branch and return it as `typer.main.get_command` does."""
    module, _, attribute = BRANCHES[name].place.partition(":")
    branch = getattr(import_module(f"service.cli.{module}"), attribute)
    if not isinstance(branch, typer.Typer):
        command = branch
        branch = typer.Typer(add_completion=False)
        branch.command(name)(command)
    return typer.main.get_command(branch)


def _stand_in() -> None:
    """Is listed only: `Tree` calls the command itself."""


app = typer.Typer(
    name="tenantry",
    cls=Tree,
    help="Multi-tenant durable workflows on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _name, _branch in BRANCHES.items():
    app.command(_name, help=_branch.help)(_stand_in)
