"""The transactional writer: Arrow batches to one Kafka transaction, which another process can end.

A transaction goes ``begin`` → ``write`` … → ``prepare``; after any failure on the way, ``abort``
may be called. No request is sent to Kafka before the first row, so a task without rows opens no
transaction. After ``prepare`` the writer has forgotten the transaction: the owner of the result
ends it, by its identity; neither closing nor losing the writer can.

The caller goes on reading rows while record batches are made of earlier ones: that happens on
another thread, codecs run on a second one, and the connections send on their own. One thread at a
time owns the objects that are not thread-safe: the writer's thread while ``_handed`` is not done.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.arrow.producer.partitioner import (
    PartitionSlice,
    Routed,
    cut,
    describe_row,
    next_turn,
    route,
    run_bytes_of,
)
from airflow_eos.arrow.producer.sender import Sender, TopicPartition, idempotent_producer
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.encode import EncodedRecords, Stamp, encode_runs, finish
from airflow_eos.kafka.client.records import FRAME_BYTES, HEADER_BYTES
from airflow_eos.kafka.columns import timestamps_of
from airflow_eos.kafka.destination import Destination, Topic
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import (
    DELIVERY_TIMEOUT_S,
    PendingTransaction,
    TransactionIdentity,
    TransactionSlot,
    WrittenTransaction,
    with_ids,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from airflow_eos.arrow.records.columns import Columns
    from airflow_eos.kafka.client.codecs import Codec
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.coordinator import TwoPhase

MAX_UNACKNOWLEDGED_BYTES = 32 * 1024 * 1024
"""``write`` waits while more compressed bytes than this are made and not acknowledged."""
GATHER_BYTES = 8 * 1024 * 1024
"""Arrow batches are gathered up to this size: larger record batches, so fewer requests."""
GATHER_BYTES_A_PARTITION = 64 * 1024
MOST_GATHERED_BYTES = 16 * 1024 * 1024
_IN_FLIGHT_S = 35.0


@dataclass(slots=True)
class _SenderTransaction(PendingTransaction):
    """A transaction; ``stamp``, ``sender``: from the first row on; ``given_up``: send no more.

    ``taken``: the id, where it was asked for before the first row.
    """

    taken: Future[tuple[TransactionIdentity, bool]] | None = None
    stamp: Stamp | None = None
    sender: Sender | None = None
    given_up: bool = False

    def give_up(self) -> None:
        """Stop the sending thread, by its sender or, where that is not made yet, by the flag."""
        self.given_up = True
        if self.sender is not None:
            self.sender.give_up()


class TransactionalWriter:
    """Writer of Arrow batches; reused from batch to batch, without transaction state in between.

    Args:
        wire: the connections, which the caller closes.
        topic: the topic of rows without a ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.
        two_phase: whether no timer is to end its transactions; see ``TransactionCoordinator.take``.

    Not thread-safe: one writer per thread; any number may share the connections.

    Raises:
        ConfigurationError: no such compression.
    """

    def __init__(
        self,
        wire: ConnectionPool,
        *,
        topic: str | None,
        compression: str = "lz4",
        two_phase: TwoPhase = False,
    ) -> None:
        self._wire = wire
        self._two_phase = two_phase
        self.destination = Destination(wire, topic=topic, compression=compression)
        self._coordinator = TransactionCoordinator(wire)
        self._slot: TransactionSlot[_SenderTransaction] = TransactionSlot()
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._ratios = Ratios()
        # One encodes, one compresses. They start with the first rows: a fork may come before.
        self._beside = ThreadPoolExecutor(2, thread_name_prefix="airflow-eos-writer")
        self._handed: Future[None] | None = None
        self._had_rows = False

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Begin a transaction; nothing is open at the broker before the first row.

        Args:
            transactional_id: taken with the first row, or at once where the transaction before had
                rows, so that they do not wait for it: that fences its holder and aborts the
                holder's open transaction. None writes idempotently without one: at least once.
            timeout_ms: after this the broker aborts, unless the transaction is a two-phase one; it
                counts from the first row's arrival.

        Raises:
            ConfigurationError: the transaction before was neither prepared nor aborted.
        """
        current = _SenderTransaction(transactional_id, timeout_ms)
        self._slot.begin(current)
        if transactional_id is not None and self._had_rows:
            current.taken = self._beside.submit(self._take, transactional_id, timeout_ms)

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows to send; wait while too many earlier rows are not encoded or acknowledged yet.

        Columns: ``value`` and, where present, ``key``, ``topic``, ``partition``, ``headers``
        (array<struct<key: string, value: binary>>) and ``timestamp`` (or int64 of ms).

        Batches are gathered and sent by another thread, so an error can come from a later call.
        After an error only ``abort`` may be called.

        Raises:
            RowError: a row that cannot be sent as it is; no row gathered with it has been sent.
            TopicError: a topic that does not exist or may not be written to.
            FencedError: another producer took the transactional id, or the timeout passed.
            TransactionError: the broker refused the transaction.
            KafkaUnavailableError: a retriable failure lasted for the delivery timeout.
        """
        current = self._slot.current()
        if self._gathered and self._gathered[0].schema != rows.schema:
            self._hand_over(current)
        if rows.num_rows:
            self._gathered.append(rows)
            self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= self._gather_bytes():
            self._hand_over(current)

    def finish(self) -> None:
        """Begin to send what is left on the other thread; an error may come with ``prepare``."""
        current = self._slot.current()
        if self._gathered:
            self._hand_over(current)

    def prepare(self) -> WrittenTransaction | None:
        """Wait until all rows are acknowledged; return the transaction, open, and forget it.

        None if there was no row: then no transaction was opened. Errors as :meth:`write`.
        """
        current = self._slot.current()
        self._take_back()
        self._send(current, self._take_gathered())
        self._had_rows = current.sender is not None
        if current.sender is None:
            _let_arrive(current)
            self._slot.release()
            return None
        current.sender.wait_below(0)
        written = current.written(
            _identity(current), with_ids(self._wire.cluster, current.sender.written())
        )
        self._slot.release()
        return written

    def abort(self, prepared: TransactionIdentity | None = None) -> None:
        """Abort the transaction that this writer has begun and not prepared, if there is one.

        Args:
            prepared: a transaction that :meth:`prepare` returned and nobody was told of, to abort.

        Raises:
            KafkaUnavailableError: the abort was not acknowledged; the broker aborts the transaction
                when its timeout passes, or recovery does before.
        """
        current = self._slot.release()
        if prepared is not None:
            end_transactions(self._wire, [prepared], commit=False)
        self._take_gathered()
        if self._handed is not None:
            if current is not None:
                current.give_up()
            wait([self._handed])  # whether it fails or not
            self._handed = None
        if current is not None:
            _let_arrive(current)
        if current is None or current.sender is None:
            return
        current.sender.wait_for_in_flight(_IN_FLIGHT_S)
        identity = _identity(current)
        if identity is not None:
            end_transactions(self._wire, [identity], commit=False)

    # -- sending -------------------------------------------------------------------------------

    def _gather_bytes(self) -> int:
        wanted = max(GATHER_BYTES, self.destination.topics.partitions * GATHER_BYTES_A_PARTITION)
        return min(wanted, MOST_GATHERED_BYTES)

    def _take_gathered(self) -> list[pa.RecordBatch]:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return gathered

    def _hand_over(self, current: _SenderTransaction) -> None:
        """Have the gathered rows sent by the other thread, one group at a time."""
        self._take_back()
        self._handed = self._beside.submit(self._send, current, self._take_gathered())

    def _take_back(self) -> None:
        """Wait until the rows handed over are sent; raise their error, again until ``abort``."""
        if self._handed is not None:
            self._handed.result()
            self._handed = None

    def _send(self, current: _SenderTransaction, gathered: list[pa.RecordBatch]) -> None:
        if not gathered:
            return
        builder = batches_of(gathered, self.destination)
        sender, stamp = self._started(current)
        for _ in builder.batches(sender, stamp, self._ratios, self._beside):
            if sender.bytes > MAX_UNACKNOWLEDGED_BYTES:
                sender.wait_below(MAX_UNACKNOWLEDGED_BYTES)
        # Sent once all are queued: a request can take a batch of every partition.
        sender.wait_below(MAX_UNACKNOWLEDGED_BYTES)
        current.rows += sum(rows.num_rows for rows in gathered)

    # -- opening -------------------------------------------------------------------------------

    def _started(self, current: _SenderTransaction) -> tuple[Sender, Stamp]:
        if current.sender is not None and current.stamp is not None:
            return current.sender, current.stamp
        current.opened_at_ms = time.time_ns() // 1_000_000
        if current.transactional_id is None:
            producer = idempotent_producer(self._wire)
        else:
            identity, current.two_phase = (
                self._take(current.transactional_id, current.timeout_ms)
                if current.taken is None
                else current.taken.result()
            )
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

    def _take(self, transactional_id: str, timeout_ms: int) -> tuple[TransactionIdentity, bool]:
        return self._coordinator.take(transactional_id, timeout_ms, self._two_phase)

    def _add_partitions(
        self, current: _SenderTransaction, partitions: Sequence[TopicPartition]
    ) -> None:
        identity = _identity(current)
        if identity is not None:
            self._coordinator.add_partitions(identity, partitions)


def _let_arrive(current: _SenderTransaction) -> None:
    """Wait for the answer to a request for the id, whatever it is: later, it would fence others."""
    if current.taken is not None:
        wait([current.taken])


def _identity(current: _SenderTransaction) -> TransactionIdentity | None:
    if current.transactional_id is None or current.stamp is None:
        return None
    return TransactionIdentity(
        current.transactional_id, current.stamp.producer_id, current.stamp.producer_epoch
    )


# --- batches --------------------------------------------------------------------------------------


RUN_BYTES = 3 * 1024 * 1024
"""Uncompressed bytes of one record batch's rows. Each batch costs a request, and work at the
broker, whatever its size; JSON of this size compresses to just below max.message.bytes' default."""
_LEEWAY = 1.15
"""The factor by which a record batch may compress worse than those before it and still fit."""


def batches_of(gathered: Sequence[pa.RecordBatch], to: Destination) -> BatchBuilder:
    """Return the builder of batches from one or more Arrow batches.

    Raises:
        RowError: a row that cannot be sent as it is.
        TopicError: a topic that some row names does not exist.
    """
    if (scattered := scattered_batches(gathered, to)) is not None:
        return scattered
    rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
    return sorted_batches(rows, to)


def sorted_batches(rows: pa.RecordBatch, to: Destination) -> BatchBuilder:
    """Return the builder of batches from rows of any kind, sorted by partition first."""
    to.require_sendable(rows)
    columns = columns_of(rows, now_ms=time.time_ns() // 1_000_000)
    routed = route(rows, columns, to.topic, to.topics.look_up)
    return BatchBuilder(partial(_sorted_runs, routed), lambda: routed.columns, to.codec)


class Ratios:
    """The compression ratio (compressed by uncompressed size) of each topic's last batches.

    After ``org.apache.kafka.common.record.CompressionRatioEstimator``, which improves its estimate
    by half a percent a batch. Our batches are large enough for the last ones to be a fair sample.
    """

    def __init__(self) -> None:
        self._of: dict[str, float] = {}

    def expected(self, topic: str) -> float:
        """Return the ratio to expect for a topic, with leeway; 1 before its first batch."""
        return min(self._of.get(topic, 1.0) * _LEEWAY, 1.0)

    def learn(self, found: dict[str, float]) -> None:
        """Store the worst ratio of each topic's latest batches."""
        self._of.update(found)


class Run(NamedTuple):
    """Encoded rows of one partition that go into one record batch, unless it has to be halved.

    ``start`` is its first row among the sorted ones.
    """

    topic: Topic
    partition: int
    start: int
    rows: EncodedRecords


class BatchBuilder:
    """Builder of record batches.

    Args:
        runs: gives the rows, encoded, in groups that are compressed together.
        columns: gives the sorted rows, for batches that have to be halved.
        codec: the codec for topics that store batches as they come.
    """

    def __init__(
        self,
        runs: Callable[[Ratios], Iterator[list[Run]]],
        columns: Callable[[], Columns],
        codec: Codec,
    ) -> None:
        self._runs = runs
        self._columns = cache(columns)
        self._codec = codec

    def batches(
        self, sender: Sender, stamp: Stamp, ratios: Ratios, beside: Executor
    ) -> Iterator[None]:
        """Make record batches of all rows and queue them, yielding after each group of batches.

        Args:
            sender: takes the batches in the order of the rows, partition by partition.
            stamp: the producer that writes the batches.
            ratios: the expected compression ratios; updated by the ratios found.
            beside: the executor that compresses one group while the next one is encoded.
        """
        worst: dict[str, float] = {}
        groups = self._compressed(ratios, beside)
        group = next(groups, None)
        while group is not None:
            following = next(groups, None)  # encoded while ``group`` is compressed
            for run, compressed in group:
                content = compressed.result()
                ratio = len(content) / len(run.rows.body)
                worst[run.topic.name] = max(worst.get(run.topic.name, 0.0), ratio)
                self._queue(run, content, sender, stamp)
            yield
            group = following
        ratios.learn(worst)

    def _compressed(
        self, ratios: Ratios, beside: Executor
    ) -> Iterator[list[tuple[Run, Future[Any]]]]:
        """Yield groups of runs, encoded and handed over to be compressed."""
        for group in self._runs(ratios):
            yield [
                (run, beside.submit(self._codec_for(run.topic).compress, run.rows.body))
                for run in group
            ]

    def _codec_for(self, topic: Topic) -> Codec:
        return topic.stored or self._codec

    def _queue(self, run: Run, content: Any, sender: Sender, stamp: Stamp) -> None:
        topic, partition, start, rows = run
        codec = self._codec_for(topic)
        if HEADER_BYTES + len(content) <= topic.max_batch_bytes:
            sequence = sender.sequence(topic.name, partition)
            payload = finish(rows, content, stamp, sequence, codec)
            sender.add(topic.name, partition, payload, rows.count)
            return
        columns = self._columns()
        if rows.count == 1:
            size = HEADER_BYTES + len(content)
            raise topic.too_large(describe_row(columns, start), size, codec)
        half = rows.count // 2
        halves = encode_runs(columns.slice(start, start + rows.count), [0, half, rows.count])
        for at, smaller in zip((start, start + half), halves, strict=True):
            content = codec.compress(smaller.body)
            self._queue(Run(topic, partition, at, smaller), content, sender, stamp)


def _sorted_runs(routed: Routed, ratios: Ratios) -> Iterator[list[Run]]:
    """Yield groups of neighbouring runs, which are encoded together."""
    ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(routed.columns.sizes())))
    for slices, cuts in _groups(routed.slices, ends, ratios):
        rows = routed.columns.slice(cuts[0], cuts[-1])
        runs = encode_runs(rows, [edge - cuts[0] for edge in cuts])
        yield [
            Run(part.topic, part.partition, start, run)
            for part, start, run in zip(slices, cuts, runs, strict=False)
        ]


def _groups(
    parts: Sequence[PartitionSlice], ends: np.ndarray, ratios: Ratios
) -> Iterator[tuple[list[PartitionSlice], list[int]]]:
    """Yield groups of neighbouring runs to encode together: each run's slice, and the edges."""
    slices: list[PartitionSlice] = []
    cuts: list[int] = []
    for part in parts:
        expected = ratios.expected(part.topic.name)
        for start, stop in cut(part, ends, RUN_BYTES, expected):
            if cuts and int(ends[stop] - ends[cuts[0]]) > RUN_BYTES:
                yield slices, cuts
                slices, cuts = [], []
            slices.append(part)
            cuts = [*cuts, stop] if cuts else [start, stop]
    if cuts:
        yield slices, cuts


# --- scatter --------------------------------------------------------------------------------------
# Plain rows to record batches by the compiled loops, in the order in which they come.
#
# The same bytes as :func:`sorted_batches` makes, for rows of one topic with no other columns than
# key, value and timestamp: the usual case. All other rows are sorted.


_NO_NULL = np.zeros(0, np.bool_)
_MOST_BYTES = 64 * 1024 * 1024
"""Most bytes of rows that are scattered, all at once; sorted ones are encoded group by group."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows with their partitions.

    Attributes:
        pieces: for each Arrow batch: edges, bytes and nulls of the keys, likewise of the values,
            the rows' times, and their partitions.
        sizes: bytes of each partition's rows, an upper bound.
        largest: bytes of the largest row, an upper bound.
    """

    pieces: list[tuple[Any, ...]]
    sizes: NDArray[np.int64]
    largest: int


def scattered_batches(gathered: Sequence[pa.RecordBatch], to: Destination) -> BatchBuilder | None:
    """Return the builder for plain rows; None where rows need :func:`sorted_batches`."""
    if to.topic is None or not loops.are_loaded() or not all(map(_is_plain, gathered)):
        return None
    found, now_ms = to.topics.look_up(to.topic), time.time_ns() // 1_000_000
    placed = _placed(gathered, found, now_ms)
    if placed.sizes.sum() > _MOST_BYTES or placed.largest > found.surely_fits:
        return None

    def columns() -> Columns:
        order = np.argsort(np.concatenate([piece[-1] for piece in placed.pieces]), kind="stable")
        return columns_of(pa.concat_batches(gathered), now_ms=now_ms).take(order)

    return BatchBuilder(partial(_scattered_runs, placed, found, now_ms), columns, to.codec)


def _is_plain(rows: pa.RecordBatch) -> bool:
    names = set(rows.schema.names)
    kinds = [rows.column(name).type for name in names - {"timestamp"}]
    return {"value"} <= names <= {"key", "value", "timestamp"} and all(
        pa.types.is_binary(kind) or pa.types.is_string(kind) for kind in kinds
    )


def _placed(gathered: Sequence[pa.RecordBatch], topic: Topic, now_ms: int) -> Placed:
    sizes = np.zeros(topic.partitions, np.int64)
    pieces, largest = [], 0
    found = [(_bytes_of(rows, "key"), _bytes_of(rows, "value")) for rows in gathered]
    without = topic.partitions > 1 and any(len(no_key) for (*_, no_key), _ in found)
    turn = next_turn(topic) if without else 0
    for rows, (keys, values) in zip(gathered, found, strict=True):
        edges, _, no_value = values
        times = timestamps_of(rows, now_ms=now_ms)
        own = np.zeros(0, np.int64) if isinstance(times, int) else np.array(times, np.int64)
        targets = np.empty(rows.num_rows, np.uint32)
        size = loops.placed(*keys, edges, no_value, turn, FRAME_BYTES, targets, sizes)
        pieces.append((*keys, *values, own, targets))
        largest = max(largest, size)
    return Placed(pieces, sizes, largest)


def _bytes_of(rows: pa.RecordBatch, name: str) -> tuple[Any, Any, Any]:
    """Return a column's bytes, its offsets, and which rows have a null (empty: none has)."""
    column = rows.column(name) if name in rows.schema.names else pa.nulls(len(rows), pa.binary())
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else _NO_NULL
    data, offsets = loops.bytes_of(column)
    return offsets, data, nulls


def _scattered_runs(
    placed: Placed, topic: Topic, now_ms: int, ratios: Ratios
) -> Iterator[list[Run]]:
    group: list[Run] = []
    size = 0
    for run in _scattered(placed, topic, now_ms, ratios.expected(topic.name)):
        if group and size + len(run.rows.body) > RUN_BYTES:
            yield group
            group, size = [], 0
        group.append(run)
        size += len(run.rows.body)
    if group:
        yield group


def _scattered(placed: Placed, topic: Topic, now_ms: int, ratio: float) -> Iterator[Run]:
    cuts = -(-placed.sizes // run_bytes_of(topic, RUN_BYTES, ratio))
    content, runs = loops.scattered(
        placed.pieces, placed.sizes, cuts, now_ms=now_ms, frame=FRAME_BYTES
    )
    at, first = iter(runs.T.tolist()), 0
    for partition, its in enumerate(cuts.tolist()):
        for start, end, count, base, latest in itertools.islice(at, its):
            if count:
                encoded = EncodedRecords(content[start:end], count, base, latest)
                yield Run(topic, partition, first, encoded)
            first += count
