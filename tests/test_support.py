"""The servers and fixtures that every other test stands on."""

from uuid import UUID

import psycopg
import pytest

from tenancy import Database, load_sql
from tests.support import factories
from tests.support.environment import Cluster, DatabaseUrls
from tests.support.pgbouncer import PgBouncer
from tests.support.waiting import NeverHappenedError, until, until_blocked, until_someone_blocked

SQL = load_sql(__file__)


async def test_a_module_has_its_own_migrated_database(database: Database, api_database: Database, tenant: UUID) -> None:
    for door in (database, api_database):
        async with door.transaction(tenant) as tx:
            row = await tx.fetch_one(SQL["own_slug"])
        assert row is not None
        assert row["slug"] == f"t-{tenant}"


async def test_logins_go_through_pgbouncer(pgbouncer: PgBouncer, database_urls: DatabaseUrls) -> None:
    assert f":{pgbouncer.port}/" in database_urls.worker
    assert f":{pgbouncer.port}/" not in database_urls.direct


async def test_an_empty_database_has_no_schema(empty_database_urls: DatabaseUrls) -> None:
    async with await psycopg.AsyncConnection.connect(empty_database_urls.direct) as connection:
        row = await (await connection.execute("select to_regnamespace('tenantry')")).fetchone()
    assert row == (None,)


async def test_limits_and_status_of_a_tenant_can_be_set(superuser: psycopg.AsyncConnection, tenant: UUID) -> None:
    await factories.limit_tenant(superuser, tenant, running_jobs=2, pending_runs=5)
    await factories.limit_tenant(superuser, tenant, running_jobs=3)
    await factories.set_tenant_status(superuser, tenant, "suspended")
    rows = await superuser.execute(
        "select kind, running_jobs, pending_runs, status from tenantry.tenant_limits join tenantry.tenants using (tenant_id)"
        " where tenant_id = %s order by kind",
        (tenant,),
    )
    assert await rows.fetchall() == [("claim", 3, None, "suspended"), ("create", None, 5, "suspended")]


async def test_a_blocked_process_is_seen(
    superuser: psycopg.AsyncConnection, database_urls: DatabaseUrls, tenant: UUID
) -> None:
    lock = "select 1 from tenantry.tenants where tenant_id = %s for update"
    first = await psycopg.AsyncConnection.connect(database_urls.direct)
    second = await psycopg.AsyncConnection.connect(database_urls.direct)
    async with first, second:
        await first.execute(lock, (tenant,))
        second.pgconn.send_query_params(lock.replace("%s", "$1").encode(), [str(tenant).encode()])
        await until_blocked(superuser, second.info.backend_pid, by=first.info.backend_pid)
        await until_someone_blocked(superuser, by=first.info.backend_pid)
        await first.rollback()
        second.pgconn.get_result()
        second.pgconn.get_result()
        await second.rollback()


async def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(NeverHappenedError, match="a miracle"):
        await until(lambda: False, "a miracle", seconds=0.05)


def test_own_servers_can_be_stopped_and_come_back(own_cluster: Cluster) -> None:
    door = own_cluster.pgbouncer or own_cluster.postgres
    urls = own_cluster.create()
    own_cluster.postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(urls.direct, connect_timeout=2)
    own_cluster.postgres.start()
    door.restart()
    with psycopg.connect(door.url("tenantry_worker", urls.database), prepare_threshold=None) as connection:
        assert connection.execute("select current_user").fetchone() == ("tenantry_worker",)
