"""Record batches on their way: pipelined, in order per partition, resent where that heals.

The rules of order are those of :mod:`~airflow_eos.kafka.producer.partition_queue`.

Not thread-safe but for ``give_up``: one thread at a time calls it. What sends is the wire's own
I/O thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.producer.partition_queue import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    MAX_IN_FLIGHT,
    Batch,
    PartitionQueue,
)
from airflow_eos.kafka.producer.requests import (
    Fate,
    PartitionResponse,
    partition_responses,
    produce_request,
)

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.kafka.transactions.identity import OffsetRange

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""A request takes no batch beyond this; brokers refuse 100 MB (socket.request.max.bytes)."""
TopicPartition = tuple[str, int]


class Sender:
    """The batches of one producer epoch, from their making to their acknowledgement.

    Args:
        wire: how requests travel.
        transactional_id: None for writing without a transaction.
        add_partitions: adds partitions to the transaction by a request of its own; None where
            the produce request does it (transaction version 2) or there is no transaction.
        delivery_timeout_s: how long a partition may fail in passing before that counts as final.
    """

    def __init__(
        self,
        wire: Wire,
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
        self._in_flight: dict[Future[Any], tuple[int, list[Batch]]] = {}
        self._stale_topics: set[str] = set()
        self._given_up = False
        self.bytes = 0
        """Of batches made and not acknowledged."""

    def sequence(self, topic: str, partition: int) -> int:
        """The sequence number of the next record of that partition."""
        return self._queue(topic, partition).next_sequence

    def add(self, topic: str, partition: int, payload: bytes, count: int) -> None:
        """Queue a record batch that was made with the sequence number told last."""
        self._queue(topic, partition).append(payload, count)
        self.bytes += len(payload)

    def pump(self) -> None:
        """Read the answers that are there, send what may be sent; does not wait.

        Raises:
            FencedError, RowError, TopicError, TransactionError: refused for good, or given up.
            KafkaUnavailableError: a partition failed in passing for the delivery timeout.
        """
        if self._given_up:
            raise TransactionError("The writer aborted the transaction; nothing more is sent.")
        for future in [f for f in self._in_flight if f.done()]:
            self._take_answer(future)
        self._send()

    def wait_below(self, limit_bytes: int) -> None:
        """Send and wait until at most ``limit_bytes`` are unacknowledged; errors as of pump."""
        self.pump()
        while self.bytes > limit_bytes:
            self._wait()
            self.pump()

    def give_up(self) -> None:
        """End a wait in another thread, within a second, and let nothing more be sent."""
        self._given_up = True

    def wait_for_in_flight(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, whatever becomes of it; send nothing more.

        Called before an abort: a request that arrived after it could open the transaction anew.
        """
        wait(list(self._in_flight), timeout=timeout_s)
        self._in_flight.clear()

    def written(self) -> tuple[OffsetRange, ...]:
        """The offsets of what was acknowledged, partition by partition.

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
                self._join_transaction(ready)
            for node_id, batches in ready.items():
                self._submit(node_id, batches)

    def _ready(self) -> dict[int, list[Batch]]:
        """At most one batch a partition, by the broker that leads it."""
        now = time.monotonic()
        busy: dict[int, int] = {}
        for node_id, _ in self._in_flight.values():
            busy[node_id] = busy.get(node_id, 0) + 1
        chosen: dict[int, list[Batch]] = {}
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

    def _join_transaction(self, ready: dict[int, list[Batch]]) -> None:
        fresh = [b.queue for batches in ready.values() for b in batches if not b.queue.added]
        if fresh and self._add_partitions is not None:
            self._add_partitions([(queue.topic, queue.partition) for queue in fresh])
            for queue in fresh:
                queue.added = True

    def _submit(self, node_id: int, batches: list[Batch]) -> None:
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
            # Whether the broker has the batches is unknown: their sequence numbers will tell.
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

    def _apply(self, batch: Batch, answer: PartitionResponse) -> None:
        queue = batch.queue
        match answer.fate:
            case Fate.DONE:
                queue.acknowledge(batch, answer.base_offset)
                self.bytes -= len(batch.payload)
            case Fate.OUT_OF_ORDER if queue.is_lowest(batch):
                raise answer.error(batch.payload)
            case Fate.RESEND | Fate.OUT_OF_ORDER:
                what = f"{faults.error_name(answer.code)} {answer.message}".strip()
                self._again(batch, KafkaUnavailableError(f"Kafka answered {what}."))
            case Fate.REFUSED:
                raise answer.error(batch.payload)

    def _again(self, batch: Batch, cause: KafkaError) -> None:
        queue = batch.queue
        queue.put_back(batch)
        self._stale_topics.add(queue.topic)
        queue.note_stall(time.monotonic(), cause, self._delivery_timeout_s)
