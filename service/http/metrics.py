"""What the API counts about its requests."""

from collections.abc import Iterator
from typing import Final

from kernel.counts import Spread
from service.metrics import Attributes, Instrument, Observed

_BOUNDS_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_METHOD_AND_ROUTE: Final = {"http.request.method": "method", "http.route": "route"}
SERVER_ERROR: Final = 500
REQUESTS: Final = Instrument(
    "tenantry.http.requests",
    "counter",
    "{request}",
    "Requests answered.",
    {**_METHOD_AND_ROUTE, "http.response.status_code": "status"},
)
# On the way out by OTLP it has the name that the conventions give it; ours has to begin as all of ours do.
DURATION: Final = Instrument(
    "http.server.request.duration",
    "histogram",
    "s",
    "Time to the first byte of the answer.",
    _METHOD_AND_ROUTE,
    own_exposed_name="tenantry_http_request_duration_seconds",
)


class HttpMetrics:
    """Counts requests by route, never by path: ids are no attributes, and tenants are none either."""

    def __init__(self) -> None:
        self._spreads: dict[tuple[str, str, int], Spread] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        key = method, route, status
        spread = self._spreads.get(key)
        if spread is None:
            spread = self._spreads[key] = Spread(_BOUNDS_S)
        spread.observe(seconds)

    def observe(self) -> Iterator[Observed]:
        """Observe what was counted."""
        spreads = self._spreads.copy()
        yield Observed(REQUESTS, {_attributes(key): sum(spread.counts) for key, spread in spreads.items()})
        yield Observed(DURATION, {(*_attributes(key), *_more(key[2])): spread for key, spread in spreads.items()})


def _attributes(key: tuple[str, str, int]) -> Attributes:
    method, route, status = key
    return ("http.request.method", method), ("http.route", route), ("http.response.status_code", status)


def _more(status: int) -> Attributes:
    # A process of ours speaks plain HTTP; TLS ends in front of it.
    scheme = (("url.scheme", "http"),)
    return scheme if status < SERVER_ERROR else (*scheme, ("error.type", str(status)))
