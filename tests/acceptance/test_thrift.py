"""What a run costs on a system that does nothing else, and what the processes weigh."""

import asyncio

import httpx
import psutil

from service.tenants import create_key
from tests.support import waiting
from tests.support.arena import Arena, started
from tests.support.environment import DatabaseUrls
from tests.support.processes import Process, answers
from tests.support.system import free_port


async def test_a_run_on_an_idle_system_takes_few_writing_transactions(ring: Arena, database_urls: DatabaseUrls) -> None:
    port = free_port()
    async with ring.database.transaction(ring.tenant_id) as tx:
        key = (await create_key(tx))["key"]
    api = Process(
        "api",
        environment={
            **database_urls.environment("api"),
            "TENANTRY_PORT": str(port),
            "TENANTRY_WORKFLOWS": "tests.support.stress:REGISTRY",
        },
    )
    headers = {"Authorization": f"Bearer {key}"}
    body = {"workflow": "trio", "input": {}}
    with api, ring.worker(maintenance_interval="60s") as worker:
        await started(worker)
        await waiting.until(lambda: asyncio.to_thread(answers, f"http://127.0.0.1:{port}/readyz"), "the API is up", 30)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
            counts: list[int] = []
            for _ in range(3):
                before = await _next_xid(ring)
                run = (await client.post("/v1/runs", json=body)).json()
                told = (await client.get(f"/v1/runs/{run['id']}", params={"wait": 10})).json()
                assert told["status"] == "COMPLETED"
                counts.append(await _next_xid(ring) - before)
            await asyncio.gather(*(client.post("/v1/runs", json=body) for _ in range(200)))
        await ring.all_over()
        used_mb = psutil.Process(api.pid).memory_info().rss / 1e6
        assert (worker.stop(), api.stop()) == (0, 0)
    assert min(counts) <= 6, counts
    assert used_mb < 200


async def _next_xid(ring: Arena) -> int:
    """The next transaction id that will be given out; only transactions that write take one."""
    (row,) = await ring.rows("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xid")
    return int(row["xid"])
