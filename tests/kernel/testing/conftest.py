"""The harness of a test around a body of its own."""

from typing import Any

import pytest

from kernel import (
    KernelLimits,
)
from kernel.testing import Harness
from tenancy import Database
from tests.kernel.testing.plays import Body, Make, play


@pytest.fixture
def make(database: Database) -> Make:
    def made(body: Body, limits: KernelLimits | None = None, outcome_linger: Any = None, **options: Any) -> Harness:
        return Harness(play(body, **options), database.transaction, limits=limits, outcome_linger=outcome_linger)

    return made
