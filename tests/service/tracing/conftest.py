"""A process that traces every run, and a stage set of workflows whose traces are known."""

from collections.abc import Iterator

import pytest

from tests.support.tracing import Tracing, tracing


@pytest.fixture
def traced() -> Iterator[Tracing]:
    """Everything is sampled and kept in memory."""
    with tracing() as opened:
        yield opened
