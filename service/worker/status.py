"""`/healthz`, `/readyz` and `/metrics` of a worker, on a port of its own; no tenant's data, no tenant label.

Healthy means that the loop that finds work goes round, whatever the database does: only a restart would mend a loop
that stands still.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from importlib.metadata import version as installed_version
from time import monotonic
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from service.probes import NotReadyError, ReadinessGate
from service.settings import Settings
from service.worker.counts import Spread
from service.worker.host import WorkerHost
from tenancy import TenancyError

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
TEXT = "text/plain; charset=utf-8"
# A round waits for its slowest tick: a lock, a statement and a dead network end sooner than this.
STALLED_AFTER_S = 120.0
# Whoever asks more often than this is told the same again: reading the depth takes the connection that finds work.
DEPTH_FRESH_S = 2.0
# A scrape that waits longer for a database that is away would be given up, and with it the figure that says so.
DEPTH_WITHIN_S = 2.0


class HostCollector:
    """Reads the host's counters when Prometheus asks."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self.depth: dict[str, float] = {}
        self.is_depth_unknown = False

    def collect(self) -> Iterable[Metric]:
        """Return what there is to say now."""
        host = self._host
        build = GaugeMetricFamily("tenantry_build_info", "1, with the version of this build.", labels=["version"])
        build.add_metric([installed_version("tenantry")], 1.0)
        yield build
        yield CounterMetricFamily("tenantry_ticks", "Ticks of tenants with work due.", value=host.pulse.ticks)
        yield CounterMetricFamily("tenantry_runs_started", "Runs this worker started.", value=host.pulse.claimed_runs)
        yield CounterMetricFamily("tenantry_leases_expired", "Leases taken back.", value=host.pulse.reaped)
        away = GaugeMetricFamily("tenantry_database_away", "1 while the database cannot be reached.")
        away.add_metric([], float(host.pulse.is_database_away or self.is_depth_unknown))
        yield away
        if host.executor is not None:
            yield from self._execution()
        for name, value in self.depth.items():
            yield GaugeMetricFamily(name, "Over all tenants, read as the scheduler.", value=value)

    def _execution(self) -> Iterable[Metric]:
        executor = self._host.executor
        assert executor is not None
        yield GaugeMetricFamily(
            "tenantry_jobs_in_flight", "Jobs leased to this worker.", value=len(executor.executions)
        )
        yield GaugeMetricFamily("tenantry_worker_concurrency", "Jobs this worker takes.", value=executor.concurrency)
        yield CounterMetricFamily("tenantry_jobs_started", "Jobs this worker took.", value=executor.counts.started)
        outcomes = CounterMetricFamily("tenantry_jobs_finished", "Jobs by what they came to.", labels=["outcome"])
        for outcome, count in executor.counts.outcomes.items():
            outcomes.add_metric([outcome], count)
        yield outcomes
        runs = CounterMetricFamily(
            "tenantry_runs_finished", "Runs that a stage settled here ended, by how.", labels=["outcome"]
        )
        for outcome in ("completed", "failed", "cancelled"):
            runs.add_metric([outcome], executor.counts.runs[outcome])
        yield runs
        yield CounterMetricFamily(
            "tenantry_step_attempts", "Calls of the functions of durable steps.", value=executor.counts.step_attempts
        )
        yield _histogram("queue_wait", "From due to leased, in seconds.", executor.counts.queue_wait)
        yield _histogram("job_execution", "From leased to settled, in seconds.", executor.counts.execution)


def _histogram(name: str, documentation: str, spread: Spread) -> HistogramMetricFamily:
    return HistogramMetricFamily(
        f"tenantry_{name}_seconds", documentation, buckets=spread.buckets(), sum_value=spread.total_s
    )


class StatusApp:
    """The three routes, as an ASGI application."""

    def __init__(self, gate: ReadinessGate, host: WorkerHost, stop: asyncio.Event) -> None:
        """`stop` is set when the worker is told to stop: it is not ready then."""
        self._gate = gate
        self._host = host
        self._stop = stop
        self._depth_at = -DEPTH_FRESH_S
        self._collector = HostCollector(host)
        self._metrics = CollectorRegistry()
        self._metrics.register(self._collector)

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
        if monotonic() - self._depth_at >= DEPTH_FRESH_S:
            await self._read_depth()
        return 200, generate_latest(self._metrics).decode()

    async def _read_depth(self) -> None:
        # While the database is away the depth is unknown: an old one would keep autoscaling and alerts quiet.
        self._collector.depth, self._collector.is_depth_unknown = {}, True
        with contextlib.suppress(TenancyError, TimeoutError):
            async with asyncio.timeout(DEPTH_WITHIN_S):
                self._collector.depth = await self._host.depth()
            self._collector.is_depth_unknown = False
        self._depth_at = monotonic()


@asynccontextmanager
async def serve_status(
    settings: Settings, gate: ReadinessGate, host: WorkerHost, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Serve the status routes beside the host, in this process and loop, until the context ends."""
    assert settings.worker_http_port is not None
    config = uvicorn.Config(
        StatusApp(gate, host, stop),
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
