"""What the servers' logs and `pg_stat_activity` get to see: statements with parameters, never a tenant's values."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.support import waiting
from tests.support.environment import migrate
from tests.support.postgres import Postgres
from tests.support.processes import CHECKOUT, COMMAND, Process, answers
from tests.support.system import free_port

MARK = "payload-that-must-not-show"
LOG_ALL = {"log_statement": "all", "log_parameter_max_length": "0", "log_parameter_max_length_on_error": "0"}
UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
WORKFLOWS = "tests.support.workflows:REGISTRY"


@pytest.fixture(scope="module")
def talkative() -> Iterator[Postgres]:
    """A server that logs every statement's text, and none of the parameters."""
    server = Postgres(settings=LOG_ALL).start()
    migrate(server.url())
    yield server
    server.close()


def _tenantry(server: Postgres, *arguments: str) -> Any:
    done = subprocess.run(
        [COMMAND, *arguments, "--json"],
        cwd=CHECKOUT,
        env={**os.environ, "TENANTRY_OPERATOR_DATABASE_URL": server.url("tenantry_admin")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


async def _use_everything(client: httpx.AsyncClient) -> None:
    started = await client.post(
        "/v1/runs",
        json={"workflow": "chain", "input": {"n": 1}, "tags": [MARK]},
        headers={"Idempotency-Key": MARK},
    )
    assert started.status_code in (201, 202), started.text
    run = started.json()["id"]

    async def is_over() -> bool:
        return (await client.get(f"/v1/runs/{run}")).json()["status"] == "COMPLETED"

    await waiting.until(is_over, "the run completes", seconds=30)
    sleeping = await client.post(
        "/v1/runs", json={"workflow": "chain", "input": {"n": 1}, "run_at": "2999-01-01T00:00:00Z", "tags": [MARK]}
    )
    await client.post(f"/v1/runs/{sleeping.json()['id']}/cancel", json={"reason": MARK})
    for path in (
        "/v1/runs", f"/v1/runs?tag={MARK}&status=COMPLETED&workflow=chain", f"/v1/runs/{run}/events",
        f"/v1/runs/{run}/logs", f"/v1/runs/{run}/annotations", "/v1/queue", "/v1/tenant", "/v1/workflows", "/v1/api-keys",
    ):  # fmt: skip
        assert (await client.get(path)).status_code in (200, 404), path
    made = await client.post("/v1/api-keys", json={"name": MARK, "scopes": ["runs:read"]})
    if made.status_code == 201:
        await client.delete(f"/v1/api-keys/{made.json()['id']}")


async def test_no_statement_of_the_service_holds_a_value(talkative: Postgres) -> None:
    tenant = _tenantry(talkative, "tenant", "create", "slug-that-must-not-show")
    key = _tenantry(talkative, "key", "create", "--tenant", "slug-that-must-not-show")["key"]
    port = free_port()
    ours = {
        "TENANTRY_DATABASE_URL": talkative.url("tenantry_api"),
        "TENANTRY_WORKFLOWS": WORKFLOWS,
        "TENANTRY_PORT": str(port),
    }
    workers = {
        "TENANTRY_DATABASE_URL": talkative.url("tenantry_worker"),
        "TENANTRY_DISPATCHER_DATABASE_URL": talkative.url("tenantry_dispatcher"),
        "TENANTRY_WORKFLOWS": WORKFLOWS,
        "TENANTRY_HEARTBEAT_INTERVAL": "200ms",
        "TENANTRY_MAINTENANCE_INTERVAL": "500ms",
    }
    base = f"http://127.0.0.1:{port}"
    with Process("api", environment=ours) as api, Process("worker", environment=workers) as worker:
        await waiting.until(lambda: answers(f"{base}/readyz"), "the API is ready", seconds=30)
        async with httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=20) as client:
            await _use_everything(client)
        assert (worker.stop(), api.stop()) == (0, 0)
    logged = talkative.log
    assert "tenantry.workflow_runs" in logged
    for value in (tenant["id"], MARK, "slug-that-must-not-show", key):
        assert value not in logged
    # Migrations ran as the superuser; all that came later carries no id at all.
    assert UUID_TEXT.findall(logged) == []


def test_the_check_bites(talkative: Postgres) -> None:
    with psycopg.connect(talkative.url("tenantry_worker"), cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("select %s::text", (MARK,))
    assert MARK in talkative.log
