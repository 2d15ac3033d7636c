"""What a policy's tree tells of how rows pass: read as Postgres keeps it, on the oldest version and the newest."""

from collections.abc import Iterator

import psycopg
import pytest

from tenancy.expressions import passage
from tests.support.environment import Cluster, default_version

SCHEMA = """
create schema read;
create function read.tenant() returns uuid language sql stable return nullif(current_setting('read.tenant', true), '')::uuid;
create function read.sees(uuid) returns boolean language sql return true;
create table read.rows (note text, tenant_id uuid, deleted boolean, other uuid);
create table read.members (who text, tenant_id uuid)
"""
SOUND = [
    "tenant_id = read.tenant()",
    "read.tenant() = tenant_id",
    "tenant_id::text = current_setting('read.tenant')",
    "tenant_id = (select read.tenant())",
    "tenant_id in (select members.tenant_id from read.members where who = current_user)",
    "exists (select from read.members where members.tenant_id = rows.tenant_id)",
    "tenant_id = any (array[read.tenant()])",
    "tenant_id = read.tenant() and (note <> 'x' or note <> 'y')",
    "(note <> 'x' or note <> 'y') and not deleted and tenant_id = read.tenant()",
    "tenant_id = read.tenant() or false",
    "tenant_id = read.tenant() or tenant_id = '00000000-0000-0000-0000-000000000000'",
    "(tenant_id = read.tenant()) is true",
    "not (tenant_id is distinct from read.tenant())",
    "coalesce(tenant_id = read.tenant(), false)",
    "case when deleted then false else tenant_id = read.tenant() end",
    "(tenant_id, note) = (read.tenant(), 'x')",
    "false",
]
LOOSE = {
    "true": "always",
    "not false": "always",
    "1 = 1": "always",
    "tenant_id = tenant_id": "always",
    "tenant_id is not null": "always",
    "tenant_id = read.tenant() or 1 = 1": "always",
    "note = '{VAR :varno 1 :varattno 2 (' and true": "blind",
    "read.tenant() is null": "blind",
    "exists (select from read.members where members.tenant_id = read.tenant())": "blind",
    "tenant_id = read.tenant() or read.tenant() is null": "an OR",
    "(note <> 'x' or note is null) and (current_user = 'boss' or tenant_id = read.tenant())": "an OR",
    "case when current_user = 'boss' then true else tenant_id = read.tenant() end": "a CASE",
    "coalesce(tenant_id = read.tenant(), true)": "a COALESCE",
    "(tenant_id = read.tenant()) is not false": "a test for what is not true",
    "not (tenant_id = read.tenant())": "a NOT",
    "tenant_id = coalesce(read.tenant(), tenant_id)": "a comparison of the row with itself",
    "tenant_id = other": "a comparison of the row with itself",
    "tenant_id is null": "another operator",
    "tenant_id <> read.tenant()": "another operator",
    "tenant_id is distinct from read.tenant()": "another operator",
    "tenant_id <> all (array[read.tenant()])": "another operator",
    "tenant_id between read.tenant() and read.tenant()": "another operator",
    "read.sees(tenant_id)": "a function",
    "uuid_send(tenant_id) = 'x'": "a function",
    "read.sees(tenant_id) or tenant_id = read.tenant()": "a function",
}


@pytest.fixture(scope="module", params=(15, 18), ids=lambda version: f"postgres{version}")
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    is_ours = request.param == default_version()
    cluster: Cluster = request.getfixturevalue("cluster") if is_ours else Cluster(request.param)
    with psycopg.connect(cluster.postgres.url()) as opened:
        opened.execute(SCHEMA.encode())
        yield opened
        opened.rollback()
    if not is_ours:
        cluster.close()


def _ways(connection: psycopg.Connection, expression: str) -> set[str]:
    connection.execute(f"create policy one on read.rows using ({expression})".encode())
    row = connection.execute("select polqual::text from pg_policy where polname = 'one'").fetchone()
    connection.execute("drop policy one on read.rows")
    equalities = connection.execute("select oid::text from pg_operator where oprname = '='").fetchall()
    assert row is not None
    return set(passage(row[0], 2, frozenset(one for (one,) in equalities)).ways)


@pytest.mark.parametrize("expression", SOUND)
def test_rows_pass_by_their_tenant_alone(connection: psycopg.Connection, expression: str) -> None:
    assert _ways(connection, expression) == set()


@pytest.mark.parametrize("expression", LOOSE)
def test_what_else_lets_rows_pass_is_named(connection: psycopg.Connection, expression: str) -> None:
    assert _ways(connection, expression) == {LOOSE[expression]}
