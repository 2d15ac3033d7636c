"""What the API counts about its requests, for `/metrics`."""

from importlib.metadata import version as installed_version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

# The framework adds the charset to every text by itself.
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST.partition("; charset=")[0]
_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class HttpMetrics:
    """Counts requests by route, never by path: ids are no labels, and tenants are none either."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        build = Gauge(
            "tenantry_build_info", "1, with the version of this build.", ("version",), registry=self._registry
        )
        build.labels(installed_version("tenantry")).set(1)
        self._requests = Counter(
            "tenantry_http_requests_total", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "tenantry_http_request_duration_seconds",
            "Time to the first byte of the answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self._registry)
