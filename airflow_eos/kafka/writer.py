"""The transactional writer over librdkafka, which encodes and sends the rows.

Rows are refused by their :class:`~airflow_eos.kafka.destination.Destination`, before any is sent;
librdkafka chooses partitions, encodes, sends and resends. It cannot list, describe or hand over a
transaction, so the producer id and epoch come from the coordinator (``holder``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Producer

from airflow_eos.errors import (
    ConfigurationError,
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    RowError,
    TimeoutBudgetError,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.columns import timestamps_of
from airflow_eos.kafka.destination import Destination
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    DELIVERY_TIMEOUT_S,
    OffsetRange,
    PendingTransaction,
    TransactionSlot,
    WrittenTransaction,
    unknown_offsets,
    with_ids,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from confluent_kafka import Message as Delivered

    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.kafka.transactions.identity import TransactionIdentity

PURGED = {Code._PURGE_QUEUE, Code._PURGE_INFLIGHT}  # noqa: SLF001 - public, in spite of the name
"""Codes of rows that were purged after their transaction failed: its error is reported instead."""
_FENCING = {Code._FENCED, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
_OF_A_TOPIC = {
    Code._UNKNOWN_TOPIC,  # noqa: SLF001
    Code._UNKNOWN_PARTITION,  # noqa: SLF001
    Code.UNKNOWN_TOPIC_OR_PART,
    Code.TOPIC_EXCEPTION,
}
_NOT_REACHED = {
    Code._MSG_TIMED_OUT,  # noqa: SLF001
    Code._TIMED_OUT,  # noqa: SLF001
    Code._TIMED_OUT_QUEUE,  # noqa: SLF001
    Code._TRANSPORT,  # noqa: SLF001
    Code._RESOLVE,  # noqa: SLF001
    Code._ALL_BROKERS_DOWN,  # noqa: SLF001
}
_NOT_ACCEPTED = {Code._AUTHENTICATION, Code._SSL}  # noqa: SLF001


def translated(error: Code, doing: str, *, acl: str) -> KafkaError | TimeoutBudgetError:
    """Translate librdkafka's error into the error to raise.

    Args:
        error: the error that librdkafka reported.
        doing: the action that failed, as in "while taking transactional id 'a'".
        acl: operation and resource that the request needs, as in "Write on Topic 'a'".
    """
    code = error.code()
    said = f"librdkafka reports {error.name()} {doing}: {error.str()}"
    if code in _FENCING:
        return FencedError(
            f"{said}. So somebody else took the transactional id, or the broker aborted the "
            "transaction because its timeout passed while it was being written."
        )
    if code == faults.INVALID_TRANSACTION_TIMEOUT:
        return TimeoutBudgetError(
            f"{said}. The transaction timeout is above the broker's transaction.max.timeout.ms "
            "(15 min unless set): lower the timeout or raise that."
        )
    if faults.is_row_refusal(code):
        # librdkafka reports one code for all rows of a batch: the refused row is not known.
        return faults.row_refused(code, doing, said=f"{error.str()} (librdkafka names no row)")
    if code in _OF_A_TOPIC:
        return TopicError(f"{said}. Create the topic, or correct its name or the partition.")
    if code in _NOT_ACCEPTED:
        return KafkaError(f"{said}. Check security.protocol, sasl.* and ssl.*.")
    if code in _NOT_REACHED or error.retriable():
        return KafkaUnavailableError(f"{said}. Check that the brokers run and can be reached.")
    if code > 0:
        return faults.refusal(code, doing, acl=acl, otherwise=TransactionError)
    return TransactionError(f"{said}.")


# --- reports --------------------------------------------------------------------------------------
# Delivery reports of the rows that librdkafka was given, with their offsets.


class Reports:
    """Delivery reports, summed up. Refers to no producer, so that dropping one destroys it.

    ``failure`` is the first failure, with its topic and partition.
    """

    def __init__(self) -> None:
        self.failure: tuple[Code, str | None, int | None] | None = None
        self._first: dict[tuple[str, int], int] = {}
        self._last: dict[tuple[str, int], int] = {}

    def __call__(self, error: Code | None, message: Delivered) -> None:
        """Record one delivery report, as librdkafka's ``on_delivery``."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None:
            if self.failure is None and error.code() not in PURGED:
                self.failure = error, topic, partition
            return
        where = str(topic), -1 if partition is None else partition
        offset = -1 if offset is None else offset
        # The minimum keeps an offset below 0: the broker no longer knew that row's offset.
        self._first[where] = min(self._first.get(where, offset), offset)
        self._last[where] = max(self._last.get(where, offset), offset)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Return the offsets of the acknowledged rows, partition by partition.

        Raises:
            TransactionError: the broker no longer knew an offset.
        """
        for (topic, partition), first in self._first.items():
            if first < 0:
                raise unknown_offsets(topic, partition)
        return tuple(
            OffsetRange(*where, first, self._last[where]) for where, first in self._first.items()
        )


# --- transactional producer -----------------------------------------------------------------------
# One producer of librdkafka for one transaction: rows out, delivery reports in, then dropped.


_MAX_BATCH_BYTES = 1_000_000
_MAX_QUEUE_KIB = 64 * 1024
_MOST_BYTES = 1_000_000_000
"""The highest value of message.max.bytes: librdkafka compares it before compression, the broker the
topic's after; rows have been checked against the topic's by then."""
_LINGER_MS = 20
_SOCKET_TIMEOUT_MS = 30_000
_SERVE_S = 0.1


def producer_config(
    settings: KafkaSettings,
    *,
    transactional_id: str | None,
    timeout_ms: int,
    compression: str,
    batch_bytes: int,
    delivery_timeout_s: float,
) -> dict[str, Any]:
    """Return the producer's configuration: the user's, over our tuning, under the protocol's."""
    tuning = {
        "linger.ms": _LINGER_MS,
        "batch.num.messages": 100_000,
        "queue.buffering.max.kbytes": _MAX_QUEUE_KIB,
        # librdkafka's default is the transaction timeout: 15 min until it sees a lost connection.
        "socket.timeout.ms": min(_SOCKET_TIMEOUT_MS, timeout_ms),
    }
    needed: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        # As Java's clients, so that all rows of a key share a partition; the default is CRC32.
        "partitioner": "murmur2_random",
        "compression.type": compression,
        "batch.size": min(batch_bytes, _MAX_BATCH_BYTES),
        "message.max.bytes": _MOST_BYTES,
        "message.timeout.ms": int(delivery_timeout_s * 1000),
        "delivery.report.only.error": False,  # the others tell the offsets
    }
    if transactional_id is not None:
        needed |= {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            # librdkafka refuses a message timeout above the transaction's.
            "message.timeout.ms": min(int(delivery_timeout_s * 1000), timeout_ms),
        }
    return {**tuning, **settings.librdkafka(), **needed}


class TransactionalProducer:
    """A librdkafka producer for one transaction, or for rows without one.

    Raises:
        ConfigurationError: librdkafka does not take the configuration.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._transactional_id: str | None = config.get("transactional.id")
        self._reports = Reports()
        self.batch_bytes: int = config["batch.size"]
        try:
            self._producer: Producer | None = Producer(config | {"on_delivery": self._reports})
        except KafkaException as error:
            raise ConfigurationError(
                f"librdkafka does not take these settings: {error.args[0].str()}. Correct "
                "kafka_config."
            ) from error

    def take_id(self, timeout_s: float) -> None:
        """Take the transactional id: fence its holder and abort the holder's open transaction."""
        try:
            self._live.init_transactions(timeout_s)
        except KafkaException as error:
            raise self._translated(error.args[0], "while taking") from error

    def begin(self) -> None:
        """Begin the transaction of the rows that follow."""
        self._live.begin_transaction()

    def send(self, messages: Iterable[Message]) -> None:
        """Queue rows at librdkafka; wait while its queue is full.

        Raises:
            FencedError, RowError, TopicError, TransactionError: refused for good.
            KafkaUnavailableError: not delivered within the delivery timeout.
        """
        producer = self._live
        for topic, key, value, partition, timestamp, headers in messages:
            while True:
                try:
                    producer.produce(
                        topic,
                        value=value,
                        key=key,
                        partition=partition,
                        timestamp=timestamp,
                        headers=headers,
                    )
                    break
                except BufferError:
                    self._make_room(key)
                except KafkaException as error:
                    self._serve(producer.poll, 0)
                    self._refuse_failed()
                    raise self._translated(error.args[0], "while writing under") from error
        self._serve(producer.poll, 0)

    def deliver(self) -> None:
        """Wait until every row is acknowledged; errors as of :meth:`send`."""
        while self._serve(self._live.flush, 1.0):  # message.timeout.ms ends it
            pass
        self._refuse_failed()

    def written(self) -> tuple[OffsetRange, ...]:
        """Return the offsets of the acknowledged rows, partition by partition."""
        return self._reports.ranges()

    def abort(self, timeout_s: float) -> None:
        """Drop the rows that are not sent and abort the transaction.

        Raises:
            KafkaError: the abort failed, or this producer may not abort any more.
        """
        if self._transactional_id is not None:
            self._serve(self._live.abort_transaction, timeout_s)
            return
        self._live.purge()
        self._serve(self._live.flush, timeout_s)

    def let_go(self) -> None:
        """Drop the producer and leave its transaction open.

        ``close()`` and ``with`` would abort it. The destructor ends no transaction: it calls
        ``rd_kafka_destroy`` (``Producer_dealloc`` in confluent-kafka's Producer.c), which closes
        the connections. No other object refers to the producer, so the destructor runs now.
        """
        self._producer = None

    @property
    def _live(self) -> Producer:
        if self._producer is None:
            raise ConfigurationError("This producer was let go: begin another transaction.")
        return self._producer

    def _make_room(self, key: Any) -> None:
        """Serve delivery reports to make room in the queue; refuse a row larger than the queue."""
        if not len(self._live):
            raise RowError(
                f"the row with key {key!r:.60} is larger than librdkafka's whole queue: raise "
                "queue.buffering.max.kbytes in kafka_config, or send less in one row"
            )
        self._serve(self._live.poll, _SERVE_S)

    def _serve(self, waiting: Callable[[float], Any], timeout_s: float) -> Any:
        """Call a function that runs callbacks, and translate librdkafka's fatal errors from it.

        confluent-kafka raises an error within one callback and calls the next one all the same:
        CPython makes a SystemError of that, with the true error as its cause.
        """
        try:
            return waiting(timeout_s)
        except (KafkaException, SystemError) as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            self._refuse_failed()
            if not isinstance(cause, KafkaException):
                raise
            raise self._translated(cause.args[0], "while writing under") from error

    def _refuse_failed(self) -> None:
        if self._reports.failure is not None:
            error, topic, partition = self._reports.failure
            where = f"while writing to partition {partition} of topic {topic!r}"
            raise translated(error, where, acl=f"Write on Topic {topic!r}")
        held_against = self._transaction_error()
        if held_against is not None:
            raise self._translated(held_against, "while writing under")

    def _transaction_error(self) -> Code | None:
        """Return the error for which the transaction cannot go on, or None.

        librdkafka keeps the error and returns it from any transactional function that does not fit
        the state (``rd_kafka_txn_require_states0``). A second ``begin_transaction`` is a harmless
        one: without an error it is refused with _STATE.
        """
        if self._transactional_id is None:
            return None
        try:
            self._live.begin_transaction()
        except KafkaException as error:
            reason: Code = error.args[0]
            return None if reason.code() == Code._STATE else reason  # noqa: SLF001
        raise TransactionError(
            f"librdkafka knows of no transaction under {self._transactional_id!r} although one "
            "was begun; the task writes its rows again."
        )

    def _translated(self, error: Code, doing: str) -> KafkaError | TimeoutBudgetError:
        if self._transactional_id is None:
            return translated(error, "while writing", acl="IdempotentWrite on Cluster")
        named = f"{doing} transactional id {self._transactional_id!r}"
        return translated(error, named, acl=f"Write on TransactionalId {self._transactional_id!r}")


Message = tuple[Any, Any, Any, int, int, Any]
"""A row: (topic, key, value, partition or -1, timestamp in ms, (name, value) headers or None)."""


def messages(rows: pa.RecordBatch, default_topic: str | None) -> Iterable[Message]:
    """Yield the rows, in their order, as messages for librdkafka.

    Raises:
        RowError: a timestamp that librdkafka would not send as it is.
    """

    def column(name: str) -> Iterable[Any]:
        return rows.column(name).to_pylist() if name in rows.schema.names else repeat(None)

    for value, key, topic, partition, timestamp, headers in zip(
        rows.column("value").to_pylist(),
        column("key"),
        column("topic"),
        column("partition"),
        _timestamps(rows),
        column("headers"),
        strict=False,
    ):
        yield (
            default_topic if topic is None else topic,
            key,
            value,
            -1 if partition is None else partition,
            timestamp,
            [(header["key"], header["value"]) for header in headers] if headers else None,
        )


def _timestamps(rows: pa.RecordBatch) -> Iterable[int]:
    times = timestamps_of(rows, now_ms=time.time_ns() // 1_000_000)
    if isinstance(times, int):
        return repeat(times)
    listed: list[int] = times.tolist()
    if 0 in listed:
        raise RowError(
            f"row {listed.index(0)} has the timestamp 0 (1970-01-01), which librdkafka takes for "
            "'now': correct it, or use producer='arrow'"
        )
    return listed


# --- writer ---------------------------------------------------------------------------------------


_TAKE_ID_S = 60.0
_ABORT_S = 35.0


@dataclass(slots=True)
class _LibrdkafkaTransaction(PendingTransaction):
    """This writer's transaction: ``producer`` and ``identity`` are set with the first row."""

    producer: TransactionalProducer | None = None
    identity: TransactionIdentity | None = None


class LibrdkafkaWriter:
    """Writer of Arrow batches row by row, with a new librdkafka producer for each transaction.

    Args:
        wire: connections for topics and coordinators, reused; the caller closes them.
        topic: the topic of rows without a ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Methods are those of :class:`~airflow_eos.kafka.sink.Writer`. librdkafka has one ``batch.size``
    for all topics, set by the smallest ``max.message.bytes``: a topic with a smaller limit that
    first occurs later in a transaction is refused with RowError.
    """

    def __init__(
        self, wire: ConnectionPool, *, topic: str | None, compression: str = "lz4"
    ) -> None:
        self._wire = wire
        self.destination = Destination(wire, topic=topic, compression=compression)
        self._coordinator = TransactionCoordinator(wire)
        self._slot: TransactionSlot[_LibrdkafkaTransaction] = TransactionSlot()

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Begin a transaction, locally only: no request is sent before the first row."""
        self._slot.begin(_LibrdkafkaTransaction(transactional_id, timeout_ms))

    def write(self, rows: pa.RecordBatch) -> None:
        """Hand rows to librdkafka; if one row is refused, none of the rows is sent."""
        current = self._slot.current()
        if not rows.num_rows:
            return
        self.destination.require_sendable(rows)
        producer = current.producer or self._started(current)
        batch_bytes = self.destination.topics.max_batch_bytes
        if batch_bytes < producer.batch_bytes:
            raise RowError(
                f"a topic of these rows takes record batches of {batch_bytes} "
                f"bytes (max.message.bytes), the topics before them {producer.batch_bytes}: "
                "librdkafka has one size for all; give the topics one limit, or use "
                "producer='arrow'"
            )
        producer.send(messages(rows, self.destination.topic))
        current.rows += rows.num_rows

    def finish(self) -> None:
        """Do nothing: librdkafka sends by itself."""

    def prepare(self) -> WrittenTransaction | None:
        """Wait until all rows are acknowledged; return the transaction, open, and forget it."""
        current = self._slot.current()
        if current.producer is None:
            self._slot.release()
            return None
        current.producer.deliver()
        written = current.written(
            current.identity, with_ids(self._wire.cluster, current.producer.written())
        )
        self._slot.release()
        current.producer.let_go()
        return written

    def abort(self, prepared: TransactionIdentity | None = None) -> None:
        """See :meth:`~airflow_eos.kafka.sink.Writer.abort`."""
        current = self._slot.release()
        if prepared is not None:
            end_transactions(self._wire, [prepared], commit=False)
        if current is None or current.producer is None:
            return
        try:
            current.producer.abort(_ABORT_S)
        except KafkaError:
            # Fenced, failed for good or never begun: abort the transaction by its identity.
            current.producer.let_go()
            if current.identity is not None:
                end_transactions(self._wire, [current.identity], commit=False)
        else:
            current.producer.let_go()

    def _started(self, current: _LibrdkafkaTransaction) -> TransactionalProducer:
        current.opened_at_ms = time.time_ns() // 1_000_000
        producer = TransactionalProducer(
            producer_config(
                self._wire.settings,
                transactional_id=current.transactional_id,
                timeout_ms=current.timeout_ms,
                compression=(self.destination.topics.stored or self.destination.codec).name,
                batch_bytes=self.destination.topics.max_batch_bytes,
                delivery_timeout_s=DELIVERY_TIMEOUT_S,
            )
        )
        current.producer = producer
        if current.transactional_id is not None:
            producer.take_id(_TAKE_ID_S)
            # Asked before the first row: a producer that takes the id between these two lines
            # raises the epoch, so no row of ours is accepted. Asked after the last row, the answer
            # could be another's transaction, which a decision would then name as ours.
            current.identity = self._coordinator.holder(current.transactional_id)
            producer.begin()
        return producer
