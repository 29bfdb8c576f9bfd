"""Sending of record batches: pipelined, in order per partition, resent after retriable errors.

Only ``give_up`` is thread-safe: one thread at a time calls all else. The connections' own I/O
thread sends.
"""

from __future__ import annotations

import enum
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.decode import tables, unpacked
from airflow_eos.arrow.records.encode import Stamp, encode_runs, record_batch
from airflow_eos.errors import (
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.codecs import NAMES, codec
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.kafka.client.messages import InitProducerIdRequest, ProduceRequest
from airflow_eos.kafka.client.records import rows_of
from airflow_eos.kafka.transactions.identity import OffsetRange, unknown_offsets

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import ConnectionPool

MAX_IN_FLIGHT = 5
FIRST_BACKOFF_S = 0.02
LONGEST_BACKOFF_S = 1.0
_SEQUENCES = 1 << 31
_SEQUENCE_AT = slice(53, 57)  # in a record batch's header


@dataclass(slots=True, eq=False)
class PendingRecordBatch:
    """One record batch to send: ``number`` is its index in its partition, ``count`` its rows."""

    queue: PartitionQueue
    number: int
    payload: bytes
    count: int


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """One partition's record batches, in order, and the state of their acknowledgement."""

    topic: str
    partition: int
    waiting: deque[PendingRecordBatch] = field(default_factory=deque)
    unacknowledged: dict[int, PendingRecordBatch] = field(default_factory=dict)
    """The batches that wait or are in flight, by number, in order."""
    in_flight: int = 0
    made: int = 0
    next_sequence: int = 0
    acknowledged: bool = False
    """Whether the first batch is acknowledged."""
    healing: bool = False
    """Whether a batch failed retriably: no batch is sent until all in flight are answered."""
    first: int | None = None
    last: int | None = None
    last_number: int = -1
    added: bool = False
    """Whether the partition was added to the transaction."""
    resend_at: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    stuck_since: float | None = None

    def may_send(self, now: float) -> bool:
        """Whether the first waiting batch may leave now."""
        if not self.waiting or now < self.resend_at:
            return False
        if self.healing or not self.acknowledged:
            return self.in_flight == 0
        return self.waiting[0].number < self._lowest() + MAX_IN_FLIGHT

    def is_lowest(self, batch: PendingRecordBatch) -> bool:
        """Whether every batch before this one is acknowledged."""
        return self._lowest() == batch.number

    def _lowest(self) -> int:
        return next(iter(self.unacknowledged))

    def append(self, payload: bytes, count: int) -> None:
        """Queue a record batch of ``count`` rows, made with ``next_sequence``."""
        batch = PendingRecordBatch(self, self.made, payload, count)
        self.waiting.append(batch)
        self.unacknowledged[batch.number] = batch
        self.made += 1
        # After 2**31 - 1 comes 0: DefaultRecordBatch.incrementSequence.
        self.next_sequence = (self.next_sequence + count) % _SEQUENCES

    def leave(self) -> None:
        """Mark the first waiting batch as in flight."""
        self.waiting.popleft()
        self.in_flight += 1
        self.healing = False

    def put_back(self, batch: PendingRecordBatch) -> None:
        """Queue a batch that failed retriably again, in the order of its number."""
        self.waiting = deque(sorted([batch, *self.waiting], key=lambda b: b.number))
        self.healing = True

    def halve(self, batch: PendingRecordBatch, halves: Sequence[tuple[bytes, int]]) -> None:
        """Queue the rows of a refused batch again in two; those behind it move back by one.

        Sequence numbers count rows, so those of the batches behind it stay right. All are answered
        before the halves leave: the broker takes none of them before the refused rows.
        """
        behind = [b for b in self.unacknowledged.values() if b.number > batch.number]
        (batch.payload, batch.count), second = halves
        for each in behind:
            each.number += 1
            del self.unacknowledged[each.number - 1]
        added = PendingRecordBatch(self, batch.number + 1, *second)
        self.unacknowledged |= {each.number: each for each in (added, *behind)}
        self.made += 1
        self.put_back(batch)
        self.put_back(added)

    def acknowledge(self, batch: PendingRecordBatch, base_offset: int) -> None:
        """Mark a batch as acknowledged; ``base_offset`` is -1 if the broker has forgotten it."""
        del self.unacknowledged[batch.number]
        known = base_offset >= 0
        if batch.number == 0:
            self.acknowledged = True
            self.first = base_offset if known else None
        if batch.number > self.last_number:
            self.last_number = batch.number
            self.last = base_offset + batch.count - 1 if known else None
        self.stuck_since, self.backoff_s = None, FIRST_BACKOFF_S

    def note_stall(self, now: float, cause: KafkaError, delivery_timeout_s: float) -> None:
        """Delay the partition's next attempt after a failure, longer each time.

        Raises:
            KafkaUnavailableError: no batch was acknowledged for ``delivery_timeout_s``.
        """
        if self.stuck_since is None:
            self.stuck_since = now
        stuck_s = now - self.stuck_since
        if stuck_s > delivery_timeout_s:
            raise KafkaUnavailableError(
                f"Partition {self.partition} of topic {self.topic!r} could not be written for "
                f"{stuck_s:.0f} s, the delivery timeout; the last reason: {cause}"
            ) from cause
        self.resend_at = now + self.backoff_s
        self.backoff_s = min(self.backoff_s * 2, LONGEST_BACKOFF_S)

    def written(self) -> OffsetRange:
        """Return the offsets of the acknowledged rows.

        Raises:
            TransactionError: the broker did not say at which offset they begin or end.
        """
        if self.first is None or self.last is None:
            raise unknown_offsets(self.topic, self.partition)
        return OffsetRange(self.topic, self.partition, self.first, self.last)


# --- requests -------------------------------------------------------------------------------------
# Produce requests, and the meaning of each of their error codes for a record batch.
#
# Codes and retriability follow Kafka's Java producer (``org.apache.kafka.clients.producer.internals
# .Sender`` and ``TransactionManager``).


_ALL_REPLICAS = -1
_INIT_TIMEOUT_S = 60.0
_BROKER_TIMEOUT_MS = 25_000
"""How long the broker waits for its replicas; less than our own wait for the response."""
_IMPLICIT_ADD_VERSION = 12
"""First version of Produce that adds its partitions to the transaction by itself (KIP-890);
only where the cluster's ``transaction.version`` is 2. Version 13 names topics by ids."""

_OUT_OF_ORDER_SEQUENCE = 45
_DUPLICATE_SEQUENCE = 46
_FENCING = {faults.INVALID_PRODUCER_EPOCH, faults.PRODUCER_FENCED}
_OF_A_BATCH = {faults.MESSAGE_TOO_LARGE, faults.RECORD_LIST_TOO_LARGE}
_OF_A_TOPIC = {faults.INVALID_TOPIC, faults.TOPIC_AUTHORIZATION_FAILED}
# Not retriable in general, but while a transaction is being opened: the markers of the id's
# transaction before are still being written, or its coordinator moves.
_PASSES = {faults.CONCURRENT_TRANSACTIONS}


class ProduceResult(enum.Enum):
    """What to do about one record batch after the broker's answer."""

    DONE = "done"
    RESEND = "resend"
    OUT_OF_ORDER = "out of order"
    """Resend it if an earlier batch of the partition is unacknowledged; else rows are lost."""
    REFUSED = "refused"


class PartitionResponse(NamedTuple):
    """The broker's answer for one partition of a produce request.

    ``base_offset`` is -1 where the broker does not know it: it has the batch already, from a
    request whose response was lost, and no longer remembers the offset.
    """

    topic: str
    partition: int
    code: int
    base_offset: int
    message: str
    row: int | None = None
    """Index in the record batch of the first refused row, where the broker tells it."""

    @property
    def fate(self) -> ProduceResult:
        """What to do about the record batch."""
        if self.code in (faults.NONE, _DUPLICATE_SEQUENCE):
            return ProduceResult.DONE
        if self.code == _OUT_OF_ORDER_SEQUENCE:
            return ProduceResult.OUT_OF_ORDER
        if self.code in _PASSES or faults.is_retriable(self.code):
            return ProduceResult.RESEND
        return ProduceResult.REFUSED

    def error(self, payload: bytes) -> KafkaError:
        """Return the error to raise for a refused record batch."""
        where = f"writing to partition {self.partition} of topic {self.topic!r}"
        if self.code in _FENCING:
            return FencedError(
                f"Kafka answered {faults.error_name(self.code)} {where}: somebody else took the "
                "transactional id, or the broker aborted the transaction because its timeout "
                "passed while it was being written."
            )
        rows = sum(batch.records for batch in batch_headers(payload))
        if self.code in _OF_A_BATCH and self.row is None and rows > 1:
            return TopicError(
                f"Kafka answered {faults.error_name(self.code)} {where} for a record batch of "
                f"{rows} rows: the topic takes smaller ones than its settings said a minute ago, "
                "or they may not be read. No row is known to be too large.",
                Remedy(start=True),
                Remedy(change=f"grant DescribeConfigs on Topic {self.topic!r}", start=True),
            )
        if faults.is_row_refusal(self.code):
            row = None if self.row is None else _row_of(payload, self.row)
            return faults.row_refused(
                self.code,
                where,
                row="" if row is None else f"with key {row[0]!r:.80}",
                timestamp_ms=None if row is None else row[1],
                said=self.message,
            )
        if self.code == _OUT_OF_ORDER_SEQUENCE:
            return TransactionError(
                f"Kafka answered {faults.error_name(self.code)} {where}, although all earlier rows "
                "were acknowledged: the partition has lost rows, as after an unclean election."
            )
        kind = TopicError if self.code in _OF_A_TOPIC else TransactionError
        acl = f"Write on Topic {self.topic!r}"
        return faults.refusal(self.code, where, acl=acl, otherwise=kind)


def produce_request(
    transactional_id: str | None,
    payloads: Iterable[tuple[str, int, bytes]],
    *,
    implicit_add: bool,
) -> Any:
    """Return one request for payloads of (topic, partition, record batch), one per partition."""
    topic_data = ProduceRequest.TopicProduceData
    by_topic: dict[str, list[Any]] = {}
    for topic, partition, payload in payloads:
        data = topic_data.PartitionProduceData(index=partition, records=payload)
        by_topic.setdefault(topic, []).append(data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=_ALL_REPLICAS,
        timeout_ms=_BROKER_TIMEOUT_MS,
        topic_data=[topic_data(name=t, partition_data=p) for t, p in by_topic.items()],
        max_version=_IMPLICIT_ADD_VERSION if implicit_add else _IMPLICIT_ADD_VERSION - 1,
    )


def partition_responses(response: Any) -> Iterable[PartitionResponse]:
    """Yield a produce response's answers, partition by partition."""
    for topic in response.responses:
        for part in topic.partition_responses:
            details = [part.error_message] if part.error_message else []
            refused = part.record_errors or ()
            details += [e.batch_index_error_message or "" for e in refused][:3]
            yield PartitionResponse(
                topic.name,
                part.index,
                part.error_code,
                part.base_offset,
                "; ".join(details),
                refused[0].batch_index if refused else None,
            )


def _row_of(payload: bytes, index: int) -> tuple[bytes | None, int] | None:
    """Return key and timestamp of a row of a sent record batch; None where it has no such row."""
    rows = itertools.chain.from_iterable(map(rows_of, batch_headers(payload)))
    row = next(itertools.islice(rows, index, None), None)
    return None if row is None else (row.key, row.timestamp)


def halves_of(payload: bytes) -> tuple[tuple[bytes, int], ...]:
    """Return a sent record batch's rows as two batches, each with its number of rows.

    As Java's producer does where a broker calls a batch too large. None where the batch has one
    row, or would not be made of its rows as it was (header names that are no UTF-8).
    """
    # No task loads what reads a range, but where a batch is refused.
    from airflow_eos.kafka.client.reading import OffsetSpan

    sent = next(batch_headers(payload), None)
    if sent is None or sent.records < 2:
        return ()
    whole = OffsetSpan("", 0, 0, sent.records)
    (packed,) = unpacked([sent], whole)
    rows = pa.concat_batches(tables([sent], whole, ("key", "value", "headers")))
    rows = rows.append_column("timestamp", pa.array(loops.spans_of(packed).times))
    columns = columns_of(rows, now_ms=0)
    (same,) = encode_runs(columns, [0, sent.records])
    if bytes(same.body) != packed.data.tobytes():
        return ()
    half = sent.records // 2
    stamp = Stamp(sent.producer_id, sent.producer_epoch, sent.is_transactional)
    sequence = int.from_bytes(payload[_SEQUENCE_AT])
    first, second = encode_runs(columns, [0, half, sent.records])
    how = codec(NAMES[sent.codec])
    return tuple(
        (record_batch(run, stamp, (sequence + before) % _SEQUENCES, how), run.count)
        for run, before in ((first, 0), (second, half))
    )


def idempotent_producer(wire: ConnectionPool) -> tuple[int, int]:
    """Return a new producer id and its epoch, for writing without a transaction, from any broker.

    Raises:
        KafkaError: not allowed, or no answer within a minute.
    """
    deadline = Deadline(_INIT_TIMEOUT_S)
    while True:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=2**31 - 1,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,
        )
        answer = wire.request(request)
        if answer.error_code == faults.NONE:
            return answer.producer_id, answer.producer_epoch
        if not faults.is_retriable(answer.error_code) or not deadline.pause():
            raise faults.refusal(
                answer.error_code,
                "while asking for a producer id",
                acl="IdempotentWrite on Cluster, or Write on the topic",
                otherwise=KafkaError,
            )


# --- sender ---------------------------------------------------------------------------------------


MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""Most bytes of batches sharing a request; brokers refuse 100 MB (socket.request.max.bytes)."""
TopicPartition = tuple[str, int]


class Sender:
    """Sender of one producer epoch's record batches, until they are acknowledged.

    Args:
        wire: the connections to the cluster.
        transactional_id: None for writing without a transaction.
        add_partitions: adds partitions to the transaction by a request of its own; None where
            the produce request does it (transaction version 2) or there is no transaction.
        delivery_timeout_s: how long a partition may fail retriably until that is final.
    """

    def __init__(
        self,
        wire: ConnectionPool,
        *,
        transactional_id: str | None,
        add_partitions: Callable[[Sequence[TopicPartition]], None] | None,
        delivery_timeout_s: float,
    ) -> None:
        self._wire = wire
        self._transactional_id = transactional_id
        self._add_partitions = add_partitions
        self._delivery_timeout_s = delivery_timeout_s
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._in_flight: dict[Future[Any], tuple[int, list[PendingRecordBatch]]] = {}
        self._stale_topics: set[str] = set()
        self._given_up = False
        self.bytes = 0
        """Bytes of batches made and not acknowledged."""

    def sequence(self, topic: str, partition: int) -> int:
        """Return the sequence number of a partition's next record."""
        return self._queue(topic, partition).next_sequence

    def add(self, topic: str, partition: int, payload: bytes, count: int) -> None:
        """Queue a record batch that was made with the number :meth:`sequence` returned last."""
        self._queue(topic, partition).append(payload, count)
        self.bytes += len(payload)

    def pump(self) -> None:
        """Read the responses that have come and send the batches that may be sent; do not wait.

        Raises:
            FencedError, RowError, TopicError, TransactionError: refused for good, or given up.
            KafkaUnavailableError: a partition failed retriably for the delivery timeout.
        """
        if self._given_up:
            raise TransactionError("The writer aborted the transaction; nothing more is sent.")
        for future in [f for f in self._in_flight if f.done()]:
            self._take_answer(future)
        self._send()

    def wait_below(self, limit_bytes: int) -> None:
        """Send and wait until at most ``limit_bytes`` are unacknowledged; errors as ``pump``."""
        self.pump()
        while self.bytes > limit_bytes:
            self._wait()
            self.pump()

    def give_up(self) -> None:
        """End another thread's wait, within a second, and have it send no more batches."""
        self._given_up = True

    def wait_for_in_flight(self, timeout_s: float) -> None:
        """Wait until no request is in flight, whatever its outcome; send no more.

        Called before an abort: a request that arrived after it could open the transaction anew.
        """
        wait(list(self._in_flight), timeout=timeout_s)
        self._in_flight.clear()

    def written(self) -> tuple[OffsetRange, ...]:
        """Return the offsets of the acknowledged rows, partition by partition.

        Raises:
            TransactionError: the broker did not say at which offset a range begins or ends.
        """
        return tuple(queue.written() for queue in self._queues.values())

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        key = (topic, partition)
        if key not in self._queues:
            self._queues[key] = PartitionQueue(topic, partition)
        return self._queues[key]

    def _wait(self) -> None:
        now = time.monotonic()
        due = [queue.resend_at - now for queue in self._queues.values() if queue.resend_at > now]
        pause = min(due, default=LONGEST_BACKOFF_S)
        if self._in_flight:
            wait(list(self._in_flight), timeout=pause, return_when=FIRST_COMPLETED)
        else:
            time.sleep(min(pause, FIRST_BACKOFF_S))

    # -- sending -------------------------------------------------------------------------------

    def _send(self) -> None:
        while ready := self._ready():
            if self._add_partitions is not None:
                fresh = [b.queue for some in ready.values() for b in some if not b.queue.added]
                if fresh:
                    self._add_partitions([(queue.topic, queue.partition) for queue in fresh])
                for queue in fresh:
                    queue.added = True
            for node_id, batches in ready.items():
                self._submit(node_id, batches)

    def _ready(self) -> dict[int, list[PendingRecordBatch]]:
        """Return the batches to send now by their leaders' ids, at most one per partition."""
        now = time.monotonic()
        busy: dict[int, int] = {}
        for node_id, _ in self._in_flight.values():
            busy[node_id] = busy.get(node_id, 0) + 1
        chosen: dict[int, list[PendingRecordBatch]] = {}
        sizes: dict[int, int] = {}
        leaders: dict[str, dict[int, int]] = {}
        for queue in self._queues.values():
            if not queue.may_send(now):
                continue
            leader = self._leader(queue, leaders, now)
            if leader is None or busy.get(leader, 0) >= MAX_IN_FLIGHT:
                continue
            size = sizes.get(leader, 0) + len(queue.waiting[0].payload)
            if leader in chosen and size > MAX_REQUEST_BYTES:
                continue
            chosen.setdefault(leader, []).append(queue.waiting[0])
            sizes[leader] = size
        return chosen

    def _leader(
        self, queue: PartitionQueue, known: dict[str, dict[int, int]], now: float
    ) -> int | None:
        if queue.topic in self._stale_topics:
            try:
                self._wire.cluster.leaders(queue.topic, refresh=True)
            except KafkaUnavailableError as error:
                queue.note_stall(now, error, self._delivery_timeout_s)
                return None
            self._stale_topics.discard(queue.topic)
        if queue.topic not in known:
            known[queue.topic] = self._wire.cluster.leaders(queue.topic)
        node_id = known[queue.topic].get(queue.partition, -1)
        if node_id >= 0:
            return node_id
        self._stale_topics.add(queue.topic)
        where = f"partition {queue.partition} of topic {queue.topic!r}"
        leaderless = KafkaUnavailableError(f"{where} has no leader now.")
        queue.note_stall(now, leaderless, self._delivery_timeout_s)
        return None

    def _submit(self, node_id: int, batches: list[PendingRecordBatch]) -> None:
        for batch in batches:
            batch.queue.leave()
        request = produce_request(
            self._transactional_id,
            [(b.queue.topic, b.queue.partition, b.payload) for b in batches],
            implicit_add=self._add_partitions is None,
        )
        self._in_flight[self._wire.submit(request, node_id=node_id)] = (node_id, batches)

    # -- answers -------------------------------------------------------------------------------

    def _take_answer(self, future: Future[Any]) -> None:
        _, batches = self._in_flight.pop(future)
        for batch in batches:
            batch.queue.in_flight -= 1
        try:
            response = future.result(0)
        except KafkaUnavailableError as error:
            # Whether the broker has the batches is unknown: it knows by their sequence numbers.
            for batch in batches:
                self._again(batch, error)
            return
        found = {(a.topic, a.partition): a for a in partition_responses(response)}
        for batch in batches:
            answer = found.get((batch.queue.topic, batch.queue.partition))
            if answer is None:
                raise TransactionError(
                    f"The broker's answer leaves out partition {batch.queue.partition} of topic "
                    f"{batch.queue.topic!r}, which was written to."
                )
            self._apply(batch, answer)

    def _apply(self, batch: PendingRecordBatch, answer: PartitionResponse) -> None:
        queue = batch.queue
        match answer.fate:
            case ProduceResult.DONE:
                queue.acknowledge(batch, answer.base_offset)
                self.bytes -= len(batch.payload)
            case ProduceResult.OUT_OF_ORDER if queue.is_lowest(batch):
                raise answer.error(batch.payload)
            case ProduceResult.RESEND | ProduceResult.OUT_OF_ORDER:
                what = f"{faults.error_name(answer.code)} {answer.message}".strip()
                self._again(batch, KafkaUnavailableError(f"Kafka answered {what}."))
            case ProduceResult.REFUSED:
                halves = halves_of(batch.payload) if answer.code in _OF_A_BATCH else ()
                if not halves:
                    raise answer.error(batch.payload)
                self.bytes += sum(len(payload) for payload, _ in halves) - len(batch.payload)
                queue.halve(batch, halves)

    def _again(self, batch: PendingRecordBatch, cause: KafkaError) -> None:
        queue = batch.queue
        queue.put_back(batch)
        self._stale_topics.add(queue.topic)
        queue.note_stall(time.monotonic(), cause, self._delivery_timeout_s)
