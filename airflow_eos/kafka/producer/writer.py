"""The transactional writer: Arrow batches into one Kafka transaction, ready for another to end it.

One transaction goes ``begin`` → ``write`` … → ``prepare``; on the way any failure may be answered
with ``abort``. Nothing is asked of Kafka before the first row is sent, so a task without rows
opens no transaction. After ``prepare`` the writer has forgotten the transaction: whoever holds
the result ends it, by the identity, and neither closing nor losing the writer can.

Whoever has the rows goes on reading them while record batches are made of those before: that
happens on a thread beside, codecs run on a second one, and the wire sends on its own. One thread
at a time owns what is not thread-safe; the future of what was handed over tells which.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_eos.kafka.producer.batches import (
    BatchBuilder,
    Ratios,
    Topics,
    batch_builder,
    scatter_builder,
)
from airflow_eos.kafka.producer.sender import Sender, TopicPartition, idempotent_producer
from airflow_eos.kafka.records.compression import codec
from airflow_eos.kafka.records.encode import Stamp
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    DELIVERY_TIMEOUT_S,
    PendingTransaction,
    TransactionIdentity,
    TransactionSlot,
    WrittenTransaction,
)

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import ConnectionPool


class Destination:
    """Topics and their limits, as they are known by now.

    Args:
        wire: by which topics are looked up.
        topic: where rows go that have no ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Raises:
        ConfigurationError: no such compression.
    """

    def __init__(self, wire: ConnectionPool, *, topic: str | None, compression: str) -> None:
        self.topic = topic
        self.topics = Topics(wire)
        self.codec = codec(compression)

    def batches_of(self, gathered: Sequence[pa.RecordBatch]) -> BatchBuilder:
        """What builds the batches of these rows, one at least; errors as of `batch_builder`."""
        scattered = scatter_builder(gathered, self.topic, self.topics, self.codec)
        if scattered is not None:
            return scattered
        rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        return batch_builder(rows, self.topic, self.topics, self.codec)


# --- writer ---------------------------------------------------------------------------------------
# The transactional writer: Arrow batches into one Kafka transaction, ready for another to end it.
#
# One transaction goes ``begin`` → ``write`` … → ``prepare``; on the way any failure may be answered
# with ``abort``. Nothing is asked of Kafka before the first row is sent, so a task without rows
# opens no transaction. After ``prepare`` the writer has forgotten the transaction: whoever holds
# the result ends it, by the identity, and neither closing nor losing the writer can.
#
# Whoever has the rows goes on reading them while record batches are made of those before: that
# happens on a thread beside, codecs run on a second one, and the wire sends on its own. One thread
# at a time owns what is not thread-safe; the future of what was handed over tells which.


MAX_UNACKNOWLEDGED_BYTES = 32 * 1024 * 1024
"""``write`` waits while more than this, compressed, is made and not acknowledged."""
GATHER_BYTES = 8 * 1024 * 1024
"""Arrow batches are put together up to this size: larger record batches, so fewer requests."""
GATHER_BYTES_A_PARTITION = 64 * 1024
MOST_GATHERED_BYTES = 16 * 1024 * 1024
_IN_FLIGHT_S = 35.0


@dataclass(slots=True)
class _SenderTransaction(PendingTransaction):
    """``stamp`` and ``sender`` from the first row on; ``given_up``: nothing more is to be sent."""

    stamp: Stamp | None = None
    sender: Sender | None = None
    given_up: bool = False

    def give_up(self) -> None:
        """Stop the thread that sends: this finds its sender, or that one the flag."""
        self.given_up = True
        if self.sender is not None:
            self.sender.give_up()


class TransactionalWriter:
    """Writes Arrow batches; kept warm from batch to batch, with no transaction state in between.

    Args:
        wire: the connections, which the caller closes.
        topic: where rows go that have no ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Not thread-safe: one writer a thread, any number a wire.

    Raises:
        ConfigurationError: no such compression.
    """

    def __init__(
        self, wire: ConnectionPool, *, topic: str | None, compression: str = "lz4"
    ) -> None:
        self._wire = wire
        self._to = Destination(wire, topic=topic, compression=compression)
        self._coordinator = TransactionCoordinator(wire)
        self._slot: TransactionSlot[_SenderTransaction] = TransactionSlot()
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._ratios = Ratios()
        # One encodes, one compresses. They start with the first rows: a process may fork before.
        self._beside = ThreadPoolExecutor(2, thread_name_prefix="airflow-eos-writer")
        self._handed: Future[None] | None = None

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Start a transaction, in name only: Kafka hears of it with the first row.

        Args:
            transactional_id: taken with the first row, which fences whoever held it and aborts
                what it left open. None writes idempotently without a transaction: at least once.
            timeout_ms: after this the broker aborts; it counts from the first row's arrival.

        Raises:
            ConfigurationError: the transaction before was neither prepared nor aborted.
        """
        self._slot.begin(_SenderTransaction(transactional_id, timeout_ms))

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows to send; waits while too many of those before are unmade or unacknowledged.

        Columns: ``value`` and, where present, ``key``, ``topic``, ``partition``, ``headers``
        (array<struct<key: string, value: binary>>) and ``timestamp`` (or int64 of ms).

        Batches are gathered and sent beside, so an error can come from a later call. After an
        error only ``abort`` is of use.

        Raises:
            RowError: a row that cannot be sent as it is; no row of these has been sent.
            TopicError: a topic that does not exist or may not be written to.
            FencedError: somebody else took the transactional id, or the timeout passed.
            TransactionError: the broker refused the transaction.
            KafkaUnavailableError: not healed within the delivery timeout.
        """
        current = self._slot.current()
        if self._gathered and self._gathered[0].schema != rows.schema:
            self._hand_over(current)
        if rows.num_rows:
            self._gathered.append(rows)
            self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= self._gather_bytes():
            self._hand_over(current)

    def prepare(self) -> WrittenTransaction | None:
        """Wait until every row is acknowledged, and let go of the transaction without ending it.

        None if there was no row: then nothing was opened. Errors as of :meth:`write`.
        """
        current = self._slot.current()
        self._take_back()
        self._send(current, self._take_gathered())
        if current.sender is None:
            self._slot.release()
            return None
        current.sender.wait_below(0)
        written = current.written(_identity(current), current.sender.written())
        self._slot.release()
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
        self._take_gathered()
        if self._handed is not None:
            if current is not None:
                current.give_up()
            wait([self._handed])  # whatever becomes of it
            self._handed = None
        if current is None or current.sender is None:
            return
        current.sender.wait_for_in_flight(_IN_FLIGHT_S)
        identity = _identity(current)
        if identity is not None:
            end_transactions(self._wire, [identity], commit=False)

    # -- sending -------------------------------------------------------------------------------

    def _gather_bytes(self) -> int:
        wanted = max(GATHER_BYTES, self._to.topics.partitions * GATHER_BYTES_A_PARTITION)
        return min(wanted, MOST_GATHERED_BYTES)

    def _take_gathered(self) -> list[pa.RecordBatch]:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return gathered

    def _hand_over(self, current: _SenderTransaction) -> None:
        """Have the gathered rows sent beside, one lot of them at a time."""
        self._take_back()
        self._handed = self._beside.submit(self._send, current, self._take_gathered())

    def _take_back(self) -> None:
        """Wait for what was handed over; its error is raised here, and again until ``abort``."""
        if self._handed is not None:
            self._handed.result()
            self._handed = None

    def _send(self, current: _SenderTransaction, gathered: list[pa.RecordBatch]) -> None:
        if not gathered:
            return
        builder = self._to.batches_of(gathered)
        sender, stamp = self._opened(current)
        for _ in builder.batches(sender, stamp, self._ratios, self._beside):
            if sender.bytes > MAX_UNACKNOWLEDGED_BYTES:
                sender.wait_below(MAX_UNACKNOWLEDGED_BYTES)
        # Sent together: a request can take a batch of every partition.
        sender.wait_below(MAX_UNACKNOWLEDGED_BYTES)
        current.rows += sum(rows.num_rows for rows in gathered)

    # -- opening -------------------------------------------------------------------------------

    def _opened(self, current: _SenderTransaction) -> tuple[Sender, Stamp]:
        if current.sender is not None and current.stamp is not None:
            return current.sender, current.stamp
        current.opened_at_ms = time.time_ns() // 1_000_000
        if current.transactional_id is None:
            producer = idempotent_producer(self._wire)
        else:
            identity = self._coordinator.init(current.transactional_id, current.timeout_ms)
            producer = identity.producer_id, identity.producer_epoch
        transactional = current.transactional_id is not None
        current.stamp = Stamp(*producer, transactional=transactional)
        explicit = transactional and self._wire.cluster.transaction_version < 2
        current.sender = Sender(
            self._wire,
            transactional_id=current.transactional_id,
            add_partitions=partial(self._add_partitions, current) if explicit else None,
            delivery_timeout_s=DELIVERY_TIMEOUT_S,
        )
        if current.given_up:
            current.sender.give_up()
        return current.sender, current.stamp

    def _add_partitions(
        self, current: _SenderTransaction, partitions: Sequence[TopicPartition]
    ) -> None:
        identity = _identity(current)
        if identity is not None:
            self._coordinator.add_partitions(identity, partitions)


def _identity(current: _SenderTransaction) -> TransactionIdentity | None:
    if current.transactional_id is None or current.stamp is None:
        return None
    return TransactionIdentity(
        current.transactional_id, current.stamp.producer_id, current.stamp.producer_epoch
    )
