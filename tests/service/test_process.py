"""The API as a process: it starts, serves in the pid that was started, stops gracefully and refuses what it must."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest

from service.process import serve_api
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database, UnsafeRoleError
from tests.support import waiting
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process, answers
from tests.support.proxy import LossyProxy
from tests.support.system import free_port
from tests.support.workflows import REGISTRY


def environment(urls: DatabaseUrls, port: int, **changes: str) -> dict[str, str]:
    return {
        "TENANTRY_DATABASE_URL": urls.api,
        "TENANTRY_WORKFLOWS": "tests.support.workflows:REGISTRY",
        "TENANTRY_PORT": str(port),
        **changes,
    }


async def get(port: int, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=15) as client:
        return await client.get(f"http://127.0.0.1:{port}{path}")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_and_stops_with_status_0(database_urls: DatabaseUrls, how: signal.Signals) -> None:
    port = free_port()
    with Process("api", environment=environment(database_urls, port)) as process:
        await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the API is ready")
        answer = await get(port, "/nothing")
        assert (answer.status_code, "server" in answer.headers) == (404, False)
        assert process.stop(how, seconds=10) == 0
        assert "Traceback" not in process.output


async def test_an_idle_connection_does_not_delay_the_stop(database_urls: DatabaseUrls) -> None:
    port = free_port()
    with Process("api", environment=environment(database_urls, port)) as process:
        await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the API is ready")
        async with httpx.AsyncClient() as client:
            await client.get(f"http://127.0.0.1:{port}/healthz")
            started_at = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - started_at < 5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"TENANTRY_PORT": "x"}, "port"),
        ({"TENANTRY_DATABASE_URL": ""}, "database_url"),
        ({"TENANTRY_WORKFLOWS": "no_such_module:registry"}, "workflows"),
        ({"TENANTRY_HEARTBEAT_INTERVAL": "200s"}, "heartbeat_interval"),
    ],
)
def test_a_bad_setting_is_one_line_and_status_1(
    database_urls: DatabaseUrls, changes: dict[str, str], named: str
) -> None:
    with Process("api", environment=environment(database_urls, free_port(), **changes)) as process:
        assert process.wait() == 1
        assert len(process.output.strip().splitlines()) == 1
        assert named in process.output


def test_a_port_that_is_taken_is_one_line_and_status_1(database_urls: DatabaseUrls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Process("api", environment=environment(database_urls, port)) as process:
            assert process.wait() == 1
            assert len(process.output.strip().splitlines()) == 1
            assert str(port) in process.output


def test_a_superusers_login_is_refused(database_urls: DatabaseUrls) -> None:
    unsafe = environment(database_urls, free_port(), TENANTRY_DATABASE_URL=database_urls.direct)
    with Process("api", environment=unsafe) as process:
        assert process.wait() == 1
        assert "superuser" in process.output.splitlines()[-1]
        assert "Traceback" not in process.output


async def test_what_refuses_to_serve_leaves_nothing_running(database_urls: DatabaseUrls) -> None:
    """A pool that still connected kept a refused process from ending."""
    settings = Settings(database_url=database_urls.direct, port=free_port())
    before = asyncio.all_tasks()
    with pytest.raises(UnsafeRoleError, match="superuser"):
        await serve_api(settings, REGISTRY, asyncio.Event())
    assert asyncio.all_tasks() == before


async def test_a_superusers_login_is_refused_as_soon_as_the_database_is_there(database_urls: DatabaseUrls) -> None:
    port = free_port()
    late = LossyProxy(database_urls.direct, free_port())
    unsafe = environment(database_urls, port, TENANTRY_DATABASE_URL=late.url)
    with Process("api", environment=unsafe) as process:
        await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "the API is up")
        async with late:
            assert await asyncio.to_thread(process.wait) == 1
        assert "superuser" in process.output.splitlines()[-1]
        assert "Traceback" not in process.output


async def test_without_a_database_it_stays_up_and_not_ready(database_urls: DatabaseUrls) -> None:
    port = free_port()
    nowhere = f"postgresql://tenantry_api@127.0.0.1:{free_port()}/nothing"
    with Process("api", environment=environment(database_urls, port, TENANTRY_DATABASE_URL=nowhere)) as process:
        await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "the API is up")
        assert (await get(port, "/readyz")).status_code == 503
        assert process.stop(seconds=10) == 0


async def test_without_a_schema_it_stays_up_and_says_what_to_do(empty_database_urls: DatabaseUrls) -> None:
    port = free_port()
    with Process("api", environment=environment(empty_database_urls, port)) as process:
        await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "the API is up")
        # Nobody has asked it yet whether it is ready.
        assert "tenantry db migrate" in process.output
        assert process.stop(seconds=10) == 0


class TestOverSockets:
    """What only a real server shows."""

    @pytest.fixture
    async def port(self, database_urls: DatabaseUrls) -> AsyncIterator[int]:
        port = free_port()
        with Process(
            "api", environment=environment(database_urls, port, TENANTRY_MAX_PAYLOAD_BYTES="100000")
        ) as process:
            await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the API is ready")
            yield port
            assert process.stop(seconds=15) == 0
            assert "Traceback" not in process.output

    @pytest.fixture
    async def client(self, port: int, database: Database, tenant: UUID) -> AsyncIterator[httpx.AsyncClient]:
        async with database.transaction(tenant) as tx:
            key = (await create_key(tx))["key"]
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as connected:
            yield connected

    async def test_an_oversize_body_is_refused_without_reading_it_all(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/runs", json={"workflow": "single", "input": {"n": "x" * 5_000_000}})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")

    async def test_a_stream_that_is_left_does_not_keep_the_process(self, client: httpx.AsyncClient) -> None:
        run = (await client.post("/v1/runs", json={"workflow": "single", "input": {"n": 1}})).json()
        accept = {"Accept": "text/event-stream"}
        async with client.stream("GET", f"/v1/runs/{run['id']}/events", headers=accept) as stream:
            lines = stream.aiter_lines()
            while not (line := await anext(lines)).startswith("id:"):
                pass
            assert line == "id: 1"
        assert (await client.get(f"/v1/runs/{run['id']}")).status_code == 200

    async def test_a_stop_ends_waits_and_streams_at_once(
        self, database_urls: DatabaseUrls, client: httpx.AsyncClient
    ) -> None:
        run = (await client.post("/v1/runs", json={"workflow": "single", "input": {"n": 1}})).json()
        port = free_port()
        with Process("api", environment=environment(database_urls, port)) as process:
            await waiting.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the API is ready")
            base = f"http://127.0.0.1:{port}/v1/runs/{run['id']}"
            waits = asyncio.create_task(client.get(base, params={"wait": 60}))
            stream = asyncio.create_task(client.get(f"{base}/events", headers={"Accept": "text/event-stream"}))
            await asyncio.sleep(0.5)
            started_at = time.monotonic()
            status = await asyncio.to_thread(process.stop, signal.SIGTERM, 15)
            assert (status, time.monotonic() - started_at < 5) == (0, True)
            assert (await waits).status_code == 200
            assert "id: 1" in (await stream).text

    async def test_what_is_no_http_does_not_hurt(self, port: int, client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        await writer.drain()
        assert b"400" in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert (await client.get("/healthz")).status_code == 200
