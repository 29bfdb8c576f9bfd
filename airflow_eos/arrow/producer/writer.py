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
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_eos.arrow.producer.partitioner import (
    Partitioner,
    PartitionSlice,
    Routed,
    Topic,
    cut,
    describe_row,
    route,
    run_bytes_of,
)
from airflow_eos.arrow.producer.sender import Sender, TopicPartition, idempotent_producer
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.columns import FRAME_BYTES, columns_of
from airflow_eos.arrow.records.encode import (
    HEADER_BYTES,
    NAMES,
    EncodedRecords,
    Stamp,
    codec,
    encode_runs,
    finish,
)
from airflow_eos.errors import RowError, TopicError
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
    from airflow_eos.arrow.records.encode import Codec
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
    """A transaction; ``stamp``, ``sender``: from the first row on; ``given_up``: send no more."""

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

    def begin(self, transactional_id: str | None, timeout_ms: int) -> None:
        """Begin a transaction, locally only: no request is sent before the first row.

        Args:
            transactional_id: taken with the first row: that fences its holder and aborts the
                holder's open transaction. None writes idempotently without one: at least once.
            timeout_ms: after this the broker aborts, unless the transaction is a two-phase one; it
                counts from the first row's arrival.

        Raises:
            ConfigurationError: the transaction before was neither prepared nor aborted.
        """
        self._slot.begin(_SenderTransaction(transactional_id, timeout_ms))

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

    def prepare(self) -> WrittenTransaction | None:
        """Wait until all rows are acknowledged; return the transaction, open, and forget it.

        None if there was no row: then no transaction was opened. Errors as :meth:`write`.
        """
        current = self._slot.current()
        self._take_back()
        self._send(current, self._take_gathered())
        if current.sender is None:
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
        builder = self.destination.batches_of(gathered)
        sender, stamp = self._opened(current)
        for _ in builder.batches(sender, stamp, self._ratios, self._beside):
            if sender.bytes > MAX_UNACKNOWLEDGED_BYTES:
                sender.wait_below(MAX_UNACKNOWLEDGED_BYTES)
        # Sent once all are queued: a request can take a batch of every partition.
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
            identity, current.two_phase = self._coordinator.take(
                current.transactional_id, current.timeout_ms, self._two_phase
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


# --- batches --------------------------------------------------------------------------------------


RUN_BYTES = 3 * 1024 * 1024
"""Uncompressed bytes of one record batch's rows. Each batch costs a request, and work at the
broker, whatever its size; JSON of this size compresses to just below max.message.bytes' default."""
_LEEWAY = 1.15
"""The factor by which a record batch may compress worse than those before it and still fit."""
_NEVER_BYTES = (1 << 31) - (1 << 20)
"""The size from which a row fits no request, however well it may compress."""


def batch_builder(
    rows: pa.RecordBatch, default_topic: str | None, topics: Topics, codec: Codec
) -> BatchBuilder:
    """Return the builder of the rows' record batches: routed to partitions, each row fit to send.

    Raises:
        RowError: a row that cannot be sent as it is.
        TopicError: a topic that some row names does not exist.
    """
    columns = columns_of(rows, now_ms=time.time_ns() // 1_000_000)
    try:
        return _checked_builder(rows, columns, default_topic, topics, codec)
    except RowError:
        # The topic's limit may just have been raised because of this row.
        topics.invalidate()
        return _checked_builder(rows, columns, default_topic, topics, codec)


def _checked_builder(
    rows: pa.RecordBatch, columns: Columns, default_topic: str | None, topics: Topics, codec: Codec
) -> BatchBuilder:
    builder = BatchBuilder(route(rows, columns, default_topic, topics.look_up), codec)
    builder.refuse_too_large()
    return builder


def surely_fits(topic: Topic) -> int:
    """Return the bytes up to which a row fits the topic, whatever they compress to."""
    limit = topic.max_batch_bytes  # incompressible rows can grow by a few bytes
    return limit - HEADER_BYTES - limit // 128 - FRAME_BYTES


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


class Encoded(NamedTuple):
    """An encoded run that is being compressed; ``start`` is its first row."""

    part: PartitionSlice
    start: int
    run: EncodedRecords
    compressed: Future[Any]


class BatchBuilder:
    """Builder of record batches from the sorted rows of one Arrow batch."""

    def __init__(self, routed: Routed, codec: Codec) -> None:
        self._columns = routed.columns
        self._slices = routed.slices
        self._codec = codec
        self._sizes = routed.columns.sizes()

    def refuse_too_large(self) -> None:
        """Refuse rows that do not fit their topic, before any row is sent.

        Raises:
            RowError: alone in a record batch and compressed, a row exceeds max.message.bytes.
        """
        if not len(self._sizes):
            return
        highest = int(self._sizes.max())
        for part in self._slices:
            if highest <= surely_fits(part.topic):
                continue
            sizes = self._sizes[part.start : part.stop]
            for row in part.start + np.flatnonzero(sizes > max(surely_fits(part.topic), 0)):
                self._refuse_if_too_large(part, int(row))

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
        groups = self._encoded(ratios, beside)
        group = next(groups, None)
        while group is not None:
            following = next(groups, None)  # encoded while ``group`` is compressed
            for part, start, run, compressed in group:
                content = compressed.result()
                ratio = len(content) / len(run.body)
                worst[part.topic.name] = max(worst.get(part.topic.name, 0.0), ratio)
                self._queue(part, start, run, content, sender, stamp)
            yield
            group = following
        ratios.learn(worst)

    def _encoded(self, ratios: Ratios, beside: Executor) -> Iterator[list[Encoded]]:
        """Yield groups of runs, encoded and handed over to be compressed."""
        ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(self._sizes)))
        for slices, cuts in self._groups(ends, ratios):
            rows = self._columns.slice(cuts[0], cuts[-1])
            runs = encode_runs(rows, [edge - cuts[0] for edge in cuts])
            yield [
                Encoded(part, start, run, beside.submit(self._codec_for(part).compress, run.body))
                for part, start, run in zip(slices, cuts, runs, strict=False)
            ]

    def _codec_for(self, part: PartitionSlice) -> Codec:
        return part.topic.stored or self._codec

    def _groups(
        self, ends: np.ndarray, ratios: Ratios
    ) -> Iterator[tuple[list[PartitionSlice], list[int]]]:
        """Yield groups of neighbouring runs to encode together: each run's slice, and the edges."""
        slices: list[PartitionSlice] = []
        cuts: list[int] = []
        for part in self._slices:
            expected = ratios.expected(part.topic.name)
            for start, stop in cut(part, ends, RUN_BYTES, expected):
                if cuts and int(ends[stop] - ends[cuts[0]]) > RUN_BYTES:
                    yield slices, cuts
                    slices, cuts = [], []
                slices.append(part)
                cuts = [*cuts, stop] if cuts else [start, stop]
        if cuts:
            yield slices, cuts

    def _queue(
        self,
        part: PartitionSlice,
        start: int,
        run: EncodedRecords,
        content: Any,
        sender: Sender,
        stamp: Stamp,
    ) -> None:
        topic, partition = part.topic.name, part.partition
        if HEADER_BYTES + len(content) <= part.topic.max_batch_bytes:
            sequence = sender.sequence(topic, partition)
            payload = finish(run, content, stamp, sequence, self._codec_for(part))
            sender.add(topic, partition, payload, run.count)
            return
        if run.count == 1:
            raise self._too_large(part, start, HEADER_BYTES + len(content))
        half = run.count // 2
        rows = self._columns.slice(start, start + run.count)
        first, second = encode_runs(rows, [0, half, run.count])
        for at, smaller in ((start, first), (start + half, second)):
            content = self._codec_for(part).compress(smaller.body)
            self._queue(part, at, smaller, content, sender, stamp)

    def _refuse_if_too_large(self, part: PartitionSlice, row: int) -> None:
        size = int(self._sizes[row])
        if size < _NEVER_BYTES:
            (run,) = encode_runs(self._columns.slice(row, row + 1), [0, 1])
            size = HEADER_BYTES + len(self._codec_for(part).compress(run.body))
        if size > part.topic.max_batch_bytes:
            raise self._too_large(part, row, size)

    def _too_large(self, part: PartitionSlice, row: int, size: int) -> RowError:
        key = describe_row(self._columns, row)
        named = "the row without a key" if key is None else f"the row with key {key!r}"
        whose = ", by the topic's compression.type" if part.topic.stored is not None else ""
        return RowError(
            f"{named} needs {size} bytes as a record batch of its own "
            f"({self._codec_for(part).name}{whose}); "
            f"topic {part.topic.name!r} takes {part.topic.max_batch_bytes} "
            "(the lesser of max.message.bytes and segment.bytes): raise that setting, "
            f"{'set compression.type=producer, ' if whose else ''}or send less in one row"
        )


# --- topics ---------------------------------------------------------------------------------------
# The topics that a writer writes to, and their limits, asked for again every minute.


DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes, for principals that may not read the topic's."""
_FRESH_S = 60.0
_SETTINGS = ("max.message.bytes", "segment.bytes", "compression.type")
"""The two settings that limit the size of a record batch, and what it is measured as."""


class Topics:
    """Cache of topics by name: each one's partitioner, largest record batch, and codec."""

    def __init__(self, wire: ConnectionPool) -> None:
        self._wire = wire
        self._known: dict[str, tuple[float, Topic]] = {}

    @property
    def partitions(self) -> int:
        """The number of partitions of all topics looked up so far."""
        return sum(topic.partitioner.partitions for _, topic in self._known.values())

    @property
    def max_batch_bytes(self) -> int:
        """The size of a record batch that all topics looked up so far take."""
        limits = (topic.max_batch_bytes for _, topic in self._known.values())
        return min(limits, default=DEFAULT_MAX_MESSAGE_BYTES)

    @property
    def stored(self) -> Codec | None:
        """The one codec of all topics looked up so far; None where they have none in common."""
        found = {topic.stored for _, topic in self._known.values()}
        return found.pop() if len(found) == 1 else None

    def invalidate(self) -> None:
        """Have the next look-up ask again: a limit may have been raised within the minute."""
        self._known = {name: (-math.inf, topic) for name, (_, topic) in self._known.items()}

    def look_up(self, name: str) -> Topic:
        """Return a topic as of the last minute: partitions may have been added since.

        Raises:
            TopicError: the topic does not exist or may not be described.
        """
        now = time.monotonic()
        asked_at, known = self._known.get(name, (-_FRESH_S, None))
        if known is not None and now - asked_at < _FRESH_S:
            return known
        count = len(self._wire.cluster.leaders(name, refresh=True))
        partitioner = known.partitioner if known is not None else Partitioner(name, count)
        if partitioner.partitions != count:
            partitioner = Partitioner(name, count)
        topic = Topic(name, partitioner, *self._limit(name))
        self._known[name] = (now, topic)
        return topic

    def _limit(self, topic: str) -> tuple[int, Codec | None]:
        """Return the size of a topic's largest record batch, and the codec that it is stored in."""
        try:
            found = self._wire.cluster.topic_config(topic, _SETTINGS)
        except TopicError:
            # Writing needs no right to read settings: what is refused for its size is halved.
            return DEFAULT_MAX_MESSAGE_BYTES, None
        most = int(found.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
        kept = {"uncompressed": "none"}.get(kind := found.get("compression.type", "producer"), kind)
        most = min(most, int(found.get("segment.bytes", most)))
        return most, codec(kept) if kept in NAMES else None


# --- scatter --------------------------------------------------------------------------------------
# Plain rows to record batches by the compiled loops, in the order in which they come.
#
# The same bytes as :class:`BatchBuilder` makes of sorted rows, for rows with a key and a value, no
# null and no other column, and for one topic: the usual case. All other rows take that builder.


_MOST_BYTES = 64 * 1024 * 1024
"""Most bytes of rows that are scattered, all at once; the other builder encodes group by group."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows with their partitions.

    Attributes:
        pieces: for each Arrow batch: key offsets, keys, value offsets, values, rows' partitions.
        sizes: bytes of each partition's rows, an upper bound.
        counts: number of each partition's rows.
        largest: bytes of the largest row, an upper bound.
    """

    pieces: list[tuple[Any, Any, Any, Any, NDArray[np.uint32]]]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    largest: int


def scatter_builder(
    gathered: Sequence[pa.RecordBatch], topic: str | None, topics: Topics, codec: Codec
) -> BatchBuilder | None:
    """Return the builder for plain rows; None where the rows need another :class:`BatchBuilder`.

    Raises:
        TopicError: the topic does not exist.
    """
    if topic is None or not loops.are_loaded() or not all(map(_is_plain, gathered)):
        return None
    found = topics.look_up(topic)
    placed = _placed(gathered, found.partitioner.partitions)
    if placed.sizes.sum() > _MOST_BYTES or placed.largest > surely_fits(found):
        return None
    return ScatterBuilder(gathered, placed, found, codec)


def _is_plain(rows: pa.RecordBatch) -> bool:
    return sorted(rows.schema.names) == ["key", "value"] and all(
        (pa.types.is_binary(column.type) or pa.types.is_string(column.type))
        and column.null_count == 0
        for column in rows.columns
    )


def _placed(gathered: Sequence[pa.RecordBatch], partitions: int) -> Placed:
    sizes, counts = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
    pieces, largest = [], 0
    for rows in gathered:
        columns = *_bytes_of(rows.column("key")), *_bytes_of(rows.column("value"))
        targets = np.empty(rows.num_rows, np.uint32)
        size = loops.placed(*columns[:3], FRAME_BYTES, targets, sizes, counts)
        pieces.append((*columns, targets))
        largest = max(largest, size)
    return Placed(pieces, sizes, counts, largest)


def _bytes_of(column: Any) -> tuple[Any, Any]:
    """Return a column's offsets and bytes."""
    _, edges, content = column.buffers()
    offsets = np.frombuffer(edges, np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    # The loops are compiled for read-only arrays: writable ones would have them compiled again.
    offsets.flags.writeable = data.flags.writeable = False
    return offsets, data


class ScatterBuilder(BatchBuilder):
    """:class:`BatchBuilder` for plain rows, which sorts them only if a batch has to be halved."""

    def __init__(
        self, gathered: Sequence[pa.RecordBatch], placed: Placed, topic: Topic, codec: Codec
    ) -> None:
        # Without the base's __init__: ``_columns`` is made on first use.
        self._gathered = gathered
        self._placed = placed
        self._topic = topic
        self._codec = codec
        self._now_ms = time.time_ns() // 1_000_000

    @cached_property
    def _columns(self) -> Columns:  # type: ignore[override]
        rows = pa.concat_batches(self._gathered)
        columns = columns_of(rows, now_ms=self._now_ms)
        return route(rows, columns, self._topic.name, lambda _: self._topic).columns

    def _encoded(self, ratios: Ratios, beside: Executor) -> Iterator[list[Encoded]]:
        group: list[Encoded] = []
        size = 0
        for part, start, run in self._runs(ratios.expected(self._topic.name)):
            if group and size + len(run.body) > RUN_BYTES:
                yield group
                group, size = [], 0
            compressed = beside.submit(self._codec_for(part).compress, run.body)
            group.append(Encoded(part, start, run, compressed))
            size += len(run.body)
        if group:
            yield group

    def _runs(self, ratio: float) -> Iterator[tuple[PartitionSlice, int, EncodedRecords]]:
        """Yield each run with its partition's slice and its first row among the sorted rows."""
        placed, most = self._placed, run_bytes_of(self._topic, RUN_BYTES, ratio)
        cuts = -(-placed.sizes // most)
        content, runs = loops.scattered(placed.pieces, placed.sizes, cuts, FRAME_BYTES)
        at, first = iter(runs.T.tolist()), 0
        for partition, (rows, its) in enumerate(zip(placed.counts.tolist(), cuts, strict=True)):
            part = PartitionSlice(self._topic, partition, first, first + rows)
            for start, end, count in itertools.islice(at, int(its)):
                if count:
                    body = content[start:end]
                    yield part, first, EncodedRecords(body, count, self._now_ms, self._now_ms)
                first += count


class Destination:
    """The topics that rows go to, with their limits, and the codec.

    Args:
        wire: the connections by which topics are looked up.
        topic: the topic of rows without a ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Raises:
        ConfigurationError: no such compression.
    """

    def __init__(self, wire: ConnectionPool, *, topic: str | None, compression: str) -> None:
        self.topic = topic
        self.topics = Topics(wire)
        self.codec = codec(compression)

    def batches_of(self, gathered: Sequence[pa.RecordBatch]) -> BatchBuilder:
        """Return the builder of batches from one or more Arrow batches; errors: `batch_builder`."""
        scattered = scatter_builder(gathered, self.topic, self.topics, self.codec)
        if scattered is not None:
            return scattered
        rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        return batch_builder(rows, self.topic, self.topics, self.codec)
