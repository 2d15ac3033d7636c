"""The command line as users call it: a process, its two streams and its exit status."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import DatabaseUrls

CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs `tenantry` with these settings and no others of ours."""

    settings: Mapping[str, str]

    def __call__(self, *arguments: str, stdin: str = "", **settings: str) -> Answer:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENANTRY_")}
        own = {f"TENANTRY_{name}": value for name, value in {**self.settings, **settings}.items()}
        done = subprocess.run(
            [sys.executable, "-m", "service.cli", *arguments],
            cwd=CHECKOUT,
            env={**inherited, **own},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def tenantry() -> CommandLine:
    """The command without any setting."""
    return CommandLine({})


@pytest.fixture
def operator(database_urls: DatabaseUrls) -> CommandLine:
    """The command as an operator has it: with the operator's URL and nothing else."""
    return CommandLine({"OPERATOR_DATABASE_URL": database_urls.admin})
