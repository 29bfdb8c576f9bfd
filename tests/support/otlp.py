"""A receiver of OTLP over HTTP: decodes what is posted, by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from airflow_eos.ops import figures as recorder


class Receiver:
    """What has arrived at ``address`` so far; thread-safe."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._metrics: list[Any] = []
        self._spans: list[Any] = []

    def metrics(self) -> dict[str, Any]:
        """The newest export of each metric, by name."""
        with self._lock:
            return {metric.name: metric for metric in self._metrics}

    def spans(self) -> list[Any]:
        with self._lock:
            return list(self._spans)

    def points(self, name: str) -> dict[tuple[tuple[str, str], ...], Any]:
        """The newest data points of a metric by their sorted attributes; empty if there is none."""
        metric = self.metrics().get(name)
        if metric is None:
            return {}
        data = getattr(metric, metric.WhichOneof("data"))
        return {tuple(sorted(attributes(point).items())): point for point in data.data_points}

    def take(self, path: str, body: bytes) -> None:
        with self._lock:
            if path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in resource.scope_metrics:
                        self._metrics += scope.metrics
            elif path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        self._spans += scope.spans
            else:
                raise AssertionError(path)

    def steps_of(self, whole: Any) -> list[Any]:
        """The spans within one, in their order."""
        parts = [span for span in self.spans() if span.parent_span_id == whole.span_id]
        return sorted(parts, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


def attributes(told: Any) -> dict[str, str]:
    """Of a data point or a span, each value as text."""
    return {
        each.key: str(getattr(each.value, each.value.WhichOneof("value")))
        for each in told.attributes
    }


@contextmanager
def otlp_receiver(status: int = 200) -> Iterator[Receiver]:
    """One on a free port of this machine; another status refuses all."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if status == 200:
                receiver.take(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def process_that_sends_to(address: str) -> Iterator[Callable[[], None]]:
    """As if this were a process of its own, told to send there; gives what it does as it exits."""
    at_exit: list[Callable[[], None]] = []

    def exit_now() -> None:
        while at_exit:
            at_exit.pop()()

    def forget() -> None:
        for each in (recorder._meters, recorder._tracer):
            each.cache_clear()

    forget()
    with (
        mock.patch.dict(os.environ, OTEL_EXPORTER_OTLP_ENDPOINT=address),
        mock.patch(
            "airflow_eos.ops.figures.atexit.register",
            lambda function, *given: at_exit.append(lambda: function(*given)),
        ),
    ):
        try:
            yield exit_now
        finally:
            exit_now()
            forget()
