"""A collector on loopback that takes OTLP over HTTP and keeps what it got."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

KINDS = {1: "internal", 2: "server", 3: "client"}
FAILED = 2


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    failed: bool
    started: int
    ended: int


@dataclass
class Collector:
    """What arrived so far."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The attributes of each metric's points."""
    resource: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """Of the last export."""

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in list(self.spans) if span.name == name]

    def children(self, span: ReceivedSpan) -> list[ReceivedSpan]:
        """The spans below a span, by their beginning."""
        below = [each for each in list(self.spans) if (each.trace, each.parent) == (span.trace, span.id)]
        return sorted(below, key=lambda each: each.started)

    def take_traces(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = read_attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    received = ReceivedSpan(
                        span.name,
                        KINDS[span.kind],
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        read_attributes(span.attributes),
                        span.status.code == FAILED,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                    self.spans.append(received)

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = [read_attributes(point.attributes) for point in metric.histogram.data_points]
                    self.metrics[metric.name] = self.metrics.get(metric.name, []) + points


def read_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: read_value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def read_value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [read_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yields a collector that serves in a thread."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.headers = {name.lower(): value for name, value in self.headers.items()}
            take = collector.take_traces if self.path == "/v1/traces" else collector.take_metrics
            take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
