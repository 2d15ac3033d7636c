"""The rendered configuration, in a real PgBouncer: logins by their mounted passwords, whatever characters these hold."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from service.tenants import list_keys
from tenancy import Database, DatabaseUnavailableError
from tests.support.chart import Helm
from tests.support.environment import DatabaseUrls
from tests.support.release import Release


@pytest.fixture(scope="module")
def release(helm: Helm, database_urls: DatabaseUrls) -> Iterator[Release]:
    with Release(helm, database_urls, {}) as opened:
        yield opened


@pytest.mark.parametrize(
    ("end", "name"),
    [("-api", "database_url"), ("-worker-default", "database_url"), ("-worker-default", "dispatcher_database_url")],
)
async def test_a_pod_logs_in_with_the_password_that_is_mounted(release: Release, end: str, name: str) -> None:
    url = release.settings("Deployment", end).require(name)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None) as connection:
        row = await (await connection.execute("select session_user::text")).fetchone()
    assert row == (psycopg.conninfo.conninfo_to_dict(url)["user"],)


async def test_the_api_works_through_it(release: Release) -> None:
    settings = release.settings("Deployment", "-api")
    assert (settings.prepared_statements, settings.log_format) == (False, "json")
    async with Database(settings.api_database()) as database:
        await database.check_login()
        async with database.transaction(uuid4()) as tx:
            assert await list_keys(tx, limit=1) == []


async def test_another_password_is_refused(release: Release, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    settings = release.settings("Deployment", "-api", TENANTRY_DATABASE_PASSWORD_FILE=str(wrong))
    with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|SASL"):
        await psycopg.AsyncConnection.connect(settings.require("database_url"))
    async with Database(settings.api_database()) as database:
        with pytest.raises(DatabaseUnavailableError):
            await database.check_login()
