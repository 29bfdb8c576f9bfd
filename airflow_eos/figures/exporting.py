"""Where figures and traces are sent; the only module that imports OpenTelemetry's SDK.

An app that has set up OpenTelemetry by itself keeps its providers: they are used as they are.
Whoever sends is of the process, not of a query: a process that ends in order sends what is left.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from airflow_eos.figures.recorder import Meters

_SCOPE = "airflow_eos"
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
"""From a request to a disk to the longest life of a transaction on a broker with its defaults."""

LAST_WORDS_S = 3.0
"""For each signal, at the end of the process. The SDK's own wait, with a collector that is away,
was seen to hold a driver for 20 s."""

_opening = threading.Lock()


def opened(signals: frozenset[str]) -> tuple[Meters, trace.Tracer]:
    """The instruments and the tracer of this process; a signal not asked for goes nowhere."""
    with _opening:
        return _meters(wanted="metrics" in signals), _tracer(wanted="traces" in signals)


@functools.cache
def _meters(*, wanted: bool) -> Meters:
    provider: metrics.MeterProvider = metrics.NoOpMeterProvider()
    standing = metrics.get_meter_provider() if wanted else None
    if isinstance(standing, MeterProvider):
        provider = standing
    elif wanted:
        provider = ours = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())],
            resource=Resource.create(),
            shutdown_on_exit=False,
            views=[
                View(
                    instrument_type=Histogram,
                    instrument_name="eos.*",
                    aggregation=ExplicitBucketHistogramAggregation(BOUNDS_S),
                )
            ],
        )
        atexit.register(_at_exit, ours.shutdown)
    return Meters(provider.get_meter(_SCOPE))


@functools.cache
def _tracer(*, wanted: bool) -> trace.Tracer:
    if not wanted:
        return trace.NoOpTracerProvider().get_tracer(_SCOPE)
    standing = trace.get_tracer_provider()
    if isinstance(standing, TracerProvider):
        return standing.get_tracer(_SCOPE)
    provider = TracerProvider(resource=Resource.create(), shutdown_on_exit=False)
    atexit.register(_at_exit, provider.shutdown)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer(_SCOPE)


def _at_exit(shutdown: Callable[[], None]) -> None:
    """Send what is left, and do not wait for a collector that is away."""
    sending = threading.Thread(target=shutdown, name="airflow-eos-figures", daemon=True)
    sending.start()
    sending.join(LAST_WORDS_S)
