"""The check of a process's login at its start: every way past the policies is refused by name."""

from collections.abc import Iterator

import psycopg
import pytest

from tenancy import Database, DatabaseSettings, UnsafeRoleError
from tests.support.environment import Cluster, DatabaseUrls, default_version

LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
# How a login is spoilt, and the words that its refusal has to hold.
UNSAFE = {
    "superuser": ("alter role spoilt superuser", "superuser"),
    "bypass": ("alter role spoilt bypassrls", "BYPASSRLS"),
    "owner": ("grant tenantry_owner to spoilt", "owner"),
    "owner-by-detour": ("grant tenantry_owner to detour; grant detour to spoilt", "owner"),
    "owner-of-one-table": ("alter table tenantry.audit_log owner to spoilt", "owner"),
    "superuser-by-membership": ("alter role detour superuser; grant detour to spoilt", "superuser"),
    "bypass-by-membership": ("alter role detour bypassrls; grant detour to spoilt", "BYPASSRLS"),
    "inherits-tenant": ("alter role spoilt inherit; grant tenantry_tenant to spoilt", "tenantry_tenant"),
    "inherits-scheduler": ("alter role spoilt inherit; grant tenantry_scheduler to spoilt", "tenantry_scheduler"),
    "scheduler-by-detour": ("grant tenantry_scheduler to detour; grant detour to spoilt", "tenantry_scheduler"),
}
SINCE_16 = {
    "grant-inherits": ("grant tenantry_scheduler to spoilt with inherit true", "tenantry_scheduler"),
    "owner-without-set": ("grant tenantry_owner to spoilt with inherit false, set false", "owner"),
}


@pytest.fixture(scope="module", params=(15, 18), ids=lambda version: f"postgres{version}")
def urls(request: pytest.FixtureRequest) -> Iterator[DatabaseUrls]:
    is_ours = request.param == default_version()
    cluster: Cluster = request.getfixturevalue("cluster") if is_ours else Cluster(request.param)
    found = cluster.create()
    yield found
    cluster.drop(found) if is_ours else cluster.close()


@pytest.fixture
def root(urls: DatabaseUrls) -> Iterator[psycopg.Connection]:
    """The superuser; the roles `spoilt` and `detour` live as long as the test."""
    with psycopg.connect(urls.direct, autocommit=True) as connection:
        connection.execute("create role spoilt login noinherit")
        connection.execute("create role detour")
        yield connection
        connection.execute("reassign owned by spoilt to tenantry_owner")
        connection.execute("drop owned by spoilt, detour")
        connection.execute("drop role spoilt, detour")


async def _check(url: str) -> None:
    async with Database(DatabaseSettings(url, pool_timeout=10)) as database:
        await database.check_login()


@pytest.mark.parametrize("login", LOGINS)
async def test_our_own_logins_pass(urls: DatabaseUrls, login: str) -> None:
    await _check(urls.straight(login))


async def test_a_callers_login_of_the_documented_kind_passes(urls: DatabaseUrls, root: psycopg.Connection) -> None:
    root.execute("grant tenantry_tenant to spoilt")
    await _check(urls.straight("spoilt"))


@pytest.mark.parametrize("way", [*UNSAFE, *SINCE_16])
async def test_every_way_past_the_policies_is_refused(urls: DatabaseUrls, root: psycopg.Connection, way: str) -> None:
    if way in SINCE_16 and urls.postgres.version < 16:
        pytest.skip("a grant has no options of its own before 16")
    spoil, why = {**UNSAFE, **SINCE_16}[way]
    root.execute(spoil.encode())
    with pytest.raises(UnsafeRoleError, match=why) as refused:
        await _check(urls.straight("spoilt"))
    assert "role spoilt" in str(refused.value)
