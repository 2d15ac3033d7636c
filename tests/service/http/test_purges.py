"""Requests about a run that is purged in the same moment: each is answered as if it had come before or after, never halfway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from kernel import Kernel, Registry, RunPurge
from service.settings import Settings
from tenancy import Database, TenantTransaction
from tests.support.purging import erase, tables_of_runs
from tests.support.stagehand import PID
from tests.support.waiting import until_someone_blocked

LARGE = "x" * 300_000


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, max_payload_bytes=1024 * 1024)


@dataclass(frozen=True, slots=True)
class Purger:
    """Purges what is over of the test's tenant."""

    kernel: Kernel
    database: Database
    tenant_id: UUID

    async def purge(self, tx: TenantTransaction) -> set[str]:
        purged = await self.kernel.dispatch(RunPurge(datetime.now(UTC) + timedelta(days=1)), tx)
        return set(map(str, purged.run_ids))

    @asynccontextmanager
    async def purging(self, *run_ids: str) -> AsyncIterator[int]:
        """Purge the runs in a transaction that is open until the end of the block; gives its server process."""
        async with self.database.transaction(self.tenant_id) as tx:
            assert await self.purge(tx) == set(run_ids)
            row = await tx.fetch_one(PID)
            assert row is not None
            yield row["pid"]


@pytest.fixture
def purger(registry: Registry, database: Database, tenant: UUID) -> Purger:
    return Purger(Kernel(registry), database, tenant)


async def ended(client: httpx.AsyncClient, words: str = "words", **headers: str) -> str:
    """Start a run and cancel it; returns its id."""
    body = {"workflow": "anything", "input": {"say": words}, "tags": ["bygone"]}
    answer = await client.post("/v1/runs", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    run_id = str(answer.json()["id"])
    assert (await client.post(f"/v1/runs/{run_id}/cancel")).status_code == 200
    return run_id


async def left_of(superuser: psycopg.AsyncConnection, run_id: str) -> list[str]:
    """Return the tables that still hold something of a run."""
    found: list[str] = []
    tables = await tables_of_runs(superuser)
    assert len(tables) > 10
    for table in tables:
        cursor = await superuser.execute(f"select from tenantry.{table} where run_id = %s".encode(), (run_id,))
        found += [table] * bool(await cursor.fetchall())
    return found


# What is read last of a run that is there: locked, it stops the request where a purge is most unwelcome.
@pytest.mark.parametrize(
    ("below", "table"),
    [
        ("", "workflow_stages"),
        ("/steps", "workflow_steps"),
        ("/events", "outbox_events"),
        ("/events?type=workflow:cancelled", "outbox_events"),
        ("/logs", "workflow_logs"),
        ("/trace", "spans"),
        ("/annotations", "workflow_annotations"),
        ("/progress", "workflow_stages"),
    ],
)
async def test_a_run_that_is_purged_while_it_is_read_is_not_found(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection, below: str, table: str
) -> None:
    run_id = await ended(client)
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        await superuser.execute(f"lock table tenantry.{table}".encode())
        reading = tasks.create_task(client.get(f"/v1/runs/{run_id}{below}"))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        await erase(superuser, run_id)
    assert (reading.result().status_code, reading.result().json()["code"]) == (404, "not_found")


async def test_a_stream_of_a_run_that_is_purged_ends(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
) -> None:
    """Without the event that ends it: whoever comes back for that is told that there is no such run."""
    run_id = await ended(client)
    accept = {"Accept": "text/event-stream"}
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        await superuser.execute("lock table tenantry.outbox_events")
        reading = tasks.create_task(client.get(f"/v1/runs/{run_id}/events", headers=accept))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        await erase(superuser, run_id)
    assert "event:" not in reading.result().text
    assert (await client.get(f"/v1/runs/{run_id}/events", headers=accept)).status_code == 404


async def test_a_list_goes_without_what_is_purged_under_it(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await ended(client)
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        await superuser.execute("lock table tenantry.workflow_run_tags")
        reading = tasks.create_task(client.get("/v1/runs?tag=bygone"))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        await erase(superuser, run_id)
    assert (reading.result().status_code, reading.result().json()["data"]) == (200, [])


@pytest.mark.parametrize(
    ("below", "body"),
    [
        ("cancel", {}),
        ("redrive", {}),
        ("redrive", {"from": {"kind": "start"}}),
        ("signals", {"stage_id": "say", "step_id": "told", "payload": LARGE}),
    ],
)
async def test_what_comes_to_a_run_that_is_being_purged_finds_none_and_leaves_nothing(
    client: httpx.AsyncClient,
    purger: Purger,
    superuser: psycopg.AsyncConnection,
    below: str,
    body: dict[str, Any],
) -> None:
    run_id = await ended(client, LARGE)
    async with asyncio.TaskGroup() as tasks, purger.purging(run_id) as pid:
        headers = {"Idempotency-Key": "again"}
        asking = tasks.create_task(client.post(f"/v1/runs/{run_id}/{below}", json=body, headers=headers))
        await until_someone_blocked(superuser, by=pid)
    assert (asking.result().status_code, asking.result().json()["code"]) == (404, "not_found")
    assert await left_of(superuser, run_id) == []


@pytest.mark.parametrize("below", ["redrive", "cancel"])
async def test_a_purge_leaves_a_run_alone_that_a_request_holds(
    client: httpx.AsyncClient,
    purger: Purger,
    superuser: psycopg.AsyncConnection,
    below: str,
) -> None:
    run_id = await ended(client)
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        # The request has the run's lock, and waits for what it reads next.
        await superuser.execute("lock table tenantry.workflow_stages")
        asking = tasks.create_task(client.post(f"/v1/runs/{run_id}/{below}"))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        async with purger.purging():
            pass
    assert (asking.result().status_code, asking.result().json()["id"]) == (200, run_id)
    assert asking.result().json()["status"] == {"redrive": "RUNNING", "cancel": "CANCELLED"}[below]


async def test_a_redrive_of_many_says_which_was_purged_meanwhile(
    client: httpx.AsyncClient, purger: Purger, superuser: psycopg.AsyncConnection
) -> None:
    run_id = await ended(client)
    body = {"filter": {"status": "CANCELLED"}}
    async with asyncio.TaskGroup() as tasks, purger.purging(run_id) as pid:
        asking = tasks.create_task(client.post("/v1/runs/redrive", json=body))
        await until_someone_blocked(superuser, by=pid)
    answered = asking.result().json()
    assert (asking.result().status_code, answered["matched"], answered["refused"]) == (200, 1, 1)
    assert [(each["run_id"], each["code"]) for each in answered["refusals"]] == [(run_id, "not_found")]


# -- starts -----------------------------------------------------------------------------------------------------------


async def test_a_start_under_the_key_of_a_run_that_is_being_purged_starts_another(
    client: httpx.AsyncClient, purger: Purger, superuser: psycopg.AsyncConnection
) -> None:
    first = await ended(client, **{"Idempotency-Key": "k"})
    body = {"workflow": "anything", "input": {"say": "words"}, "tags": ["bygone"]}
    async with asyncio.TaskGroup() as tasks, purger.purging(first) as pid:
        starting = tasks.create_task(client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"}))
        await until_someone_blocked(superuser, by=pid)
    assert starting.result().status_code == 201
    assert starting.result().json()["id"] != first
    repeat = await client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (repeat.status_code, repeat.json()["id"]) == (200, starting.result().json()["id"])


async def test_a_repeat_whose_run_is_purged_before_it_is_shown_starts_another(
    client: httpx.AsyncClient, superuser: psycopg.AsyncConnection
) -> None:
    first = await ended(client, **{"Idempotency-Key": "k"})
    body = {"workflow": "anything", "input": {"say": "words"}, "tags": ["bygone"]}
    async with asyncio.TaskGroup() as tasks, superuser.transaction():
        # Read with the run, when the key has been found to stand for it.
        await superuser.execute("lock table tenantry.workflow_run_tags")
        starting = tasks.create_task(client.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"}))
        await until_someone_blocked(superuser, by=superuser.info.backend_pid)
        await erase(superuser, first)
    assert (starting.result().status_code, starting.result().json()["status"]) == (201, "PENDING")
    assert starting.result().json()["id"] != first


async def test_a_run_that_is_purged_takes_no_payload_of_another_with_it(
    client: httpx.AsyncClient, purger: Purger, superuser: psycopg.AsyncConnection
) -> None:
    """The very same payload, stored while the purge that deletes it for the other run is under way; and nobody waits."""
    gone = await ended(client, LARGE)
    body = {"workflow": "anything", "input": {"say": LARGE}}
    async with purger.purging(gone):
        started = await client.post("/v1/runs", json=body)
        assert started.status_code == 201
        signal = {"stage_id": "say", "step_id": "told", "payload": {"say": LARGE}}
        assert (await client.post(f"{started.headers['Location']}/signals", json=signal)).status_code == 200
    assert (await client.get(f"/v1/runs/{gone}")).status_code == 404
    assert (await client.get(started.headers["Location"])).json()["input"] == {"say": LARGE}
    (step,) = (await client.get(f"{started.headers['Location']}/steps")).json()["data"]
    assert step["result"] == {"say": LARGE}
