"""A streaming app for the tests: ``python app.py '{"kind": "map", ...}'``; see ``AppSettings``.

``map`` copies rows, ``shuffle`` deals them to other tasks first, ``count`` keeps a running count
for each key in Spark's state and writes it with every change (``count pairs``: for each key and
value). ``arrow`` copies rows that the tasks read for themselves. ``join`` joins orders with the
payments of another topic, ``lookup`` rows with
a table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.checkpoint import heartbeat as beats
from airflow_eos.core.checkpoint.locations import LOCAL
from airflow_eos.core.delivery.port import Sink
from airflow_eos.core.delivery.query import ExactlyOnceQuery
from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.errors import DecisionNeededError, EosError
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.sinks import ConsumerGroup, KafkaSink, Output, start_exactly_once
from airflow_eos.sinks.source import tuned_spark_conf
from airflow_eos.sources import ArrowKafkaSource

BEAT = timedelta(seconds=1)
"""How often the drivers of tests beat on a local disk."""
_WITHOUT_RUN = "struct(CAST(key AS BINARY) AS key, CAST(value AS BINARY) AS value, '' AS run)"


class AppSettings(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap_servers: str
    input_topic: str
    output_topic: str
    checkpoint: str
    prefix: str
    jars: str
    kind: str = "map"
    joined: str = ""
    """The topic of the payments, or the folder of the table."""
    guarantee: Guarantee = "exactly_once"
    max_offsets_per_trigger: int = 2000
    max_rows_per_task: int | None = None
    """Of kind ``arrow``: a longer range is read by several tasks."""
    until_caught_up: bool = True
    timeout_s: float = 60.0
    spark_conf: dict[str, str] = {}
    tuned: bool = True
    """With what we advise (``tuned_spark_conf``), or with Spark's defaults."""
    shuffle_partitions: int = 3
    master: str = "local[2]"
    without_decisions: bool = False
    producer: Literal["arrow", "librdkafka"] = "arrow"
    place: dict[str, Any] = {}
    """A ``tests.support.kinds.Place``: where the rows go that do not go to the output topic."""
    source_bootstrap: str = ""
    """Of the cluster with the input topic and the group; where it is empty: of the output's."""
    consumer_group: str = ""
    """Which shows how far the pipeline is; none where it is empty."""
    resume: bool = False
    """Where the checkpoint is empty, from the group."""
    standby: bool = False
    """Where another driver runs, until it has ended."""
    attached: bool = False
    """In the JVM of a ``tests.support.host``."""
    storage_options: dict[str, str] = {}
    """Of the checkpoint's store."""
    beat_s: float = BEAT.total_seconds()
    """Who beats seldom is not taken for dead on a busy machine."""
    journal: str = ""
    """Of a history, where the app tells how far it has come back."""
    outputs: tuple[str, ...] = ()
    """Of a history that delivers to several: see ``tests.chaos.outputs``."""
    dsn: str = ""
    files: str = ""

    @property
    def source_servers(self) -> str:
        return self.source_bootstrap or self.bootstrap_servers


def session(settings: AppSettings) -> SparkSession:
    if settings.attached:
        from tests.support import host  # an app that was submitted has no such module

        return configured(host.attached(), settings)
    builder = (
        SparkSession.builder.master(settings.master)
        .appName(settings.prefix)
        .config("spark.jars", settings.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(settings.shuffle_partitions))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
    )
    tuned = tuned_spark_conf() if settings.tuned else {}
    for name, value in (tuned | settings.spark_conf).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def configured(spark: SparkSession, settings: AppSettings) -> SparkSession:
    """A session of a JVM that runs already; refuses what only a start can change."""
    spark.conf.set("spark.sql.shuffle.partitions", settings.shuffle_partitions)
    for name, value in settings.spark_conf.items():
        spark.conf.set(name, value)
    return spark


def rows(spark: SparkSession, settings: AppSettings) -> DataFrame | ArrowKafkaSource:
    group = group_of(settings)
    start = (
        group.starting_offsets(settings.input_topic)
        if group is not None and group.resume
        else "earliest"
    )
    if settings.kind == "arrow":
        return ArrowKafkaSource(
            settings.source_servers,
            settings.input_topic,
            starting=start,
            max_rows_per_batch=settings.max_offsets_per_trigger,
            max_rows_per_task=settings.max_rows_per_task,
        ).select("key", "value")
    source = kafka(spark, settings, settings.input_topic, start)
    if settings.kind == "map":
        return source
    if settings.kind == "join":
        return paid(source, kafka(spark, settings, settings.joined, "earliest"))
    if settings.kind == "lookup":
        return labelled(source, spark.read.json(settings.joined))
    if settings.kind == "shuffle":
        return source.repartition(settings.shuffle_partitions, "value")
    if settings.kind == "flaky":
        return source.repartition(settings.shuffle_partitions, "value").mapInArrow(
            fail_once_and_dawdle, source.schema
        )
    if settings.kind in ("count", "count pairs"):
        return (
            source.groupBy("key", *(["value"] if settings.kind == "count pairs" else []))
            .count()
            .select("key", F.col("count").cast("string").alias("value"))
        )
    raise ValueError(settings.kind)


def kafka(spark: SparkSession, settings: AppSettings, topic: str, start: str) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.source_servers)
        .option("subscribe", topic)
        .option("startingOffsets", start)
        .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
        .load()
        .select("key", "value")
    )


def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders that were paid within an hour. Keys are numbers, values are seconds."""

    def events(rows: DataFrame, number: str, at: str) -> DataFrame:
        told = (F.col(name).cast("string").cast("bigint") for name in ("key", "value"))
        named = zip(told, (number, at), strict=True)
        events = rows.select(*(column.alias(name) for column, name in named))
        return events.withColumn(at, F.timestamp_seconds(at)).withWatermark(at, "10 minutes")

    pairs = events(orders, "order", "ordered_at").join(
        events(payments, "of_order", "paid_at"),
        F.expr("order = of_order AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 1 HOUR"),
    )
    key, value = F.col("order").cast("string"), F.unix_seconds("paid_at").cast("string")
    return pairs.select(key.alias("key"), value.alias("value"))


def labelled(rows: DataFrame, table: DataFrame) -> DataFrame:
    """With the label that the table has for the key."""
    labels = table.withColumnRenamed("key", "name")
    found = rows.join(labels, F.col("key").cast("string") == F.col("name"))
    value = F.concat_ws(" ", "label", F.col("value").cast("string"))
    return found.select("key", value.alias("value"))


def fail_once_and_dawdle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Task 0 fails at its first attempt after it passed rows on; task 1 is slow at its first."""
    context = TaskContext.get()
    assert context is not None
    first = context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if first and context.partitionId() == 0:
            raise RuntimeError("a task fails after it passed rows on")
        if first and context.partitionId() == 1:
            time.sleep(1.5)


def without_decisions(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """The negative control: nothing is ever decided, so every start delivers anew."""
    replace(DecisionLog, "record", lambda *_: True)
    replace(DecisionLog, "of_batch", lambda *_: ())
    replace(PrefixLedger, "note", lambda *_: None)  # or the next start is refused


def sink_of(settings: AppSettings) -> Sink | list[Output]:
    if settings.place:
        from tests.support.kinds import Place, kind_called

        place = msgspec.convert(settings.place, Place)
        return kind_called(place.kind).sink(place)
    if settings.outputs:
        from tests.chaos.outputs import ToTopic, besides

        others = besides(settings.outputs, settings.prefix, settings.dsn, settings.files)
        beside = [Output(name, sink, rows=_WITHOUT_RUN) for name, sink in others.items()]
        return [Output("kafka", _topic(settings, ToTopic)), *beside]
    return _topic(settings, KafkaSink)


def _topic(settings: AppSettings, of: type[KafkaSink]) -> KafkaSink:
    timeout = timedelta(seconds=settings.timeout_s)
    return of(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.output_topic,
        transactional_id_prefix=settings.prefix,
        transaction_timeout=timeout,
        batch_within=timeout / 4,
        recover_within=timeout / 4,
        producer=settings.producer,
    )


def deliver(spark: SparkSession, settings: AppSettings) -> ExactlyOnceQuery:
    """Start the query."""
    return start_exactly_once(
        rows(spark, settings),
        sink_of(settings),
        checkpoint_location=settings.checkpoint,
        trigger={"availableNow": True}
        if settings.until_caught_up
        else {"processingTime": "200 milliseconds"},
        output_mode="update" if settings.kind.startswith("count") else "append",
        guarantee=settings.guarantee,
        consumer_group=group_of(settings),
        storage_options=settings.storage_options or None,
        standby=settings.standby,
    )


def group_of(settings: AppSettings) -> ConsumerGroup | None:
    if not settings.consumer_group:
        return None
    return ConsumerGroup(settings.consumer_group, settings.source_servers, resume=settings.resume)


def main() -> int:
    settings = msgspec.json.decode(sys.argv[1], type=AppSettings)
    beats._BEATS[LOCAL] = timedelta(seconds=settings.beat_s)
    if settings.without_decisions:
        without_decisions()
    if settings.journal:
        from tests.chaos.marks import tell

        options = settings.storage_options or None
        store = CheckpointStore.open(settings.checkpoint, storage_options=options)
        tell(settings.journal, settings.prefix, store)
    spark = session(settings)
    try:
        deliver(spark, settings).awaitTermination()
    except EosError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        # As tests/chaos/driver.py says it: the harness is then the person who is asked.
        return 5 if isinstance(error, DecisionNeededError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
