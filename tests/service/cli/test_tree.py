"""The tree of commands: listed without being loaded, and a branch that is called loads no more than it needs."""

import json
import os
import subprocess
import sys
from inspect import cleandoc

import pytest

from service.cli.tree import BRANCHES, load
from tests.support.system import free_port

LOADED = """
import atexit, json, sys
atexit.register(lambda: sys.stdout.write("\\n" + json.dumps(sorted(sys.modules))))
from service.cli import main
main()
"""
RUN = "0190a000-0000-7000-8000-000000000000"
# What costs a client of the API its time, or is none of its business.
HEAVY = frozenset({
    "alembic", "asyncpg", "grpc", "kernel", "litestar", "migrations", "opentelemetry", "psycopg", "sqlalchemy", "tenancy",
    "uvicorn", "uvloop", "watchfiles",
})  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_what_is_listed_of_a_branch_is_what_it_says_itself(name: str) -> None:
    told = cleandoc(load(name).help).partition("\n\n")[0]
    assert BRANCHES[name].help == " ".join(told.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("version",),
        ("queue",),
        ("run", "list", "--help"),
        ("run", "start", "w", "--input", "1"),
        ("run", "list"),
        ("run", "show", RUN),
        ("run", "watch", RUN),
        ("run", "logs", RUN, "--follow"),
        ("run", "signal", RUN, "stage", "step", "--payload", "1"),
        ("wait", "http://127.0.0.1:1/", "--timeout", "1ms"),
    ],
    ids=" ".join,
)
def test_a_client_of_the_api_loads_no_engine_no_database_and_no_server(arguments: tuple[str, ...]) -> None:
    environment = {
        **os.environ,
        "TENANTRY_API_URL": f"http://127.0.0.1:{free_port()}",
        "TENANTRY_API_KEY": "tny_x",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "service.cli.tree" in loaded, done.stderr
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
