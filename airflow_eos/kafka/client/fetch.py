"""Raw Fetch: requests outside any fetch session, and the headers of the batches that come back."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import crc32c

from airflow_eos.kafka.client.messages import FetchRequest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_ANSWER_BYTES = 50 * 1024 * 1024
"""As Kafka's own consumers have it: the limit of the partition is the one that counts. Where that
of the whole answer is reached, franz-go's server leaves out which transactions were aborted."""
# KIP-98: base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and
# largest timestamp, producer id, producer epoch, first sequence number, count of records
_HEADER = struct.Struct(">qiibIhiqqqhii")
_FRAME_BYTES = 12  # base offset and length, which the length does not count
_CHECKED_FROM = 21  # the CRC is of all that follows it
_MAGIC = 2
_MAGIC_AT = 16  # in every format, whatever follows it
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class FetchedRecordBatch:
    """One record batch: its header's facts and its still compressed records."""

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
        """Why nothing of it can be believed; None where its header and its CRC-32C hold.

        A CRC that is right says that the bytes are those that were sent, not that they are true.
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
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC

    @property
    def is_control(self) -> bool:
        """A transaction marker, not rows."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Of a transaction: rows of it, or its marker."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def has_append_time(self) -> bool:
        """The topic stamps rows itself: all rows have the largest timestamp."""
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
    """One partition from an offset; at least one whole batch comes back, however large (KIP-74).

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
    """The answer for the one partition asked for; ``None`` where the response holds none.

    One that sends its reader to another replica is none: it has no rows, whatever the log has.
    """
    for topic in response.responses:
        for partition in topic.partitions:
            if (topic.topic, partition.partition_index) == asked:
                return partition if partition.preferred_read_replica < 0 else None
    return None


def older_format(records: Any) -> int | None:
    """0 or 1 where a fetched record set begins with messages from before Kafka 0.11; else None.

    A broker gives them as they lie in its log, which a topic of then may still have.
    """
    view = memoryview(records or b"")
    if len(view) <= _MAGIC_AT or view[_MAGIC_AT] >= _MAGIC:
        return None
    return view[_MAGIC_AT]


def batch_headers(records: Any) -> Iterator[FetchedRecordBatch]:
    """The whole batches of a fetched record set; an incomplete last one is left out.

    So is all from where a batch's length cannot be true: its CRC is not of it, and whoever asks for
    the rest is given no batch.
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


# --- ahead ----------------------------------------------------------------------------------------
# Prefetch: fetch the next responses in the background while earlier ones are decoded.


T = TypeVar("T")


def ahead(items: Iterator[T], most: int) -> Generator[T, None, None]:
    """The same items, up to ``most`` of them made on a thread beside, before they are asked for."""
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
