"""Reports sensors that have fallen silent: late readings, a watermark, a timer for each sensor.

In: ``{"sensor": "s-1", "at": "2026-11-23T10:15:30Z", "celsius": 21.5}``, in any order. Out, keyed
by sensor, once for each silence: the time of its last reading, the number of readings since the
silence before, and the highest of them.

- **The watermark** is the newest time of all readings less ``--lateness``. A reading that comes out
  of order but not behind the watermark counts like any other; one behind it is dropped, because its
  silence may have been reported.
- **The timer** of a sensor is set to its newest reading plus a minute. Each reading moves it. It
  fires when the watermark has passed it, so a silence is one in the readings' own time, and a
  replay of the same rows finds the same silences, at whatever time of day.

State and timers are kept by ``transformWithStateInPandas``, which needs RocksDB, and are a part of
the checkpoint: no crash loses a silence or reports it twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import stateful_spark_conf

READING = "sensor string, at timestamp, celsius double"
HEARD = "last_ms long, readings long, highest double"
SILENCE = f"sensor string, {HEARD}"
FIELDS = ["sensor", "last_ms", "readings", "highest"]
SILENT_AFTER_MS = 60_000


def main() -> None:
    """Run until drained, or with ``--trigger available-now`` until all input is done."""
    parser = argument_parser("Report silent sensors.", prefix="sensors")
    parser.add_argument("--input-topic", default="readings")
    parser.add_argument("--output-topic", default="sensors.silent")
    parser.add_argument("--lateness", default="30 seconds", help="how far out of order they come")
    parser.add_argument("--state-partitions", type=int, default=4, help="fixed by the first start")
    args = parser.parse_args()
    app = App.of(args)
    spark = (
        SparkSession.builder.appName("sensors")
        .config("spark.sql.session.timeZone", "UTC")
        # Spark's 200 would open 200 transactions a batch.
        .config("spark.sql.shuffle.partitions", args.state_partitions)
        .config(map={**stateful_spark_conf()})
        .getOrCreate()
    )
    query = app.start(
        silences(app.read(spark, args.input_topic), lateness=args.lateness),
        topic=args.output_topic,
        query_name="sensors",
    )
    query.awaitTermination()


def silences(rows: DataFrame, *, lateness: str) -> DataFrame:
    """Return a row for each sensor that has been silent for a minute."""
    reading = F.from_json(F.col("value").cast("string"), READING)
    readings = rows.select(reading.alias("reading")).select("reading.*").dropna()
    found = (
        readings.withWatermark("at", lateness)
        .withColumn("at_ms", F.unix_millis("at"))
        .groupBy("sensor")
        .transformWithStateInPandas(Silence(), SILENCE, "Append", "EventTime")
    )
    last = F.timestamp_millis("last_ms").alias("lastHeard")
    return found.select(
        F.col("sensor").alias("key"),
        F.to_json(F.struct("sensor", last, "readings", "highest")).alias("value"),
    )


class Silence(StatefulProcessor):
    """The state and timer of one sensor: its readings since its last silence."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See Spark's ``StatefulProcessor``."""
        self._handle = handle
        self._heard = handle.getValueState("heard", HEARD)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Count the readings of a batch, and move the timer on."""
        del key, timerValues
        new = pd.concat(rows)
        last, count, highest = int(new.at_ms.max()), len(new), float(new.celsius.max())
        heard = self._heard.get()
        if heard is not None:
            before, readings, top = heard
            self._handle.deleteTimer(before + SILENT_AFTER_MS)
            last, count, highest = max(last, before), count + readings, max(highest, top)
        self._heard.update((last, count, highest))
        self._handle.registerTimer(last + SILENT_AFTER_MS)
        return iter(())

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - Spark's name
        expiredTimerInfo: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Report the silence, and begin anew."""
        del timerValues, expiredTimerInfo
        heard = self._heard.get()
        self._heard.clear()
        yield pd.DataFrame([(key[0], *(heard or ()))], columns=FIELDS)

    def close(self) -> None:
        """Nothing to close."""


if __name__ == "__main__":
    run_app(main)
