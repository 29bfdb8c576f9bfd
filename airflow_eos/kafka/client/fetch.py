"""Raw Fetch requests, outside any fetch session, and the record batches that they return."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any, TypeVar

import crc32c

from airflow_eos.kafka.client.messages import FetchRequest

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_ANSWER_BYTES = 50 * 1024 * 1024
"""Limit of a whole response, as in Kafka's consumers: high, so that only the partition's limit
counts. Where it is reached, franz-go's server leaves out which transactions were aborted."""
# KIP-98: base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and
# largest timestamp, producer id, producer epoch, first sequence number, count of records
_HEADER = struct.Struct(">qiibIhiqqqhii")
_FRAME_BYTES = 12  # base offset and length, which are not in the length
_CHECKED_FROM = 21  # the CRC covers all bytes after itself
_MAGIC = 2
_MAGIC_AT = 16  # in every format
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class FetchedRecordBatch:
    """One record batch: the fields of its header, and its still compressed records."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    records: int
    payload: memoryview
    crc: int
    checked: memoryview

    @property
    def trouble(self) -> str | None:
        """Why the batch is damaged; None where its header and its CRC-32C are right.

        A right CRC says that the bytes are those that were sent, not that they are true.
        """
        if crc32c.crc32c(self.checked) != self.crc:
            return "its CRC is not that of its bytes"
        offsets = self.last_offset - self.base_offset + 1
        if self.base_offset < 0 or not 0 <= self.records <= offsets:
            return (
                f"its header says {self.records} records between offsets {self.base_offset} and "
                f"{self.last_offset}"
            )
        return None

    @property
    def codec(self) -> int:
        """The compression codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker, not rows."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction: its rows, or its marker."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def has_append_time(self) -> bool:
        """Whether the topic stamps rows itself: each row then has the batch's largest timestamp."""
        return bool(self.attributes & _LOG_APPEND_TIME)


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    isolation: int,
    max_bytes: int,
    max_wait_ms: int = 0,
) -> Any:
    """Return a request for a partition's batches from an offset; one comes, however large (KIP-74).

    From version 11 on a follower may answer, or the leader with no rows and the name of a replica
    to read from (KIP-392, ``replica.selector.class``). Up to 10 the leader answers, with the rows.
    """
    kind = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms else 0,
        max_bytes=max(max_bytes, _ANSWER_BYTES),
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,  # no fetch session (KIP-227)
        topics=[
            kind(
                topic=topic,
                partitions=[
                    kind.FetchPartition(
                        partition=partition,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        log_start_offset=-1,
                        partition_max_bytes=max_bytes,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        max_version=10,
    )


def only_partition(response: Any, asked: tuple[str, int]) -> Any:
    """Return a response's part of the one requested partition; ``None`` where it has no such part.

    ``None`` also where it names another replica to read: it then has no rows, whatever the log has.
    """
    for topic in response.responses:
        for partition in topic.partitions:
            if (topic.topic, partition.partition_index) == asked:
                return partition if partition.preferred_read_replica < 0 else None
    return None


def older_format(records: Any) -> int | None:
    """Return the format, 0 or 1, of a record set that begins with messages older than Kafka 0.11.

    Else None. A broker returns them as they are in its log; an old topic may still have some.
    """
    view = memoryview(records or b"")
    if len(view) <= _MAGIC_AT or view[_MAGIC_AT] >= _MAGIC:
        return None
    return view[_MAGIC_AT]


def batch_headers(records: Any) -> Iterator[FetchedRecordBatch]:
    """Yield the whole batches of a fetched record set, without an incomplete last one.

    Stop at a batch whose length cannot be true, too: the CRC does not cover the length, and a
    fetch from there on yields no batch.
    """
    view = memoryview(records or b"")
    position = 0
    while len(view) - position >= _HEADER.size:
        fields = _HEADER.unpack_from(view, position)
        end = position + _FRAME_BYTES + fields[1]
        if not position + _HEADER.size <= end <= len(view) or fields[3] != _MAGIC:
            return
        yield FetchedRecordBatch(
            base_offset=fields[0],
            last_offset=fields[0] + fields[6],
            leader_epoch=fields[2],
            attributes=fields[5],
            base_timestamp_ms=fields[7],
            max_timestamp_ms=fields[8],
            producer_id=fields[9],
            producer_epoch=fields[10],
            records=fields[12],
            payload=view[position + _HEADER.size : end],
            crc=fields[4],
            checked=view[position + _CHECKED_FROM : end],
        )
        position = end


# --- prefetch -------------------------------------------------------------------------------------
# The next responses are fetched in the background while earlier ones are decoded.


T = TypeVar("T")


def ahead(items: Iterator[T], most: int) -> Generator[T, None, None]:
    """Yield the items, making up to ``most`` of them ahead of the consumer on another thread."""
    made: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    free, left = Semaphore(most), Event()

    def make() -> None:
        try:
            while free.acquire() and not left.is_set():
                made.put((True, next(items)))
        except StopIteration:
            made.put((False, None))
        except BaseException as error:  # noqa: BLE001 - it belongs to who asks
            made.put((False, error))

    Thread(target=make, name="airflow-eos-fetch", daemon=True).start()
    try:
        while True:
            is_item, item = made.get()
            if not is_item:
                if item is not None:
                    raise item
                return
            yield item
            free.release()
    finally:
        left.set()
        free.release()
