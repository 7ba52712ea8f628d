"""An OTLP/HTTP receiver for tests, and a converter to Prometheus' remote write.

Names are those that Prometheus 3 would give.
"""

from __future__ import annotations

import gzip
import struct
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ..dashboards.test_names import translated

Labels = tuple[tuple[str, str], ...]


class Sink:
    """Receives exports, and answers 503 while ``failing`` is true."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.spans: list[Span] = []
        self.failing = False
        self.refused = 0
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self._body()
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                self.send_response(sink.take(self.path, body))
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers["Content-Length"]))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def log_message(self, *args: object) -> None:
                """No log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> int:
        if self.failing:
            self.refused += 1
            return 503
        if path.endswith("/v1/metrics"):
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        else:
            export = ExportTraceServiceRequest.FromString(body)
            self.spans += [
                span
                for resource in export.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        return 200

    def total(self, name: str) -> float:
        """Return the newest value of a counter, summed over its series."""
        newest: dict[Labels, float] = {}
        for metric, resource in self._metrics():
            if metric.name == name:
                for point in metric.sum.data_points:
                    newest[_pairs(resource) + _pairs(point.attributes)] = (
                        point.as_int or point.as_double
                    )
        return sum(newest.values())

    def _metrics(self) -> Iterator[tuple[Metric, Iterable[KeyValue]]]:
        for export in list(self.metrics):
            for resource in export.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        yield metric, resource.resource.attributes

    def samples(self) -> Iterator[tuple[Labels, float, int, list[Any]]]:
        """Yield all points as Prometheus stores them: labels, value, milliseconds, exemplars."""
        for metric, resource in self._metrics():
            of = dict(_pairs(resource))
            target = {"job": of["service_name"], "instance": of.get("service_instance_id", "")}
            kind = metric.WhichOneof("data")
            if kind == "sum":
                name = translated(
                    metric.name, metric.unit, "counter" if metric.sum.is_monotonic else "gauge"
                )
                for point in metric.sum.data_points:
                    yield (
                        _labels(name, target, point.attributes),
                        point.as_int or point.as_double,
                        _ms(point),
                        list(point.exemplars),
                    )
            elif kind == "gauge":
                name = translated(metric.name, metric.unit, "gauge")
                for point in metric.gauge.data_points:
                    value = point.as_int or point.as_double
                    yield _labels(name, target, point.attributes), value, _ms(point), []
            elif kind == "histogram":
                name = translated(metric.name, metric.unit, "histogram")
                for histogram in metric.histogram.data_points:
                    yield from _histogram(name, target, histogram)

    def attributes(self, span: Span) -> dict[str, str]:
        return {item.key: _value(item.value) for item in span.attributes}

    def __enter__(self) -> Sink:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _histogram(
    name: str, target: dict[str, str], point: Any
) -> Iterator[tuple[Labels, float, int, list[Any]]]:
    below = 0
    exemplars = list(point.exemplars)
    for bound, count in zip(
        [*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True
    ):
        below += count
        inside = [exemplar for exemplar in exemplars if exemplar.as_double <= bound]
        exemplars = [exemplar for exemplar in exemplars if exemplar.as_double > bound]
        le = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield (
            _labels(f"{name}_bucket", {**target, "le": le}, point.attributes),
            below,
            _ms(point),
            inside,
        )
    yield _labels(f"{name}_sum", target, point.attributes), point.sum, _ms(point), []
    yield _labels(f"{name}_count", target, point.attributes), point.count, _ms(point), []


def _ms(point: Any) -> int:
    return int(point.time_unix_nano // 1_000_000)


def _value(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    return str(getattr(value, kind)) if kind else ""


def _pairs(attributes: Iterable[KeyValue]) -> Labels:
    return tuple(sorted((item.key.replace(".", "_"), _value(item.value)) for item in attributes))


def _labels(name: str, target: dict[str, str], attributes: Iterable[KeyValue]) -> Labels:
    return tuple(sorted({"__name__": name, **target, **dict(_pairs(attributes))}.items()))


# --- Prometheus' remote write, version 1: a protobuf message in a Snappy block --------------------
def write_request(samples: Iterable[tuple[Labels, float, int, list[Any]]]) -> bytes:
    """Return the message ``prometheus.WriteRequest``."""
    series: dict[Labels, list[tuple[float, int, list[Any]]]] = {}
    for labels, value, moment, exemplars in samples:
        series.setdefault(labels, []).append((value, moment, exemplars))
    return b"".join(
        _field(1, _series(labels, sorted(points, key=lambda p: p[1])))
        for labels, points in series.items()
    )


def _series(labels: Labels, points: list[tuple[float, int, list[Any]]]) -> bytes:
    parts = [_label(name, value) for name, value in labels if value]
    parts += [_field(2, _double(1, value) + _number(2, moment)) for value, moment, _ in points]
    found = {
        exemplar.time_unix_nano: exemplar for _, _, exemplars in points for exemplar in exemplars
    }
    for nanos, exemplar in sorted(found.items()):
        value = exemplar.as_double or exemplar.as_int
        parts.append(
            _field(
                3,
                _label("trace_id", exemplar.trace_id.hex())
                + _double(2, value)
                + _number(3, nanos // 1_000_000),
            )
        )
    return b"".join(parts)


def _label(name: str, value: str) -> bytes:
    return _field(1, _field(1, name.encode()) + _field(2, value.encode()))


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _varint(value)


def snappy(content: bytes) -> bytes:
    """Return a Snappy block of literals, which is valid but does not compress."""
    parts = [_varint(len(content))]
    for start in range(0, len(content), 65536):
        piece = content[start : start + 65536]
        parts.append(bytes([61 << 2]) + struct.pack("<H", len(piece) - 1) + piece)
    return b"".join(parts)
