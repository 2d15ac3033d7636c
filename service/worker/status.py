"""`/healthz`, `/readyz` and `/metrics` of a worker, on a port of its own; no tenant's data, no tenant label.

Healthy means that the loop that finds work goes round, whatever the database does: only a restart would mend a loop
that stands still.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import uvicorn

from service.metrics import Exposition, engine
from service.probes import NotReadyError, ReadinessGate
from service.settings import Settings
from service.worker.host import WorkerHost
from service.worker.metrics import HostMetrics
from tenancy import TenancyError

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
TEXT = "text/plain; charset=utf-8"
# A round waits for its slowest tick: a lock, a statement and a dead network end sooner than this.
STALLED_AFTER_S = 120.0


class StatusApp:
    """The three routes, as an ASGI application."""

    def __init__(self, gate: ReadinessGate, host: WorkerHost, metrics: HostMetrics, stop: asyncio.Event) -> None:
        """`stop` is set when the worker is told to stop: it is not ready then."""
        self._gate = gate
        self._host = host
        self._stop = stop
        self._metrics = metrics
        self._exposition = Exposition(engine, metrics.observe)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._read_metrics}
        route = routes.get(scope["path"])
        status, body = await route() if route is not None else (404, "not found")
        headers = [(b"content-type", TEXT.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    async def _healthz(self) -> tuple[int, str]:
        # Every round looks for lapsed leases a second, failing ones too; before the first there is no database.
        looked_at = self._host.pulse.lapsed_at
        if looked_at and not self._stop.is_set() and monotonic() - looked_at > STALLED_AFTER_S:
            return 503, f"no round has begun for {monotonic() - looked_at:.0f} s"
        return 200, "ok"

    async def _readyz(self) -> tuple[int, str]:
        if self._stop.is_set():
            return 503, "stopping"
        try:
            await self._gate.check()
        except (NotReadyError, TenancyError) as refusal:
            return 503, str(refusal)
        return 200, "ready"

    async def _read_metrics(self) -> tuple[int, str]:
        await self._metrics.refresh()
        return 200, self._exposition.text().decode()


@asynccontextmanager
async def serve_status(
    settings: Settings, gate: ReadinessGate, host: WorkerHost, metrics: HostMetrics, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Serve the status routes beside the host, in this process and loop, until the context ends."""
    assert settings.worker_http_port is not None
    config = uvicorn.Config(
        StatusApp(gate, host, metrics, stop),
        host=settings.host,
        port=settings.worker_http_port,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        try:
            yield
        finally:
            server.should_exit = True


class _Server(uvicorn.Server):
    """A server whose process minds its signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave the signals to the worker."""
        yield
