"""The tree of commands and the one place where errors become a line on stderr and an exit status."""

import os
import sys
import traceback

import typer

from service.cli import databases, inspection, keys, queue, runs, servers, tenants, waits
from service.cli.logs import log_nothing
from service.cli.output import complain
from service.cli.refusals import explain

FAILED = 1
INTERRUPTED = 130

app = typer.Typer(
    name="tenantry",
    help="Multi-tenant durable workflows on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(servers.demo)
app.command("dev")(servers.dev)
app.command("api")(servers.api)
app.command("worker")(servers.worker)
app.add_typer(databases.app, name="db")
app.add_typer(tenants.app, name="tenant")
app.add_typer(keys.app, name="key")
app.add_typer(runs.app, name="run")
app.command("queue")(queue.queue)
app.add_typer(inspection.workflow_app, name="workflow")
app.command("wait")(waits.wait)
app.command("version")(inspection.version)


def main() -> None:
    """Run the command that the arguments name and end the process with its exit status."""
    log_nothing()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader went away; pointing stdout elsewhere keeps the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as error:  # noqa: BLE001 - the outermost frame: what comes here has no other handler
        if os.environ.get("TENANTRY_DEBUG"):
            traceback.print_exc()
        for line in explain(error):
            complain(line)
        sys.exit(FAILED)
