"""A run to end and to redrive."""

import pytest

from tenancy import Database
from tests.kernel.commands.redriven import Play


@pytest.fixture
def play(database: Database) -> Play:
    return Play(database)
