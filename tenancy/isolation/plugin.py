"""The pytest plugin: an `Isolation` in a test module becomes one test a table, command and situation.

It does nothing in a project that has none. The catalogs are read when tests are collected, so the database has to be
there by then; the tests are called `module::name::schema.table::command[situation]`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenancy.isolation.suite import Check, Isolation, Suite


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> pytest.Collector | None:
    """Take what is an Isolation, under any name."""
    if not isinstance(obj, Isolation):
        return None
    return IsolationTests.of(collector, name, obj)


class IsolationTests(pytest.Collector):
    """The tests of one Isolation."""

    isolation: Isolation
    _suite: Suite | None = None

    @classmethod
    def of(cls, parent: pytest.Collector, name: str, isolation: Isolation) -> "IsolationTests":
        """Return the collector of an Isolation that a module holds by this name."""
        made: IsolationTests = cls.from_parent(parent, name=name)  # pyright: ignore[reportUnknownMemberType]
        made.isolation = isolation
        return made

    def collect(self) -> Iterator[pytest.Collector]:
        """Read the catalogs and group the checks by what they are about."""
        found: dict[str, list[Check]] = {}
        self._suite = self.isolation.suite()
        for check in self._suite.checks():
            found.setdefault(check.subject, []).append(check)
        for subject, checks in found.items():
            yield SubjectTests.of(self, subject, checks)

    def teardown(self) -> None:
        """Close the connections that the tests shared."""
        if self._suite is not None:
            self._suite.close()


class SubjectTests(pytest.Collector):
    """The tests of one table, or of the role itself."""

    checks: list[Check]

    @classmethod
    def of(cls, parent: pytest.Collector, subject: str, checks: list[Check]) -> "SubjectTests":
        """Return the collector of these checks."""
        made: SubjectTests = cls.from_parent(parent, name=subject)  # pyright: ignore[reportUnknownMemberType]
        made.checks = checks
        return made

    def collect(self) -> Iterator[pytest.Item]:
        """Make a test of each check."""
        for check in self.checks:
            yield IsolationTest.of(self, check)


class IsolationTest(pytest.Item):
    """One check."""

    check: Check

    @classmethod
    def of(cls, parent: pytest.Collector, check: Check) -> "IsolationTest":
        """Return the test of a check."""
        made: IsolationTest = cls.from_parent(parent, name=check.what)  # pyright: ignore[reportUnknownMemberType]
        made.check = check
        return made

    def runtest(self) -> None:
        """Run the check."""
        self.check.run()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:  # noqa: ARG002 - pytest's signature
        """Tell what leaks, without a traceback of ours."""
        if isinstance(excinfo.value, AssertionError):
            return f"{type(excinfo.value).__name__}: {self.check.subject}: {self.check.what}\n{excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the test by what it checks."""
        return self.path, None, f"{self.check.subject}: {self.check.what}"
