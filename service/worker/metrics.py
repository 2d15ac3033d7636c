"""What a worker's host counts and measures, beside what the engine does."""

import asyncio
import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Final

from service.metrics import Instrument, Observed
from service.worker.host import WorkerHost
from tenancy import TenancyError

# Whoever asks more often than this is told the same again: reading the depth takes the connection that finds work.
DEPTH_FRESH_S = 2.0
# A scrape that waits longer for a database that is away would be given up, and with it the figure that says so.
DEPTH_WITHIN_S = 2.0
TICKS: Final = Instrument("tenantry.ticks", "counter", "{tick}", "Ticks of tenants with work due.")
DATABASE_AWAY: Final = Instrument("tenantry.database.away", "gauge", "", "1 while the database cannot be reached.")
JOBS_IN_FLIGHT: Final = Instrument("tenantry.jobs.in_flight", "updown", "{job}", "Jobs leased to this worker.")
CONCURRENCY: Final = Instrument("tenantry.worker.concurrency", "updown", "{job}", "Jobs this worker takes.")
_OVER_ALL: Final = "over all tenants, read as the scheduler; every worker tells the same."
_SERVED: Final = "what this build serves, over all tenants, read as the scheduler."
DEPTHS: Final = (
    Instrument("tenantry.queue.depth", "gauge", "{item}", f"Jobs and runs that are due, {_OVER_ALL}"),
    Instrument("tenantry.queue.running", "gauge", "{job}", f"Jobs that are leased, {_OVER_ALL}"),
    Instrument("tenantry.queue.oldest_age", "gauge", "s", f"For how long the oldest has been due, {_OVER_ALL}"),
    Instrument("tenantry.queue.served.depth", "gauge", "{item}", f"Jobs and runs that are due, of {_SERVED}"),
    Instrument("tenantry.queue.served.oldest_age", "gauge", "s", f"For how long the oldest has been due, of {_SERVED}"),
)


class HostMetrics:
    """Observes a host; what the queue holds is read before, by whoever has the loop (`refresh`)."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self._depth: dict[str, float] = {}
        self._depth_at = -DEPTH_FRESH_S
        self._is_depth_unknown = False

    async def refresh(self) -> None:
        """Read what the queue holds, unless that was done just now."""
        if monotonic() - self._depth_at < DEPTH_FRESH_S:
            return
        # While the database is away the depth is unknown: an old one would keep autoscaling and alerts quiet.
        depth: dict[str, float] = {}
        with contextlib.suppress(TenancyError, TimeoutError):
            async with asyncio.timeout(DEPTH_WITHIN_S):
                depth = await self._host.depth()
        self._depth, self._is_depth_unknown = depth, not depth
        self._depth_at = monotonic()

    def observe(self) -> Iterator[Observed]:
        """Observe what there is to say now."""
        host = self._host
        yield Observed.of(TICKS, host.pulse.ticks)
        yield Observed.of(DATABASE_AWAY, float(host.pulse.is_database_away or self._is_depth_unknown))
        if host.executor is not None:
            yield Observed.of(JOBS_IN_FLIGHT, len(host.executor.executions))
            yield Observed.of(CONCURRENCY, host.executor.concurrency)
        depth = self._depth
        for instrument in DEPTHS:
            if instrument.name in depth:
                yield Observed.of(instrument, depth[instrument.name])
