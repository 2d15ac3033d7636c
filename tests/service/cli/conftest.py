"""The command line as users call it, without settings, as an operator, or against a `tenantry dev`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded import temporary_directory
from tests.service.cli.development import WORKFLOWS, Development, start
from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """A directory that `tenantry dev` keeps its data in."""
    with temporary_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def development(state: Path) -> Iterator[Development]:
    """A `tenantry dev` of the module's own, with the workflows of `development.py`."""
    project = state / "project"
    project.mkdir()
    (project / "flows.py").write_text(WORKFLOWS)
    started = start(state, project)
    with started.process:
        yield started
        # Gracefully, or the servers would outlive the test.
        started.process.stop()


@pytest.fixture
def tenantry() -> CommandLine:
    """The command without any setting."""
    return CommandLine({})


@pytest.fixture
def operator(database_urls: DatabaseUrls) -> CommandLine:
    """The command as an operator has it: with the operator's URL and nothing else."""
    return CommandLine({"OPERATOR_DATABASE_URL": database_urls.admin})
