"""Runs of the product as data: put in at once, watched from outside, and checked when they are over."""

import time
from collections.abc import Sequence
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tenancy import load_sql
from tests.bench.workflows import THREE, Work
from tests.support.environment import DatabaseUrls

SQL = load_sql(__file__)
LOOK_AGAIN_S = 0.05


class NotVerifiedError(Exception):
    """A result that is not right: no number counts."""


class Spine:
    """A superuser's look at one database of the product; use as a context manager."""

    def __init__(self, urls: DatabaseUrls) -> None:
        self.urls = urls
        self.connection = psycopg.connect(urls.direct, autocommit=True, row_factory=dict_row, prepare_threshold=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def rows(self, name: str, **params: Any) -> list[dict[str, Any]]:
        """Send a section and return its rows."""
        cursor = self.connection.execute(SQL[name].pyformat.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def row(self, name: str, **params: Any) -> dict[str, Any]:
        """Send a section that answers one row."""
        return self.rows(name, **params)[0]

    def add_tenants(self, count: int = 1, prefix: str = "bench-") -> list[UUID]:
        """Create tenants."""
        return [row["tenant_id"] for row in self.rows("add_tenants", count=count, prefix=prefix)]

    def add_runs(self, tenants: Sequence[UUID], count: int, work: Work = THREE) -> None:
        """Add PENDING runs; in a transaction of the caller's they all appear at its COMMIT."""
        defined = work.workflow
        self.rows(
            "add_runs", tenants=list(tenants), count=count, workflow=defined.id, version=defined.definition_version
        )
        self.rows("add_events", tenants=list(tenants))

    def await_end(self, tenants: Sequence[UUID], seconds: float) -> None:
        """Wait until every run of the tenants is over; NotVerifiedError when they are not in time."""
        deadline = time.monotonic() + seconds
        while self.row("is_open", tenants=list(tenants))["is_open"]:
            if time.monotonic() > deadline:
                raise NotVerifiedError(f"runs are still open after {seconds:g} s")
            time.sleep(LOOK_AGAIN_S)

    def verify(self, tenants: Sequence[UUID], count: int, work: Work = THREE, *, at_least: bool = False) -> None:
        """Check that `count` runs completed once with the right output and history; NotVerifiedError otherwise."""
        completed = self.row("span", tenants=list(tenants), first=2**31 - 1)["completed"]
        if completed < count or (completed > count and not at_least):
            raise NotVerifiedError(f"{completed} of {count} runs completed")
        with self.connection.transaction():
            # Nobody has analysed the tables yet, and a plan made for empty ones would take minutes.
            self.rows("by_index")
            wrong = self.row(
                "faults",
                tenants=list(tenants),
                factor=work.factor,
                shift=work.shift,
                stages=work.stages,
                steps=work.steps,
                events=work.events,
            )["wrong"]
        if wrong:
            expected = f"{len(work.events)} events, {work.stages} stages, {work.steps} steps each"
            raise NotVerifiedError(f"{wrong} of {completed} runs are wrong ({expected})")

    def seconds(self, tenants: Sequence[UUID], first: int, *, since: str) -> float:
        """Return how long the first so many runs took, from the earliest `started_at` or `created_at` on."""
        span = self.row("span", tenants=list(tenants), first=first)
        return float((span["completed_at"] - span[since]).total_seconds())
