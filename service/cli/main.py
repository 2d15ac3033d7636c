"""The process: the one place where errors become a line on stderr and an exit status."""

import logging
import os
import sys
import traceback

from service.cli.output import complain
from service.cli.refusals import explain
from service.cli.tree import app

FAILED = 1
INTERRUPTED = 130


def main() -> None:
    """Run the command that the arguments name and end the process with its exit status."""
    _log_nothing()
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


def _log_nothing() -> None:
    """Drop all records: a command says itself what went wrong, in one line. TENANTRY_DEBUG brings them back."""
    if not os.environ.get("TENANTRY_DEBUG"):
        logging.basicConfig(handlers=[logging.NullHandler()], force=True)
