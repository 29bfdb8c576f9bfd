"""``ArrowKafkaSource``: Kafka topics as Arrow batches, fetched by the tasks themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_eos.arrow.records.decode import COLUMNS
from airflow_eos.arrow.source.task import FusedTask, KafkaInput, ReadRanges, starting_of
from airflow_eos.core.arguments import Count, Topics, take_fields
from airflow_eos.core.checkpoint.inputs import SERVERS
from airflow_eos.core.checkpoint.rulings import skipped_input
from airflow_eos.core.checkpoint.topics import TopicsRead
from airflow_eos.core.delivery.source import StreamSource, reads
from airflow_eos.core.delivery.start_position import StartPosition
from airflow_eos.core.delivery.task import columns_number, in_arrow, is_fixed
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.log import Log
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.offsets import (
    EARLIEST,
    cleanup_policies,
    partitions_of,
    positions,
    topic_ids,
)
from airflow_eos.kafka.client.reading import OffsetSpan
from airflow_eos.kafka.client.settings import KafkaSettings, check_servers
from airflow_eos.kafka.columns import SCHEMA

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.arrow.source.task import Transformation
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.port import Sink
    from airflow_eos.core.delivery.task import SinkTask
    from airflow_eos.core.protocol.decision import SourceRead
    from airflow_eos.sinks.app import App

log = Log(__name__)

_LOOK_FOR_BROKER_S = 20.0
_MODULES = ("pyarrow", "numpy", "msgspec", "kafka", "crc32c", "lz4", "cramjam")


@dataclass(frozen=True)
class ArrowKafkaSource:
    """A Kafka source in Arrow, given to :func:`~airflow_eos.sinks.start_exactly_once`.

    Spark plans which offsets a batch has; its tasks fetch and decode them into Arrow batches, and
    give them to the functions of :meth:`map` and to the sink. It takes Spark 4.2.

    Attributes:
        bootstrap_servers: ``host:port`` pairs separated by commas.
        topics: one topic, or several.
        starting: where an empty checkpoint begins: a :class:`~airflow_eos.sinks.StartPosition`, or
            the text that Spark's option ``startingOffsets`` takes.
        max_rows_per_batch: about how many offsets a batch has at most; None: all there are.
        max_rows_per_task: a longer range of a partition is read by several tasks; then rows of a
            key can change their order. None: one task reads a partition.
        committed_only: rows of open and aborted transactions are left out (``read_committed``).
        kafka_config: further librdkafka properties: security.protocol, sasl.*, ssl.* ...
        max_tasks: the most tasks of a batch, each of which reads several ranges then: small batches
            are ready sooner with one task for each core. None: as many as there are ranges.
        fail_on_data_loss: Spark's ``failOnDataLoss``: False leaves out, with a warning, rows that
            are gone before they were read. For one start, where a person has decided so.
        columns: the columns to decode, of key, value, topic, partition, offset, timestamp, headers.
        transformations: see :meth:`map`.
        schema: what the transformations give, as Spark's DDL; None where there are none.
    """

    bootstrap_servers: str
    topics: Topics
    starting: StartPosition | str = "earliest"
    max_rows_per_batch: Count | None = None
    max_rows_per_task: Count | None = None
    committed_only: bool = True
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    max_tasks: Count | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    transformations: tuple[Transformation, ...] = ()
    schema: str | None = None

    def __post_init__(self) -> None:
        check_servers(self.bootstrap_servers)
        take_fields(self)
        unknown = sorted(set(self.columns) - set(COLUMNS))
        if unknown or not self.columns:
            raise ConfigurationError(
                f"columns {list(self.columns)}: expected some of {', '.join(COLUMNS)}."
            )
        starting_of(self.starting, self._topics)

    @classmethod
    def of_app(cls, app: App, topic: str, **more: Any) -> ArrowKafkaSource:
        """Return a topic's source as the app is configured: Kafka, start or group, rows a batch.

        Args:
            app: the settings of the app.
            topic: one topic.
            more: further attributes, which win.
        """
        group, limit = app.consumer_group, app.source_options.get("maxOffsetsPerTrigger")
        start = None
        if "starting" not in more and group is not None and group.resume:
            start = group.starting_offsets(topic)
        told: dict[str, Any] = {
            "kafka_config": app.kafka.config(),
            "starting": start or app.first_start,
            "max_rows_per_batch": None if limit is None else int(limit),
            "fail_on_data_loss": app.source_options.get("failOnDataLoss", "true") != "false",
        }
        return cls(app.kafka.bootstrap_servers, topic, **(told | more))

    def select(self, *columns: str) -> ArrowKafkaSource:
        """Return this source with these columns alone, in this order; other columns cost nothing.

        Raises:
            ConfigurationError: there is no such column, or a function takes the columns already.
        """
        if self.transformations:
            raise ConfigurationError("select() comes before map(), whose functions take columns.")
        return replace(self, columns=columns)

    def map(self, function: Transformation, schema: str | None = None) -> ArrowKafkaSource:
        """Return this source with ``function`` applied to the batches of each task.

        Args:
            function: an iterator of ``pyarrow.RecordBatch`` in, one out, as for Spark's
                ``mapInArrow``. It is pickled into the tasks; the same rows must give the same.
            schema: what ``function`` gives, as Spark's DDL (``"key binary, value binary"``); None:
                as before.
        """
        return replace(
            self,
            transformations=(*self.transformations, function),
            schema=self.schema if schema is None else schema,
        )

    @property
    def settings(self) -> KafkaSettings:
        """The connection to the cluster."""
        return KafkaSettings.from_librdkafka(
            {**self.kafka_config, "bootstrap.servers": self.bootstrap_servers}
        )

    @property
    def _topics(self) -> tuple[str, ...]:
        return (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)

    def connected(self, spark: SparkSession, store: CheckpointStore) -> OpenedKafkaSource:
        """Open the source for one pipeline, as ``OwnSource`` says.

        Raises:
            ConfigurationError: this Spark is older than 4.2, or its workers lack something.
        """
        import pyspark

        if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
            raise ConfigurationError(
                f"ArrowKafkaSource needs Spark 4.2, whose Python data sources have a start and a "
                f"rate limit; found {pyspark.__version__}. Read with "
                'spark.readStream.format("kafka"), or use a newer Spark.'
            )
        check_workers(
            spark,
            modules=(*_MODULES, "airflow_eos.arrow.source.task"),
            ready="airflow_eos.arrow.records.kernels:warm",
            daemon="airflow_eos.kafka.worker_daemon",
        )
        read = KafkaInput(
            self.settings,
            self._topics,
            store,
            starting_of(self.starting, self._topics),
            self.max_rows_per_batch,
            self.max_rows_per_task,
            self.committed_only,
            self.max_tasks,
            _stepped_over(store, self._topics),
            leaves_out=not self.fail_on_data_loss,
        )
        return OpenedKafkaSource(spark, read, self._task())

    def _task(self) -> ReadRanges:
        import pyarrow as pa
        from pyspark.sql.types import StructType

        if self.schema is None:
            schema = pa.schema([SCHEMA.field(name) for name in self.columns])
        else:
            schema = in_arrow(cast("StructType", StructType.fromDDL(self.schema)))
        return ReadRanges(
            self.settings,
            self.columns,
            self.transformations,
            schema,
            self.committed_only,
            self.fail_on_data_loss,
        )


def _stepped_over(store: CheckpointStore, topics: Sequence[str]) -> tuple[OffsetSpan, ...]:
    """Return the offsets that a person ruled to step over, as they stand when the query starts."""
    found = tuple(
        OffsetSpan(each.topic, each.partition, each.first, each.last + 1)
        for each in skipped_input(store, topics)
    )
    for each in found:
        log.warning("input_is_stepped_over", **asdict(each))
    return found


class OpenedKafkaSource:
    """An :class:`ArrowKafkaSource` opened for one query.

    Attributes:
        frame: a streaming DataFrame of the source's rows, like any other.
    """

    def __init__(self, spark: SparkSession, read: KafkaInput, task: ReadRanges) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._spark = spark
        self._read = read
        self._task = task
        schema = from_arrow_schema(task.schema, prefer_timestamp_ntz=True)
        self.frame: DataFrame = self._stream().mapInArrow(task, schema)

    def fused(self, sink: Sink) -> Callable[[SinkTask], DataFrame] | None:
        """Return what runs a sink's task over the ranges themselves; None where only Spark can."""
        from airflow_eos.arrow.source.columns import prepared_by

        columns = sink.columns(self.frame.schema)
        number = None if is_fixed(sink) else columns_number(self.frame.selectExpr(*columns).schema)
        prepared = prepared_by(columns, self._task.schema, number)
        if prepared is None:
            return None
        return lambda task: self._stream(FusedTask(self._task, prepared, task))

    def _stream(self, work: FusedTask | None = None) -> DataFrame:
        """Return a stream of the ranges, or of what ``work`` makes of them where they are read."""
        from airflow_eos.arrow.source.stream import data_source

        name = f"arrow_kafka_{uuid.uuid4().hex[:8]}"  # a query keeps the class of its own name
        self._spark.dataSource.register(data_source(self._read, name, work))
        return self._spark.readStream.format(name).load()

    def reads(self) -> SourceRead:
        """Return what is read, in the options of Spark's own source of Kafka."""
        starting = self._read.starting
        told = {
            SERVERS: self._read.settings.bootstrap_servers,
            "kafka.isolation.level": f"read_{'' if self._read.committed_only else 'un'}committed",
            "subscribe": ",".join(self._read.topics),
            "startingoffsets": starting if isinstance(starting, str) else json.dumps(starting),
            "failondataloss": str(self._task.fail_on_data_loss).lower(),
            "includeheaders": "true",
        }
        return reads(StreamSource("kafka", told))

    def topics(self, resources: ExitStack) -> TopicsRead:
        """Return the source's topics as :class:`TopicsRead`, which asks their cluster."""
        from airflow_eos.kafka.client.connection import ConnectionPool

        pool = ConnectionPool(self._read.settings, timeout_s=_LOOK_FOR_BROKER_S)
        wire = resources.enter_context(pool)
        topics = self._read.topics
        return TopicsRead(
            ids=partial(topic_ids, wire, topics),
            policies=partial(cleanup_policies, wire, topics),
            begins=lambda: positions(wire, partitions_of(wire, topics, refresh=True), EARLIEST),
            skips_lost=not self._task.fail_on_data_loss,
        )
