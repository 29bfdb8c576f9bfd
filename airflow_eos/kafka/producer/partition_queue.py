"""One partition's record batches: in order, numbered once, resent where that heals.

Rules, and why:

* A partition's batches get their sequence numbers when they are made and never others: resent,
  they are the same bytes, so the broker recognises what it has already (KIP-98).
* At most five requests are unanswered per broker, so at most five batches per partition: as many
  as the broker remembers per producer. A request has one batch a partition (Kafka's limit).
* The first batch of a partition travels alone until it is acknowledged. A broker that knows
  nothing of a producer accepts *any* sequence number from it; were the first batch refused in
  passing and the second one taken, the first one could never be written.
* A batch leaves only while fewer than five lie between it and the lowest unacknowledged one. If
  more followed, the broker would have forgotten that one and could not tell a resend of it.
* After a failure a partition waits until all its batches in flight have come back, then resends
  them in their order. What arrived out of order in between was refused and is resent, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.transactions.identity import OffsetRange
from airflow_eos.kafka.transactions.pending import unknown_offsets

if TYPE_CHECKING:
    from airflow_eos.errors import KafkaError

MAX_IN_FLIGHT = 5
FIRST_BACKOFF_S = 0.02
LONGEST_BACKOFF_S = 1.0
_SEQUENCES = 1 << 31


@dataclass(slots=True, eq=False)
class Batch:
    """One record batch; ``number`` counts those of its partition, ``count`` its rows."""

    queue: PartitionQueue
    number: int
    payload: bytes
    count: int


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """One partition's batches, in order, and what its acknowledgements have told."""

    topic: str
    partition: int
    waiting: deque[Batch] = field(default_factory=deque)
    unacknowledged: dict[int, Batch] = field(default_factory=dict)
    """By number, in order: what waits and what is in flight."""
    in_flight: int = 0
    made: int = 0
    next_sequence: int = 0
    opened: bool = False
    """The first batch is acknowledged."""
    healing: bool = False
    """A batch failed in passing: nothing is sent until all in flight have come back."""
    first: int | None = None
    last: int | None = None
    last_number: int = -1
    added: bool = False
    """The partition is known to be part of the transaction."""
    resend_at: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    stuck_since: float | None = None

    def may_send(self, now: float) -> bool:
        """Whether the first waiting batch may leave now."""
        if not self.waiting or now < self.resend_at:
            return False
        if self.healing or not self.opened:
            return self.in_flight == 0
        return self.waiting[0].number < self._lowest() + MAX_IN_FLIGHT

    def is_lowest(self, batch: Batch) -> bool:
        """Whether every batch before this one is acknowledged."""
        return self._lowest() == batch.number

    def _lowest(self) -> int:
        return next(iter(self.unacknowledged))

    def append(self, payload: bytes, count: int) -> None:
        """A record batch of ``count`` rows, made with ``next_sequence``."""
        batch = Batch(self, self.made, payload, count)
        self.waiting.append(batch)
        self.unacknowledged[batch.number] = batch
        self.made += 1
        # After 2**31 - 1 comes 0: DefaultRecordBatch.incrementSequence.
        self.next_sequence = (self.next_sequence + count) % _SEQUENCES

    def leave(self) -> None:
        """The first waiting batch is being sent."""
        self.waiting.popleft()
        self.in_flight += 1
        self.healing = False

    def put_back(self, batch: Batch) -> None:
        """A batch failed in passing: it waits again, in its place."""
        self.waiting = deque(sorted([batch, *self.waiting], key=lambda b: b.number))
        self.healing = True

    def acknowledge(self, batch: Batch, base_offset: int) -> None:
        """The broker has the batch; ``base_offset`` is -1 where it no longer knows where."""
        del self.unacknowledged[batch.number]
        known = base_offset >= 0
        if batch.number == 0:
            self.opened = True
            self.first = base_offset if known else None
        if batch.number > self.last_number:
            self.last_number = batch.number
            self.last = base_offset + batch.count - 1 if known else None
        self.stuck_since, self.backoff_s = None, FIRST_BACKOFF_S

    def note_stall(self, now: float, cause: KafkaError, delivery_timeout_s: float) -> None:
        """The partition does not move: try again after a while, longer each time.

        Raises:
            KafkaUnavailableError: it has not moved for ``delivery_timeout_s``.
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
        """The offsets of what was acknowledged.

        Raises:
            TransactionError: the broker did not say at which offset they begin or end.
        """
        if self.first is None or self.last is None:
            raise unknown_offsets(self.topic, self.partition)
        return OffsetRange(self.topic, self.partition, self.first, self.last)
