"""The recorder: turns events of a pipeline into figures and traces, and sends them."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context

from airflow_eos.core.delivery.observer import (
    Began,
    CommitResult,
    Decided,
    Event,
    Failed,
    Phased,
    Progressed,
    QueryEnded,
    Started,
    StoreRequest,
    TasksPrepared,
    Watched,
)
from airflow_eos.core.protocol.decision import Outcome, Verdict, WorkIdentity
from airflow_eos.core.tally import RETRY_COUNTS

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.heartbeat import Phase

Step = Literal["plan", "look", "prepare", "decide", "settle", "commit"]


@dataclass(frozen=True, slots=True)
class Span:
    """A step of a batch, with its start and end in nanoseconds since the epoch."""

    step: Step
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Story:
    """A running batch and its steps. ``facts`` have its attempt, rows, whether it was a replay."""

    batch_id: int
    began_ns: int
    step_begins: list[tuple[Step, int]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.step_begins.append(("look", self.began_ns))

    def enter(self, step: Step, at_ns: int) -> None:
        """Begin a step, which ends the step before; never earlier than that one began."""
        self.step_begins.append((step, max(at_ns, self.step_begins[-1][1])))

    def has_been(self, step: Step) -> bool:
        """Whether the step was entered before."""
        return any(begun == step for begun, _ in self.step_begins)

    def committed(self, progress: Mapping[str, Any]) -> tuple[Span, ...]:
        """Return the steps with Spark's part: its plan before, its commit after."""
        planned_ns = int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000) * 10**6
        end_ns = planned_ns + int(progress["durationMs"]["triggerExecution"]) * 10**6
        plan = Span("plan", min(planned_ns, self.began_ns), self.began_ns)
        return (plan, *self.spans(end_ns))

    def spans(self, end_ns: int) -> tuple[Span, ...]:
        """Return the steps up to ``end_ns``."""
        begins = [at for _, at in self.step_begins]
        ends = [*begins[1:], max(end_ns, begins[-1])]
        return tuple(
            Span(step, begin, end)
            for (step, begin), end in zip(self.step_begins, ends, strict=True)
        )


def lags(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return each source's lag: rows between the batch's end and the source's end when planned.

    Sources that do not count their rows by Kafka's offsets are left out. A partition that the batch
    did not know yet counts from its beginning: nothing of it was read.
    """
    found = {}
    for index, source in enumerate(progress["sources"]):
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if not (_is_offsets(latest) and _is_offsets(end)):
            continue
        found[str(index)] = sum(
            max(0, at - end.get(topic, {}).get(partition, 0))
            for topic, partitions in latest.items()
            for partition, at in partitions.items()
        )
    return found


def _is_offsets(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, dict) and all(isinstance(at, int) for at in each.values())
        for each in value.values()
    )


# --- names ----------------------------------------------------------------------------------------
# Every metric that is emitted, once: the instruments are made from this table.


Kind = Literal["counter", "histogram", "gauge", "observed counter"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument; ``unit`` is in OpenTelemetry's spelling (UCUM), ``by`` its attributes.

    ``checkpoint`` is an attribute of every metric but ``eos.asked_again``, and left out of ``by``.
    """

    name: str
    unit: str
    kind: Kind
    meaning: str
    by: tuple[str, ...] = ()


BATCH = Metric(
    "eos.batch.duration",
    "s",
    "histogram",
    "a batch from plan to commit; of one that failed, until it failed",
    ("outcome",),
)
STEP = Metric("eos.batch.step.duration", "s", "histogram", "one step of a batch", ("step",))
AGE = Metric("eos.batch.age", "s", "gauge", "since the running batch was called for; 0: none runs")
RUNNING = Metric(
    "eos.running",
    "{driver}",
    "gauge",
    "1 while a driver runs; 0 as the last word of one that ended as it was meant to",
)
MISSED = Metric(
    "eos.watchdog.missed",
    "{look}",
    "gauge",
    "looks of its watchdog that did not come in time; absent where none has ever looked",
)
LAG = Metric(
    "eos.lag",
    "{row}",
    "gauge",
    "rows of the source behind the newest committed batch, when Spark planned that",
    ("source",),
)
READ = Metric("eos.rows.read", "{row}", "counter", "rows of committed batches, as Spark counts")
DELIVERED = Metric(
    "eos.rows.delivered", "{row}", "counter", "rows that were made visible", ("participant",)
)
DECISIONS = Metric(
    "eos.decisions",
    "{decision}",
    "counter",
    "attempts decided; stands is false where another had decided before us",
    ("verdict", "stands"),
)
REPLAYS = Metric(
    "eos.replays", "{batch}", "counter", "promises that were lost and are written again"
)
REPLAYED = Metric("eos.rows.replayed", "{row}", "counter", "rows of replays")
FAILURES = Metric(
    "eos.failures", "{batch}", "counter", "batches that raised; their traces and the log say what"
)
OPEN = Metric("eos.open_work", "{work}", "gauge", "prepared work that is not known to have ended")
TIME_LEFT = Metric(
    "eos.open_work.time_left",
    "s",
    "gauge",
    "until its system ends the first of the open work by itself; absent where nothing is open",
)
STORE = Metric(
    "eos.store.request.duration",
    "s",
    "histogram",
    "one request to the checkpoint's store by our side, Spark's own are not seen",
    ("verb", "outcome"),
)
STORE_BYTES = Metric(
    "eos.store.bytes", "By", "counter", "content sent to and got from the store", ("direction",)
)
ASKED_AGAIN = Metric(
    "eos.asked_again",
    "{request}",
    "observed counter",
    "times this process waited to ask Kafka or the store again, all its pipelines together",
    ("of",),
)

METRICS = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric))


_STEPS: dict[Phase, Step] = {"preparing": "prepare", "settling": "settle", "waiting": "commit"}


class Recorder:
    """The receiver of a driver's events, from its batch, its heartbeat and its store.

    Args:
        checkpoint: the checkpoint's location, the attribute of every figure.
    """

    def __init__(self, checkpoint: str, meters: Meters, tracer: Tracer) -> None:
        self.checkpoint = checkpoint
        self._by = {"checkpoint": checkpoint}
        self._meters = meters
        self._tracer = tracer
        self._lock = threading.Lock()
        self._story: Story | None = None
        self._open: dict[WorkIdentity, int | None] = {}
        self._lags: dict[str, int] = {}
        self._read_up_to = -1
        self._has_ended = False
        self._missed: float | None = None
        # Prometheus sees no increase in a counter that begins at 1.
        for metric in (FAILURES, REPLAYS, REPLAYED, READ):
            self._add(metric, 0)
        self._add(DECISIONS, 0, verdict=Verdict.COMMIT.value, stands=False)

    def __call__(self, event: Event) -> None:
        """Record ``event``."""
        if isinstance(event, StoreRequest):
            self._asked(event)
            return
        with self._lock:
            if not self._has_ended:
                self._note(event)

    def gauged(self) -> Iterator[tuple[Metric, float, dict[str, str]]]:
        """Yield each gauge with its value and attributes."""
        yield RUNNING, 0 if self._has_ended else 1, self._by
        if self._has_ended:
            return
        if self._missed is not None:
            yield MISSED, self._missed, self._by
        with self._lock:
            story, ends, behind = self._story, list(self._open.values()), dict(self._lags)
        running = story is not None and not story.has_been("commit")
        now_ns = time.time_ns()
        age_ns = max(0, now_ns - story.began_ns) if story is not None and running else 0
        yield AGE, age_ns / 1e9, self._by
        yield OPEN, len(ends), self._by
        timed = [end for end in ends if end is not None]
        if timed:
            yield TIME_LEFT, min(timed) / 1e3 - now_ns / 1e9, self._by
        for source, rows in behind.items():
            yield LAG, rows, {**self._by, "source": source}

    @singledispatchmethod
    def _note(self, event: Event) -> None:
        raise NotImplementedError(f"{event!r}")

    @_note.register
    def _(self, _event: Started) -> None:
        self._meters.ask(self)  # not before: a driver that stands by is no running one

    @_note.register
    def _(self, event: Began) -> None:
        self._over(event.at_ns)  # where Spark has reported nothing of the batch before
        self._story = Story(event.batch_id, event.at_ns)

    @_note.register
    def _(self, event: Phased) -> None:
        step = _STEPS.get(event.phase)
        if self._story is not None and step is not None:
            self._story.enter(step, event.at_ns)

    @_note.register
    def _(self, event: TasksPrepared) -> None:
        if self._story is not None:
            self._story.enter("decide", event.since_ns)
        self._open |= {each.identity: each.ends_at_ms for each in event.leftovers}

    @_note.register
    def _(self, event: Decided) -> None:
        decision = event.decision
        verdict = decision.verdict.value
        self._add(DECISIONS, 1, verdict=verdict, stands=event.stands)
        if decision.verdict is not Verdict.COMMIT or not event.stands:
            return
        rows = sum(work.rows for work in decision.works)
        self._open = {work.identity: work.ends_at_ms for work in decision.works if work.rows}
        is_replay = self._story is not None and self._story.has_been("settle")
        if is_replay:
            self._add(REPLAYS, 1)
            self._add(REPLAYED, rows)
        if self._story is not None:
            self._story.facts |= {
                "eos.attempt": decision.attempt,
                "eos.works": len(decision.works),
                "eos.rows": rows,
                "eos.replay": is_replay,
            }

    @_note.register
    def _(self, event: CommitResult) -> None:
        rows: Counter[str] = Counter()
        for work in event.works:
            outcome = event.outcomes.get(work.identity)
            if outcome is Outcome.COMMITTED:
                rows[work.participant] += work.rows
            if outcome is not Outcome.OPEN:
                self._open.pop(work.identity, None)
        for participant, count in rows.items():
            self._add(DELIVERED, count, participant=participant)

    @_note.register
    def _(self, event: Failed) -> None:
        self._add(FAILURES, 1)
        self._over(event.at_ns, event.error)

    @_note.register
    def _(self, event: Progressed) -> None:
        batch_id = int(event.progress["batchId"])
        self._lags = lags(event.progress)
        if batch_id > self._read_up_to:
            self._read_up_to = batch_id
            self._add(READ, int(event.progress["numInputRows"]))
        story = self._story
        if story is not None and story.batch_id == batch_id and story.has_been("commit"):
            self._story = None
            self._tell(story, story.committed(event.progress))

    @_note.register
    def _(self, event: QueryEnded) -> None:
        self._over(event.at_ns)
        self._has_ended = True
        if not event.as_meant:  # or its gauges would show 0 (meant) to the end of the process
            self._meters.forget(self)

    @_note.register
    def _(self, event: Watched) -> None:
        self._missed = event.missed

    def _asked(self, event: StoreRequest) -> None:
        outcome = "failed" if event.failed else "answered"
        by = {**self._by, "verb": event.verb, "outcome": outcome}
        self._meters.record(STORE, event.seconds, by)
        for direction, size in (("sent", event.sent), ("got", event.got)):
            if size:
                self._add(STORE_BYTES, size, direction=direction)

    def _over(self, at_ns: int, error: BaseException | None = None) -> None:
        story, self._story = self._story, None
        if story is not None:
            # A batch that has returned was settled; how long Spark took to commit it is not known.
            end_ns = story.step_begins[-1][1] if story.has_been("commit") else at_ns
            self._tell(story, story.spans(end_ns), error)

    def _tell(
        self, story: Story, spans: tuple[Span, ...], error: BaseException | None = None
    ) -> None:
        start_ns, end_ns = spans[0].start_ns, spans[-1].end_ns
        outcome = "delivered" if error is None else "failed"
        self._meters.record(BATCH, (end_ns - start_ns) / 1e9, {**self._by, "outcome": outcome})
        facts = {**self._by, "eos.batch": story.batch_id, **story.facts}
        whole = self._tracer.start_span(
            "batch", context=Context(), start_time=start_ns, attributes=facts
        )
        inside = set_span_in_context(whole)
        for span in spans:
            by = {**self._by, "step": span.step}
            self._meters.record(STEP, (span.end_ns - span.start_ns) / 1e9, by)
            part = self._tracer.start_span(span.step, context=inside, start_time=span.start_ns)
            part.end(span.end_ns)
        if error is not None:
            # The error's name alone: a message may repeat what a row or a connection holds.
            whole.set_status(Status(StatusCode.ERROR, type(error).__name__))
        whole.end(end_ns)

    def _add(self, metric: Metric, value: int, **by: Any) -> None:
        self._meters.add(metric, value, {**self._by, **by})


class Meters:
    """The counters and histograms that are written, and gauges that ask the live recorders."""

    def __init__(self, meter: Meter) -> None:
        self._sources: set[Recorder] = set()
        make: dict[str, Callable[..., Any]] = {
            "counter": meter.create_counter,
            "histogram": meter.create_histogram,
        }
        self._written = {
            each: make[each.kind](each.name, unit=each.unit, description=each.meaning)
            for each in METRICS
            if each.kind in make
        }
        for each in (each for each in METRICS if each.kind == "gauge"):
            meter.create_observable_gauge(
                each.name, [self._callback(each)], unit=each.unit, description=each.meaning
            )
        meter.create_observable_counter(
            ASKED_AGAIN.name,
            [lambda _: [Observation(n, {"of": of}) for of, n in tuple(RETRY_COUNTS.items())]],
            unit=ASKED_AGAIN.unit,
            description=ASKED_AGAIN.meaning,
        )

    def add(self, metric: Metric, value: int, by: dict[str, Any]) -> None:
        """Add ``value`` to a counter."""
        self._written[metric].add(value, by)

    def record(self, metric: Metric, value: float, by: dict[str, Any]) -> None:
        """Put one value into a histogram."""
        self._written[metric].record(value, by)

    def ask(self, source: Recorder) -> None:
        """Let gauges show ``source``, until :meth:`forget` or its checkpoint's next recorder."""
        others = {each for each in self._sources if each.checkpoint != source.checkpoint}
        self._sources = others | {source}

    def forget(self, source: Recorder) -> None:
        """Let the gauges of ``source`` vanish."""
        self._sources = self._sources - {source}

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observed(_options: CallbackOptions) -> Iterator[Observation]:
            for source in self._sources:
                for found, value, by in source.gauged():
                    if found is metric:
                        yield Observation(value, by)

        return observed


# --- exporting ------------------------------------------------------------------------------------
# The sending of figures and traces by OpenTelemetry's SDK.
#
# An app that has set up OpenTelemetry by itself keeps its providers: they are used as they are.
# The exporter belongs to the process, not to a query: a process that ends in order sends the rest.


_SCOPE = "airflow_eos"
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
"""Histogram bounds: from a request to a disk to a broker's default longest transaction."""

LAST_WORDS_S = 3.0
"""Seconds to wait for each signal, at the end of the process. The SDK's own wait, with a collector
that is away, was seen to hold a driver for 20 s."""

_opening = threading.Lock()


def started(signals: frozenset[str]) -> tuple[Meters, trace.Tracer]:
    """Return the instruments and the tracer of this process; other signals go nowhere."""
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
    """Send the rest, without waiting for a collector that is away."""
    sending = threading.Thread(target=shutdown, name="airflow-eos-figures", daemon=True)
    sending.start()
    sending.join(LAST_WORDS_S)
