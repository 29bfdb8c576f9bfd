"""The Kafka sink: what a task of a batch does, one transaction a task.

Next in the reading order: ``airflow_eos.kafka.producer.writer``, which turns Arrow batches into
record batches (``kafka.writing`` chooses between it and the one over librdkafka);
:class:`~airflow_eos.sinks.committer.KafkaCommitter` ends on the driver what a task left open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import ConfigurationError, SupersededError
from airflow_eos.failpoints import failpoint
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.writing import PRODUCERS, Producer, Writer, open_writer
from airflow_eos.sinks.columns import kafka_rows
from airflow_eos.sinks.fingerprint import HASH_COLUMN, Fingerprint, with_row_hashes
from airflow_eos.sinks.protocol import TaskReport
from airflow_eos.sinks.reports import collected
from airflow_eos.sinks.worker import tune_process
from airflow_eos.transactions import PreparedTransaction, check_prefix

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class KafkaSink:
    """Where rows go, and within which times.

    Attributes:
        bootstrap_servers: ``host:port`` pairs separated by commas.
        topic: for rows without a topic of their own; None where every row has one.
        transactional_id_prefix: owned by one checkpoint; ids are ``<prefix>-<task>-<attempt>``.
        transaction_timeout: the broker aborts an open transaction after this. At most the
            broker's ``transaction.max.timeout.ms`` (15 minutes by default), and at least trigger
            interval + ``batch_within`` + ``recover_within``.
        batch_within: the longest that a batch is expected to take.
        recover_within: after a crash, a recovery is promised to run within this.
        compression: none, gzip, snappy, lz4 or zstd.
        producer: ``arrow`` encodes record batches itself; ``librdkafka`` writes through
            confluent-kafka's producer, slower, for those who prefer its bytes on the wire.
        kafka_config: further librdkafka properties: security.protocol, sasl.*, ssl.* ...
    """

    bootstrap_servers: str
    topic: str | None
    transactional_id_prefix: str
    transaction_timeout: timedelta = timedelta(minutes=15)
    batch_within: timedelta = timedelta(minutes=1)
    recover_within: timedelta = timedelta(minutes=5)
    compression: str = "lz4"
    producer: Producer = "arrow"
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_prefix(self.transactional_id_prefix)
        if self.producer not in PRODUCERS:
            raise ConfigurationError(
                f"producer {self.producer!r}: expected one of {', '.join(PRODUCERS)}."
            )

    @property
    def settings(self) -> KafkaSettings:
        """The connection, for every client."""
        return KafkaSettings.from_librdkafka(
            {**self.kafka_config, "bootstrap.servers": self.bootstrap_servers}
        )

    @property
    def timeout_ms(self) -> int:
        """The transaction timeout in milliseconds."""
        return int(self.transaction_timeout.total_seconds() * 1000)

    def rows(self, df: DataFrame) -> DataFrame:
        """See :meth:`Sink.rows`; the columns are those of Spark's own Kafka sink."""
        return kafka_rows(df, default_topic=self.topic)

    def streamed(self, df: DataFrame) -> DataFrame:
        """See :meth:`Sink.streamed`: the rows themselves, which a replay reads twice."""
        return df

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`Sink.prepare`."""
        return collected(self.tasks(rows, only=only))

    def tasks(
        self, rows: DataFrame, *, only: Collection[int] | None = None, transactional: bool = True
    ) -> DataFrame:
        """The report of each task; who reads them makes the tasks write."""
        task = _Task(self, None if only is None else frozenset(only), transactional=transactional)
        return with_row_hashes(rows).mapInArrow(task, "report binary")


@dataclass(frozen=True)
class PlannedSink:
    """A sink whose tasks are a part of the streaming query, so that no row leaves its plan.

    Rows that ``foreachBatch`` is given are a query of their own: planned again for each batch,
    and copied once more. They can be read again, though, which a replay needs: where a promise is
    waiting to be kept, the query runs with ``sink`` alone.
    """

    sink: KafkaSink
    transactional: bool = True

    @property
    def transactional_id_prefix(self) -> str:
        """That of ``sink``."""
        return self.sink.transactional_id_prefix

    def streamed(self, df: DataFrame) -> DataFrame:
        """See :meth:`Sink.streamed`: the reports of the tasks that write the rows."""
        return self.sink.tasks(self.sink.rows(df), transactional=self.transactional)

    def rows(self, df: DataFrame) -> DataFrame:
        """See :meth:`Sink.rows`: they were brought into the sink's types before."""
        return df

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`Sink.prepare`.

        Raises:
            SupersededError: only some tasks should write.
        """
        if only is not None:
            raise SupersededError(
                "The batch was promised by another driver after this query had started, which "
                "cannot replay it. Nothing is lost. Keep one of the two drivers, and start the "
                "query again: it keeps the promise."
            )
        return collected(rows)


@dataclass(frozen=True)
class _Task:
    """The function that Spark runs for each partition of a batch."""

    sink: KafkaSink
    only: frozenset[int] | None
    transactional: bool = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:  # pragma: no cover - Spark sets it for every task
            raise RuntimeError("KafkaSink runs inside a Spark task only")
        report = self.run(context.partitionId(), context.attemptNumber(), batches)
        yield pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(report)]})

    def run(self, task: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task and leave its transaction open."""
        if self.only is not None and task not in self.only:
            return _drain(task, batches)
        # Bounded by tasks x attempts. Where Spark repeats a whole stage it counts attempts anew
        # (TaskContext.attemptNumber): a late copy may then fence this transaction. That is seen
        # when the decision is settled, and the rows are replayed.
        transactional_id = f"{self.sink.transactional_id_prefix}-{task}-{attempt}"
        writer = _warm_writer(self.sink)
        writer.begin(transactional_id if self.transactional else None, self.sink.timeout_ms)
        fingerprint = Fingerprint()
        rows = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    fingerprint.add(batch)
                    writer.write(batch.drop_columns(HASH_COLUMN))
                    rows += batch.num_rows
                    failpoint("task-wrote")
            written = writer.prepare()
        except BaseException:
            # A killed task ends here too (GeneratorExit). Nothing names this transaction yet.
            _forget_writer(self.sink)
            writer.abort()
            raise
        failpoint("task-prepared")
        transaction = None
        if written is not None and written.identity is not None:
            transaction = PreparedTransaction(
                transactional_id=written.identity.transactional_id,
                producer_id=written.identity.producer_id,
                producer_epoch=written.identity.producer_epoch,
                written=written.written,
                rows=written.rows,
                fingerprint=fingerprint.hex(),
                opened_at_ms=written.opened_at_ms,
                timeout_ms=written.timeout_ms,
            )
        if written is not None:
            tune_process()
        return TaskReport(task, rows, fingerprint.hex(), transaction)


def _drain(task: int, batches: Iterator[pa.RecordBatch]) -> TaskReport:
    """Read the rows without writing them: Spark's state needs them read."""
    fingerprint = Fingerprint()
    rows = 0
    for batch in batches:
        if batch.num_rows:
            fingerprint.add(batch)
            rows += batch.num_rows
    return TaskReport(task, rows, fingerprint.hex())


# One writer for each target in a Python worker. Spark keeps workers between batches, so
# connections and metadata stay warm; a writer keeps no transaction after prepare or abort.
_writers: dict[tuple[object, ...], Writer] = {}


def _target(sink: KafkaSink) -> tuple[object, ...]:
    settings = tuple(sorted((k, str(v)) for k, v in sink.settings.librdkafka().items()))
    return settings, sink.topic, sink.compression, sink.producer


def _warm_writer(sink: KafkaSink) -> Writer:
    target = _target(sink)
    if target not in _writers:
        _writers[target] = open_writer(
            sink.settings, producer=sink.producer, topic=sink.topic, compression=sink.compression
        )
    return _writers[target]


def _forget_writer(sink: KafkaSink) -> None:
    """After a failure the next task starts from a new connection."""
    _writers.pop(_target(sink), None)
