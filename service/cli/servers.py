"""`tenantry api`, `worker`, `dev` and `demo`: the commands that stay."""

import os
import signal
from dataclasses import replace
from typing import Annotated

import typer

from service.cli.logs import log_lines
from service.settings import Settings

Host = Annotated[str | None, typer.Option(help="The address to listen on; TENANTRY_HOST, else 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on; TENANTRY_PORT, else 8000.")]


def api(*, host: Host = None, port: Port = None) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT."""
    _end_well_from_the_start()
    from service.process import run_api  # noqa: PLC0415 - a worker or a CLI call need not load the web framework

    settings = Settings.from_environment(os.environ)
    log_lines(settings.log_format, settings.log_level)
    if host is not None:
        settings = replace(settings, host=host)
    if port is not None:
        settings = replace(settings, port=port)
    raise typer.Exit(run_api(settings))


def worker(
    *,
    processes: Annotated[
        int, typer.Option(min=1, help="How many processes; with one, bodies run in this very one.")
    ] = 1,
) -> None:
    """Execute stages until SIGTERM or SIGINT.

    With more processes than one each is a worker of its own; WORKER_HTTP_PORT is then the first one's, and the others
    take the ports behind it.
    """
    _end_well_from_the_start()
    settings = Settings.from_environment(os.environ)
    log_lines(settings.log_format, settings.log_level)
    if processes == 1:
        from service.worker.process import run_worker  # noqa: PLC0415 - as above

        raise typer.Exit(run_worker(settings))
    from service.cli.processes import run_workers  # noqa: PLC0415 - as above

    raise typer.Exit(run_workers(processes, settings.worker_http_port))


def _end_well_from_the_start() -> None:
    """Make a stop that comes while modules are still being loaded a graceful one too."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def dev(*, host: Host = None, port: Port = None) -> None:
    """Run everything for development: a database of its own, the tenant `dev`, API and worker, reloaded on change.

    WORKFLOWS names your registry; without it the demo's invoice import is served.
    """
    from service.cli.dev import run_dev  # noqa: PLC0415 - as above

    raise typer.Exit(run_dev(host, port))


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="End when the runs have ended.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="Make each stage last 10 seconds.")] = False,
) -> None:
    """Show two tenants importing invoices: a database, an API and a worker of its own, all gone afterwards."""
    from service.demo.run import run_demo  # noqa: PLC0415 - as above

    raise typer.Exit(run_demo(once=once, slow=slow))
