"""The command line: `tenantry …`.

Every command answers for people on a terminal, or with `--json` as exactly one JSON document on stdout. Messages go to
stderr. Exit status: 0 fine, 1 refused or failed, 2 wrong usage. No traceback is ever shown unless TENANTRY_DEBUG is
set.
"""

from service.cli.main import main

__all__ = ["main"]
