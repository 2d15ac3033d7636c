"""A product's sound schema, in a database of its own for each test to spoil, and the suite that is run on it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tenancy.isolation import Check, Isolation
from tests.support.environment import Cluster, DatabaseUrls

SHOP = Path(__file__).with_name("shop.sql").read_bytes()
BIND = ("select set_config('shop.tenant', %(tenant)s, true)",)
MakeSuite = Callable[..., Isolation]


@pytest.fixture(scope="session")
def shop_template(cluster: Cluster) -> Iterator[DatabaseUrls]:
    """A database with the sound schema, and the role that keeps the shop."""
    urls = cluster.create_empty()
    with psycopg.connect(urls.direct) as connection:
        connection.execute("create role shopkeeper login inherit nosuperuser nobypassrls")
        connection.execute(SHOP)
    yield urls
    cluster.drop(urls)
    with psycopg.connect(cluster.postgres.url(), autocommit=True) as connection:
        connection.execute("drop role shopkeeper")


@pytest.fixture
def shop(cluster: Cluster, shop_template: DatabaseUrls) -> Iterator[DatabaseUrls]:
    """A copy of the sound schema, to be spoilt; the role is as it was when the test is over."""
    copy = cluster.urls(f"{shop_template.database}_copy")
    with psycopg.connect(cluster.postgres.url(), autocommit=True) as connection:
        create = sql.SQL("create database {} template {}")
        connection.execute(create.format(sql.Identifier(copy.database), sql.Identifier(shop_template.database)))
    yield copy
    cluster.drop(copy)
    with psycopg.connect(cluster.postgres.url(), autocommit=True) as connection:
        connection.execute("alter role shopkeeper nosuperuser nobypassrls")


@pytest.fixture
def spoil(shop: DatabaseUrls) -> Callable[[str], None]:
    """Run DDL in the copy."""

    def run(ddl: str) -> None:
        with psycopg.connect(shop.direct, autocommit=True) as connection:
            connection.execute(ddl.encode())

    return run


@pytest.fixture
def isolation(shop: DatabaseUrls) -> MakeSuite:
    """Make the suite of the shop, with changes."""
    usual: dict[str, Any] = {
        "superuser_url": shop.direct,
        "database_url": shop.straight("shopkeeper"),
        "login": "shopkeeper",
        "schemas": ["shop"],
        "bind": BIND,
        "shared": {"shop.countries": "the same for everybody"},
        "values": {"shop.countries": {"code": "XX"}},
    }
    return lambda **changes: Isolation(**{**usual, **changes})


def run(isolation: Isolation, subject: str | None = None, *what: str) -> dict[str, AssertionError]:
    """Run the checks of a subject (of all) whose names begin so, and return the failures by `subject::what`."""
    failures: dict[str, AssertionError] = {}
    with closing(isolation.suite()) as suite:
        found = [
            check for check in suite.checks() if subject in (None, check.subject) and check.what.startswith(what or "")
        ]
        assert found, f"there is no check {subject}::{what}"
        for check in found:
            if failure := _failure(check):
                failures[f"{check.subject}::{check.what}"] = failure
    return failures


def _failure(check: Check) -> AssertionError | None:
    try:
        check.run()
    except AssertionError as failure:
        return failure
    return None
