"""Every metric that is emitted, once: the instruments are made of this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "histogram", "gauge", "observed counter"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument; ``unit`` is in OpenTelemetry's spelling (UCUM), ``by`` its attributes.

    ``checkpoint`` is an attribute of each but ``eos.asked_again``, and is left out of ``by``.
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

METRICS = (
    BATCH,
    STEP,
    AGE,
    RUNNING,
    MISSED,
    LAG,
    READ,
    DELIVERED,
    DECISIONS,
    REPLAYS,
    REPLAYED,
    FAILURES,
    OPEN,
    TIME_LEFT,
    STORE,
    STORE_BYTES,
    ASKED_AGAIN,
)
