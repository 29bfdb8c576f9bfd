"""The Kafka sink: each task of a batch writes one Kafka transaction.

Next in the reading order: the writers (:data:`WRITERS`), which turn Arrow batches into record
batches;
:class:`~airflow_eos.kafka.participant.KafkaParticipant` ends what a task left open.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import msgspec

from airflow_eos.core.arguments import Anything, PositiveSpan, Span, Word, take_fields
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.core.settings import AppSettings
from airflow_eos.errors import ConfigurationError, Remedy
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings, check_servers
from airflow_eos.kafka.transactions.coordinator import TwoPhase
from airflow_eos.kafka.transactions.identity import (
    BY_ROW,
    KIND,
    TransactionIdentity,
    as_transaction,
    as_work,
    check_prefix,
    transactional_id_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.port import TaskWriter
    from airflow_eos.kafka.destination import Destination
    from airflow_eos.kafka.participant import KafkaParticipant
    from airflow_eos.kafka.transactions.identity import WrittenTransaction

Producer = Literal["arrow", "librdkafka"]
_NOBODY_LOOKS = (
    "two_phase=True, and no watchdog looks at this checkpoint within its own intervals, and at "
    "least once in transaction_timeout: what a driver that dies had not decided would hold "
    "read_committed readers up."
)
_SOMEBODY_LOOKS = (
    Remedy(
        change="let the pipeline's watchdog look (unpause it, watchdog_schedule; before a first "
        "look, one start with two_phase='auto')",
        start=True,
    ),
    Remedy(
        settings={"unattended": "True"},
        start=True,
        costs="readers stand still until somebody runs `airflow-eos recover`",
    ),
)
_LOOK_FOR_BROKER_S = 20.0
# Third-party modules by name, so that all missing ones are told at once; then ours, which load
# their own imports, so that the workers have all modules loaded.
TASK_MODULES = ("pyarrow", "numpy", "msgspec", "kafka", "crc32c", "lz4", "cramjam")
WRITERS: dict[Producer, str] = {
    "arrow": "airflow_eos.arrow.producer.writer:TransactionalWriter",
    "librdkafka": "airflow_eos.kafka.writer:LibrdkafkaWriter",
}
"""Each writer's class, by name: this package does without the fast one, which builds on it."""
PRODUCERS = tuple(WRITERS)
# By name: the codecs load libraries, of which all missing ones are told at once.
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def task_modules(producer: Producer) -> tuple[str, ...]:
    """Return the modules that a task needs; loaded before its first row, they cost it nothing."""
    module, _, _ = WRITERS[producer].partition(":")
    theirs = ("confluent_kafka",) if producer == "librdkafka" else ()
    return *TASK_MODULES, *theirs, "airflow_eos.core.delivery.task", __name__, module


@dataclass(frozen=True)
class KafkaSink:
    """The Kafka sink: target, settings and timeouts.

    Attributes:
        bootstrap_servers: ``host:port`` pairs separated by commas.
        topic: for rows without a topic of their own; None where every row has one.
        transactional_id_prefix: owned by one checkpoint; ids are ``<prefix>-eos-<task>-<attempt>``.
        transaction_timeout: the broker aborts an open transaction after this. At most the
            broker's ``transaction.max.timeout.ms`` (15 minutes by default), and at least trigger
            interval + ``batch_within`` + ``recover_within``.
        batch_within: the longest that a batch is expected to take.
        recover_within: after a crash, a recovery is promised to run within this.
        compression: none, gzip, snappy, lz4 or zstd.
        producer: ``arrow`` encodes record batches itself; ``librdkafka`` writes through
            confluent-kafka's producer, slower, for those who prefer its bytes on the wire.
        kafka_config: further librdkafka properties: security.protocol, sasl.*, ssl.* ...
        name: the participant's name in the decisions of the pipeline.
        two_phase: whether transactions are opened so that no timer ends them; ``auto``: where
            the cluster offers it (see docs/settings.md), the writer is ``arrow``, and somebody
            looks after a driver that dies. True refuses to start elsewhere.
        unattended: your word that somebody does, though no watchdog is seen to look: a standby,
            or a schedule of your own that runs ``airflow-eos recover``.
        watched: whether a watchdog looks after this checkpoint; set by :meth:`bound`.
    """

    bootstrap_servers: str
    topic: str | None
    transactional_id_prefix: str
    transaction_timeout: PositiveSpan = AppSettings.transaction_timeout
    batch_within: Span = AppSettings.batch_within
    recover_within: Span = AppSettings.recover_within
    compression: Annotated[str, Word(words=COMPRESSIONS)] = "lz4"
    producer: Producer = "arrow"
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    name: str = DEFAULT_PARTICIPANT
    two_phase: Annotated[TwoPhase, Anything()] = "auto"
    unattended: bool = False
    watched: bool = field(default=False, repr=False)

    perishable: ClassVar[bool] = True  # see core/delivery/spill.py
    fixed_columns: ClassVar[bool] = True  # see core/delivery/task.py
    by_default: ClassVar[tuple[str, ...]] = ("topic",)  # see core/delivery/rehearsal.py

    def __post_init__(self) -> None:
        check_servers(self.bootstrap_servers)
        if not isinstance(self.two_phase, bool) and self.two_phase != "auto":
            raise ConfigurationError(
                f"two_phase={self.two_phase!r}: expected True, False or 'auto'."
            )
        take_fields(self)
        check_prefix(self.transactional_id_prefix)
        check_name(self.name)
        if self.two_phase is True and self.producer != "arrow":
            raise ConfigurationError(
                f"two_phase=True goes with producer='arrow' (found {self.producer!r}): librdkafka "
                "has no call that opens such a transaction. Use producer='arrow', or "
                "two_phase='auto', which opens plain ones there."
            )

    @property
    def opens(self) -> TwoPhase:
        """How its tasks open transactions: never without a timer where nobody looks."""
        is_able = self.producer == "arrow" and (self.watched or self.unattended)
        return self.two_phase if is_able else False

    @property
    def settings(self) -> KafkaSettings:
        """The settings of the connection, for every client."""
        return KafkaSettings.from_librdkafka(
            {**self.kafka_config, "bootstrap.servers": self.bootstrap_servers}
        )

    @property
    def timeout_ms(self) -> int:
        """The transaction timeout in milliseconds."""
        return int(self.transaction_timeout.total_seconds() * 1000)

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`: refuse executors that lack the modules of the tasks."""
        check_importable(self.producer)
        daemon = f"{__package__}.worker_daemon"
        check_workers(spark, modules=task_modules(self.producer), daemon=daemon)

    def connect(self, interval: timedelta) -> KafkaParticipant:
        """See :meth:`Sink.connect`: check the cluster, the topic and the timeouts."""
        # Imported here: tasks import this module, and do not need the driver's modules.
        from airflow_eos.kafka.participant import KafkaParticipant
        from airflow_eos.kafka.preflight import check_cluster, require_two_phase
        from airflow_eos.kafka.transactions.ownership import PrefixLedger

        if self.two_phase is True and self.opens is False:
            raise ConfigurationError(_NOBODY_LOOKS, *_SOMEBODY_LOOKS)
        with closed_on_error(ConnectionPool(self.settings, timeout_s=_LOOK_FOR_BROKER_S)) as wire:
            check_cluster(
                wire,
                topic=self.topic,
                timeout=None if self.opens is True else self.transaction_timeout,
                trigger=interval,
                batch=self.batch_within,
                recovery=self.recover_within,
            )
            if self.opens is True:
                require_two_phase(wire, self.transactional_id_prefix)
        ledger = PrefixLedger(self.settings, prefix=self.transactional_id_prefix)
        target = f"{KIND}:{self.topic or BY_ROW}"
        return KafkaParticipant(
            wire, ledger, name=self.name, target=target, timeouts_ms={self.timeout_ms}
        )

    def bound(self, store: CheckpointStore) -> KafkaSink:
        """See :meth:`Sink.bound`: look whether somebody watches this checkpoint."""
        if self.two_phase is False or self.unattended or self.producer != "arrow":
            return self
        from airflow_eos.core.checkpoint.watchdog_record import is_watched

        # As often as a timer would end what nobody decides: a look a day is no look for readers.
        return replace(self, watched=is_watched(store, self.timeout_ms))

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`; the columns are those of Spark's own Kafka sink."""
        return kafka_columns(schema, row, default_topic=self.topic)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        return _TransactionOfTask(self, task, task_attempt, transactional=transactional)

    def warm(self, rows: pa.RecordBatch) -> None:
        """Connect this worker and look the rows' topics up; take no id, and send nothing."""
        _warm_writer(self).destination.require_sendable(rows)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`."""
        return read_back(spark, self.settings, works)

    def topics_of(self, works: Sequence[PreparedWork]) -> set[str]:
        """Return the topics that this work has rows in, and the one for rows that name none."""
        written = {each.topic for work in works for each in as_transaction(work).written}
        return written if self.topic is None else {self.topic, *written}

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return topic → id, of those that have one."""
        from airflow_eos.kafka.client.offsets import topic_ids

        with ConnectionPool(self.settings, timeout_s=_LOOK_FOR_BROKER_S) as wire:
            return topic_ids(wire, topics)

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Return why rows would go to another topic than this work did; empty: they would not.

        Rows with a column ``topic`` are not asked about: their hash has the topic.
        """
        went = {each.topic for work in works for each in as_transaction(work).written}
        if "topic" in columns or went <= {self.topic}:
            return ""
        return f"rows are in topic {', '.join(sorted(went))}, and would go to {self.topic}"

    def into_empty(self, topic: str) -> KafkaSink:
        """Return this sink for an empty ``topic``, so that nobody takes its rows for delivered.

        Raises:
            ConfigurationError: the topic has, or had, rows.
            TopicError: the topic does not exist.
        """
        from airflow_eos.kafka.client.offsets import LATEST, positions

        with ConnectionPool(self.settings, timeout_s=_LOOK_FOR_BROKER_S) as wire:
            partitions = [(topic, partition) for partition in wire.cluster.leaders(topic)]
            ends = positions(wire, partitions, LATEST, committed_only=False)
        if topic == self.topic or any(ends.values()):
            raise ConfigurationError(
                f"Topic {topic!r} is to keep the rows of a rehearsal, and has, or had, rows: its "
                "readers would take them for delivered. Expected an empty topic.",
                Remedy(change="make a new topic, and rehearse again with it"),
            )
        return replace(self, topic=topic)


class _TransactionOfTask:
    """A ``TaskWriter``: one transaction, by a reused writer."""

    def __init__(
        self, sink: KafkaSink, task: int, task_attempt: int, *, transactional: bool
    ) -> None:
        # Where Spark repeats a whole stage it counts attempts anew (TaskContext.attemptNumber): a
        # late copy may then fence this transaction. Settling the decision finds that, and the rows
        # are replayed.
        transactional_id = transactional_id_of(sink.transactional_id_prefix, task, task_attempt)
        self._sink = sink
        self._prepared: TransactionIdentity | None = None
        self._writer = _warm_writer(sink)
        self._writer.begin(transactional_id if transactional else None, sink.timeout_ms)

    def write(self, rows: pa.RecordBatch) -> None:
        """Encode and send rows."""
        self._writer.write(rows)

    def finish(self) -> None:
        """Let the writer send what is left."""
        self._writer.finish()

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Wait until every row is acknowledged, and leave the transaction open."""
        written = self._writer.prepare()
        if written is None:
            return None
        self._prepared = written.identity
        transaction = written.prepared(fingerprint)
        return as_work(transaction, self._sink.name) if transaction is not None else None

    def abort(self) -> None:
        """Abort the transaction, prepared or not, since it holds up readers; drop the writer."""
        _forget_writer(self._sink)
        self._writer.abort(self._prepared)


# One writer for each target in a Python worker. Spark keeps workers between batches, so
# connections and metadata stay warm; a writer keeps no transaction after prepare or abort.
_writers: dict[tuple[object, ...], Writer] = {}


def _target(sink: KafkaSink) -> tuple[object, ...]:
    settings = tuple(sorted((k, str(v)) for k, v in sink.settings.librdkafka().items()))
    # With the prefix: several outputs of a task may go to one topic, in a transaction each.
    prefix = sink.transactional_id_prefix
    return settings, sink.topic, sink.compression, sink.producer, sink.opens, prefix


def _warm_writer(sink: KafkaSink) -> Writer:
    target = _target(sink)
    if target not in _writers:
        _writers[target] = open_writer(
            sink.settings,
            producer=sink.producer,
            topic=sink.topic,
            compression=sink.compression,
            two_phase=sink.opens,
        )
    return _writers[target]


def _forget_writer(sink: KafkaSink) -> None:
    """Drop the writer, so that after a failure the next task has a new connection."""
    _writers.pop(_target(sink), None)


# --- writers --------------------------------------------------------------------------------------
# The port of a task's writer, and the choice between its two implementations.
#
# ``arrow`` encodes record batches itself, ``librdkafka`` leaves that to confluent-kafka's producer.
# Both refuse the same rows, leave the same transaction open and are ended by the same coordinator.


class Writer(Protocol):
    """A writer of successive transactions: ``begin`` → ``write`` … → ``prepare``, or ``abort``."""

    @property
    def destination(self) -> Destination:
        """Where rows go, which can be asked without a transaction."""
        ...

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Begin a transaction, in name only until its first row; None: write without one."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows; an error can come from a later call, after it only ``abort`` is of use."""

    def finish(self) -> None:
        """Begin to send what is left, and return at once; an error may come from ``prepare``."""

    def prepare(self) -> WrittenTransaction | None:
        """Wait until all rows are acknowledged, leave the transaction open; None: no rows."""

    def abort(self, prepared: TransactionIdentity | None = None) -> None:
        """Abort the begun transaction, if there is one, and ``prepared``."""


def check_importable(producer: Producer) -> None:
    """Refuse a producer whose library is not installed where this runs.

    Raises:
        ConfigurationError: confluent-kafka cannot be imported.
    """
    if producer != "librdkafka":
        return
    try:
        importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise ConfigurationError(
            f"producer='librdkafka' needs confluent-kafka, which cannot be imported here: {error}. "
            "Install confluent-kafka>=2.16 on the driver and on every executor, or use "
            "producer='arrow'."
        ) from error


def open_writer(
    settings: KafkaSettings,
    *,
    producer: Producer,
    topic: str | None,
    compression: str,
    two_phase: TwoPhase = False,
) -> Writer:
    """Return a writer with connections of its own; ``two_phase`` for ``arrow`` alone.

    Raises:
        ConfigurationError: no such compression, or the producer's library is not installed.
        KafkaError: no broker answers, or it does not accept these credentials.
    """
    check_importable(producer)
    kind = pkgutil.resolve_name(WRITERS[producer])
    more = {"two_phase": two_phase} if producer == "arrow" else {}
    writer: Writer = kind(ConnectionPool(settings), topic=topic, compression=compression, **more)
    return writer


# --- columns --------------------------------------------------------------------------------------


_TEXT = ("string", "binary")
ACCEPTED: dict[str, tuple[str, ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def kafka_columns(schema: StructType, row: str, *, default_topic: str | None) -> list[str]:
    """Return the columns of ``schema`` in a fixed order, ready for the writer, as SQL.

    Raises:
        ConfigurationError: the value column is missing, a column has a wrong type or is not
            known, or no topic is named.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    _check(types, default_topic)
    # Kafka knows no null headers and no microseconds. Rows must be hashed as they are written, or
    # rows read back for a replay would not compare equal.
    as_kafka_has_it = {
        "headers": f"coalesce({row}`headers`, cast(array() AS {ACCEPTED['headers'][0]}))",
        "timestamp": f"date_trunc('millisecond', {row}`timestamp`)",
        "topic": f"coalesce({row}`topic`, {_literal(default_topic)})",
    }
    return [
        f"{as_kafka_has_it.get(name, f'{row}`{name}`')} AS `{name}`"
        for name in ACCEPTED
        if name in types
    ]


def _literal(text: str | None) -> str:
    if text is None:
        return "cast(NULL AS string)"
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _check(types: dict[str, str], default_topic: str | None) -> None:
    if "value" not in types:
        raise ConfigurationError(
            f"The rows have no column 'value' (found: {', '.join(types) or 'none'}). Select one of "
            "type string or binary, for example to_json(struct(...)) AS value."
        )
    for name, found in types.items():
        accepted = ACCEPTED.get(name)
        if accepted is None:
            raise ConfigurationError(
                f"The rows have a column '{name}' that Kafka has no place for. Expected only "
                f"{', '.join(ACCEPTED)}: drop it, or put it into the value."
            )
        if found not in accepted:
            raise ConfigurationError(
                f"Column '{name}' is of type {found}; expected {' or '.join(accepted)}. Cast it: "
                f"col('{name}').cast('{accepted[0]}')."
            )
    if default_topic is None and "topic" not in types:
        raise ConfigurationError(
            "No topic: the sink names none and the rows have no column 'topic'. Give KafkaSink "
            "a topic, or select one for each row."
        )


# --- read back ------------------------------------------------------------------------------------
# Rows of committed transactions, read back by Spark's executors, one task a transaction.


DELIVERED_SCHEMA = (
    "value binary, key binary, topic string, partition int, "
    "headers array<struct<key:string,value:binary>>, timestamp timestamp"
)


def read_back(
    spark: SparkSession, settings: KafkaSettings, works: Sequence[PreparedWork]
) -> DataFrame:
    """Read back the rows of ``works``, as :data:`DELIVERED_SCHEMA`."""
    wanted = [(msgspec.json.encode(work),) for work in works]
    frame = spark.createDataFrame(wanted, "work binary")
    return frame.repartition(max(1, len(wanted))).mapInArrow(_ReadBack(settings), DELIVERED_SCHEMA)


@dataclass(frozen=True)
class _ReadBack:
    settings: KafkaSettings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_eos.kafka.transactions.outcomes import delivered_rows

        columns = ["value", "key", "topic", "partition", "headers", "timestamp"]
        with ConnectionPool(self.settings) as wire:
            for batch in batches:
                transactions = [
                    as_transaction(msgspec.json.decode(encoded, type=PreparedWork))
                    for encoded in batch.column("work").to_pylist()
                ]
                for rows in delivered_rows(wire, transactions):
                    yield rows.select(columns)


# --- configuration --------------------------------------------------------------------------------


class KafkaOptions(SinkOptions, frozen=True):
    """The options of a Kafka sink; without ``how`` the topic is in the app's own cluster."""

    topic: str | None = None
    transactional_id_prefix: str | None = None
    compression: str | None = None
    producer: Producer | None = None
    two_phase: bool | Literal["auto"] | None = None
    unattended: bool | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> KafkaSink:
        """See :meth:`SinkOptions.sink`."""
        return kafka_sink(_settings(app, how), app, **{"name": name, "topic": None, **self.given()})


def kafka_sink(settings: KafkaSettings, app: AppFacts, **given: Any) -> KafkaSink:
    """Return a sink with the app's timeouts and prefix, where ``given`` has no others."""
    return KafkaSink(
        **{
            "bootstrap_servers": settings.bootstrap_servers,
            "transactional_id_prefix": app.prefix,
            "transaction_timeout": app.transaction_timeout,
            "batch_within": app.batch_within,
            "recover_within": app.recover_within,
            "kafka_config": settings.config(),
            **given,
        }
    )


def _settings(app: AppFacts, how: Any) -> KafkaSettings:
    if how is None:
        of_the_app: KafkaSettings = app.kafka
        return of_the_app
    if not isinstance(how, Mapping):
        raise unreached("a librdkafka configuration, as a Kafka connection's extra has it")
    return KafkaSettings.from_librdkafka(how)


OPTIONS = KafkaOptions
