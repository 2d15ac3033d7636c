"""A rolling deploy under load: APIs and workers are told to stop while clients go on, and nobody notices."""

import asyncio
import itertools
import json
from collections import Counter
from contextlib import ExitStack
from uuid import UUID

import httpx

from service.tenants import create_key
from tests.support import waiting
from tests.support.arena import FAST, Arena, started
from tests.support.processes import Process, answers
from tests.support.system import free_port

CLIENTS = 6
RUNS = 180
REPLACED_AFTER = 60
# What a Service does with a request whose server has gone: nothing was answered, the client asks again elsewhere.
GONE = (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Clients:
    """Start runs at whichever API the Service knows, each until it is accepted once; every answer is counted."""

    def __init__(self, key: str, diary: str) -> None:
        self.endpoints: list[str] = []
        self.answers: Counter[int] = Counter()
        self.accepted: set[UUID] = set()
        self._key = key
        self._body = {"workflow": "trio", "input": {"diary": diary, "seconds": 0.1}}
        self._numbers = iter(range(RUNS))

    async def run(self) -> None:
        """Start all the runs, some at a time."""
        async with httpx.AsyncClient(timeout=20) as client, asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._start_runs(client, number))

    async def _start_runs(self, client: httpx.AsyncClient, client_number: int) -> None:
        for number in self._numbers:
            headers = {"Authorization": f"Bearer {self._key}", "Idempotency-Key": f"drain-{number}"}
            for turn in itertools.count(client_number):
                url = self.endpoints[turn % len(self.endpoints)]
                try:
                    answer = await client.post(f"{url}/v1/runs", json=self._body, headers=headers)
                except GONE:
                    continue
                self.answers[answer.status_code] += 1
                self.accepted.add(UUID(answer.json()["id"]))
                break


class Deployment:
    """The processes of a release: started ready, and replaced as Kubernetes replaces pods."""

    def __init__(self, ring: Arena, clients: Clients, stack: ExitStack) -> None:
        self._ring = ring
        self._clients = clients
        self._stack = stack
        self.ports: dict[Process, int] = {}

    async def api(self) -> Process:
        port = free_port()
        environment = {**FAST, "TENANTRY_DATABASE_URL": self._ring.urls.api, "TENANTRY_PORT": str(port)}
        process = self._stack.enter_context(
            Process("api", environment={**environment, "TENANTRY_SHUTDOWN_GRACE": "15s"})
        )
        self.ports[process] = port
        await self._ready(process)
        self._clients.endpoints.append(f"http://127.0.0.1:{port}")
        return process

    async def worker(self) -> Process:
        port = free_port()
        worker = self._ring.worker(worker_http_port=str(port), worker_concurrency="16", shutdown_grace="15s")
        self.ports[self._stack.enter_context(worker)] = port
        await started(worker)
        await self._ready(worker)
        return worker

    async def replace_api(self, old: Process) -> None:
        await self.api()
        # Endpoints forget the pod during preStop, SIGTERM comes after it.
        self._clients.endpoints.remove(f"http://127.0.0.1:{self.ports[old]}")
        assert await asyncio.to_thread(old.stop, seconds=25) == 0, old.output

    async def replace_worker(self, old: Process) -> None:
        await self.worker()
        assert await asyncio.to_thread(old.stop, seconds=25) == 0, old.output

    async def _ready(self, process: Process) -> None:
        url = f"http://127.0.0.1:{self.ports[process]}/readyz"
        await waiting.until(lambda: asyncio.to_thread(answers, url), f"{url} answers", 60)


async def outcomes(port: int) -> dict[str, float]:
    """The figures of a worker's /metrics."""
    async with httpx.AsyncClient(timeout=10) as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


async def test_a_rolling_deploy_under_load_loses_nothing_and_counts_no_failure(ring: Arena) -> None:
    async with ring.database.transaction(ring.tenant_id) as tx:
        key = (await create_key(tx, name="drain"))["key"]
    clients = Clients(key, str(ring.diary))
    with ExitStack() as stack:
        release = Deployment(ring, clients, stack)
        old_api, _, old_worker, other_worker = [
            await release.api(), await release.api(), await release.worker(), await release.worker()
        ]  # fmt: skip
        async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.run())
            await waiting.until(lambda: len(clients.accepted) >= REPLACED_AFTER, "the load is on", 60)
            tasks.create_task(release.replace_api(old_api))
            tasks.create_task(release.replace_worker(old_worker))
        assert await ring.all_over(60) == {"COMPLETED": RUNS}
        figures = await outcomes(release.ports[other_worker])
        outputs = {process.pid: process.output for process in release.ports}
    assert clients.answers.keys() <= {200, 201}
    assert len(clients.accepted) == RUNS
    await ring.assert_settled_once()
    assert {(stage["status"], stage["attempt"]) for stage in await ring.stages()} == {("COMPLETED", 1)}
    events = await ring.events()
    assert (events["stage:completed"], events["stage:retrying"], events["stage:failed"]) == (3 * RUNS, 0, 0)
    told = {name: value for name, value in figures.items() if name.startswith("tenantry_jobs_finished_total")}
    assert told.keys() == {'tenantry_jobs_finished_total{outcome="completed"}'}
    assert figures["tenantry_leases_expired_total"] == 0
    assert [pid for pid, text in outputs.items() if "Traceback" in text or "execution_lost" in text] == []
    for text in outputs.values():
        assert all({"time", "level", "logger", "event"} <= json.loads(line).keys() for line in text.splitlines())
