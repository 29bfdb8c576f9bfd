"""The transactional writer over librdkafka: the same protocol, its bytes made by confluent-kafka.

Rows are refused by the same rules as in :mod:`~airflow_eos.kafka.producer.writer`, before any of
them is sent; librdkafka chooses partitions, encodes, sends and resends. It cannot list, describe or
hand over a transaction, so the producer id and epoch come from the coordinator (``holder``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaError, RowError
from airflow_eos.kafka.librdkafka.transactional_producer import (
    TransactionalProducer,
    producer_config,
)
from airflow_eos.kafka.producer.writer import Destination
from airflow_eos.kafka.records.columns import timestamps_of
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    DELIVERY_TIMEOUT_S,
    PendingTransaction,
    TransactionSlot,
    WrittenTransaction,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.kafka.transactions.identity import TransactionIdentity

Message = tuple[Any, Any, Any, int, int, Any]
"""(topic, key, value, partition or -1, timestamp in ms, headers as (name, value) pairs or None)"""


def messages(rows: pa.RecordBatch, default_topic: str | None) -> Iterable[Message]:
    """The rows in their order, ready to be produced.

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
# The transactional writer over librdkafka: the same protocol, its bytes made by confluent-kafka.
#
# Rows are refused by the same rules as in :mod:`~airflow_eos.kafka.producer.writer`, before any of
# them is sent; librdkafka chooses partitions, encodes, sends and resends. It cannot list, describe
# or
# hand over a transaction, so the producer id and epoch come from the coordinator (``holder``).


_TAKE_ID_S = 60.0
_ABORT_S = 35.0


@dataclass(slots=True)
class _LibrdkafkaTransaction(PendingTransaction):
    """``producer`` and ``identity`` from the first row on."""

    producer: TransactionalProducer | None = None
    identity: TransactionIdentity | None = None


class LibrdkafkaWriter:
    """Writes Arrow batches row by row; only the wire stays warm, a producer is one transaction's.

    Args:
        wire: for topics and coordinators; the caller closes it.
        settings: the connection of the producers.
        topic: where rows go that have no ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Methods and errors are those of
    :class:`~airflow_eos.kafka.producer.writer.TransactionalWriter`. Besides, librdkafka has one
    ``batch.size`` for all topics, set by the smallest ``max.message.bytes``: a topic with a smaller
    one that first occurs later in a transaction is refused with RowError.
    """

    def __init__(
        self,
        wire: ConnectionPool,
        settings: KafkaSettings,
        *,
        topic: str | None,
        compression: str = "lz4",
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._to = Destination(wire, topic=topic, compression=compression)
        self._coordinator = TransactionCoordinator(wire)
        self._slot: TransactionSlot[_LibrdkafkaTransaction] = TransactionSlot()

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Start a transaction, in name only: Kafka hears of it with the first row."""
        self._slot.begin(_LibrdkafkaTransaction(transactional_id, timeout_ms))

    def write(self, rows: pa.RecordBatch) -> None:
        """Hand rows to librdkafka; none of these is sent where one of them is refused."""
        current = self._slot.current()
        if not rows.num_rows:
            return
        self._to.batches_of([rows])  # only for what it refuses
        producer = current.producer or self._opened(current)
        if self._to.topics.max_batch_bytes < producer.batch_bytes:
            raise RowError(
                f"a topic of these rows takes record batches of {self._to.topics.max_batch_bytes} "
                f"bytes (max.message.bytes), the topics before them {producer.batch_bytes}: "
                "librdkafka has one size for all; give the topics one limit, or use "
                "producer='arrow'"
            )
        producer.send(messages(rows, self._to.topic))
        current.rows += rows.num_rows

    def prepare(self) -> WrittenTransaction | None:
        """Wait until every row is acknowledged, and let go of the transaction without ending it."""
        current = self._slot.current()
        if current.producer is None:
            self._slot.release()
            return None
        current.producer.deliver()
        written = current.written(current.identity, current.producer.written())
        self._slot.release()
        current.producer.let_go()
        return written

    def abort(self, prepared: TransactionIdentity | None = None) -> None:
        """Abort the transaction that this writer has begun and not prepared; none is no error.

        Args:
            prepared: one that it has let go of, and that nobody has been told of: abort that, too.

        Raises:
            KafkaUnavailableError: the abort was not acknowledged; the broker aborts it when its
                timeout passes, or recovery does before.
        """
        current = self._slot.release()
        if prepared is not None:
            end_transactions(self._wire, [prepared], commit=False)
        if current is None or current.producer is None:
            return
        try:
            current.producer.abort(_ABORT_S)
        except KafkaError:
            # Fenced, failed for good or never begun: what is ours and open ends by its identity.
            current.producer.let_go()
            if current.identity is not None:
                end_transactions(self._wire, [current.identity], commit=False)
        else:
            current.producer.let_go()

    def _opened(self, current: _LibrdkafkaTransaction) -> TransactionalProducer:
        current.opened_at_ms = time.time_ns() // 1_000_000
        producer = TransactionalProducer(
            producer_config(
                self._settings,
                transactional_id=current.transactional_id,
                timeout_ms=current.timeout_ms,
                compression=self._to.codec.name,
                batch_bytes=self._to.topics.max_batch_bytes,
                delivery_timeout_s=DELIVERY_TIMEOUT_S,
            )
        )
        current.producer = producer
        if current.transactional_id is not None:
            producer.take_id(_TAKE_ID_S)
            # Asked before the first row: whoever took the id between these two lines has raised
            # the epoch, and not one row of ours is accepted. Asked after the last row, the answer
            # could be another's transaction, which a decision would then name as ours.
            current.identity = self._coordinator.holder(current.transactional_id)
            producer.begin()
        return producer
