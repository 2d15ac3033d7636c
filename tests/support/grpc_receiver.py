"""An OTLP receiver that is spoken to by gRPC, as a collector is at its port 4317."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_service
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_service
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.support.metrics import Received


class GrpcReceiver(Received):
    """Listens on a free port until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        metrics_service.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def take(self, path: str, message: Any, context: Any) -> None:
        headers = {str(key): str(value) for key, value in context.invocation_metadata()}
        self.requests.append((path, headers, message))

    def close(self) -> None:
        self._server.stop(None).wait()


class _Traces(trace_service.TraceServiceServicer):
    def __init__(self, receiver: GrpcReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        self._receiver.take("/v1/traces", request, context)
        return ExportTraceServiceResponse()


class _Metrics(metrics_service.MetricsServiceServicer):
    def __init__(self, receiver: GrpcReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        self._receiver.take("/v1/metrics", request, context)
        return ExportMetricsServiceResponse()
