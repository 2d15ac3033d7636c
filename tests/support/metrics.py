"""Every metric of our processes, and a receiver that takes them in by OTLP."""

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service import metrics
from service.http import metrics as http_metrics
from service.metrics import Instrument
from service.worker import metrics as worker_metrics


def instruments() -> list[Instrument]:
    """Return what is measured anywhere."""
    found = [value for module in (metrics, http_metrics, worker_metrics) for value in vars(module).values()]
    return [*{one.name: one for one in found if isinstance(one, Instrument)}.values(), *worker_metrics.DEPTHS]


def samples_of(one: Instrument) -> dict[str, set[str]]:
    """Return the names of an instrument's samples at `/metrics`, with the labels that the format adds."""
    if one.kind == "histogram":
        return {
            f"{one.exposed_name}_bucket": {"le"},
            f"{one.exposed_name}_count": set(),
            f"{one.exposed_name}_sum": set(),
        }
    return {f"{one.exposed_name}_total" if one.kind == "counter" else one.exposed_name: set()}


class Received:
    """What a receiver got: `requests` are (path of the signal over HTTP, headers by lower-case name, decoded message)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each request by name, as their messages; resources lie under ``."""
        found: list[dict[str, Any]] = []
        for path, _, request in list(self.requests):
            if path == "/v1/metrics":
                (group,) = request.resource_metrics
                resource = {item.key: item.value.string_value for item in group.resource.attributes}
                named = {metric.name: metric for scope in group.scope_metrics for metric in scope.metrics}
                found.append({"": resource, **named})
        return found

    def spans(self) -> list[Any]:
        """Return every span that was received, as its message."""
        return [
            span
            for path, _, request in list(self.requests)
            if path == "/v1/traces"
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]


class OtlpReceiver(Received):
    """An OTLP receiver that is spoken to over HTTP, on a free port.

    While `is_silent` it takes requests and does not answer, as a collector that hangs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = threading.Event()
        self._released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.is_silent.is_set():
                    outer._released.wait(30)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.path, headers, _DECODERS[self.path](body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002 (the name is the library's)
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "/v1/metrics": ExportMetricsServiceRequest.FromString,
    "/v1/traces": ExportTraceServiceRequest.FromString,
}


def number_of(metric: Any, **attributes: str) -> float:
    """Return the value of the point that has these attributes (`a__b` is `a.b`)."""
    wanted = {name.replace("__", "."): value for name, value in attributes.items()}
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points:
        given = {item.key: item.value.string_value or str(item.value.int_value) for item in point.attributes}
        if given == wanted:
            return float(point.as_int or point.as_double)
    msg = f"{metric.name} has no point of {wanted}"
    raise LookupError(msg)
