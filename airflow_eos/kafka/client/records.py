"""Single records of a batch, by kafka-python; ``airflow_eos.arrow`` has the fast way, by column.

:mod:`airflow_eos.arrow.records.encode` shows the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import InputError
from airflow_eos.kafka.client.codecs import UNREADABLE, decompressed
from airflow_eos.kafka.client.errors import CorruptRecordError
from airflow_eos.kafka.client.messages import DefaultRecordBatch, MemoryRecordsBuilder

if TYPE_CHECKING:
    from airflow_eos.kafka.client.fetch import FetchedRecordBatch

HEADER_BYTES = 61
"""Bytes of a record batch before its records."""
FRAME_BYTES = 36
"""Most bytes that a record adds to key, value and headers: four 5-byte varints, the 10-byte
timestamp, a 5-byte header count and the attributes byte. Usually it is 8 to 10."""
_CODEC = 0x07


def rows_of(batch: FetchedRecordBatch, where: str = "its partition") -> Iterator[Any]:
    """Yield the rows of one batch in the order of their offsets, as kafka-python has them.

    They have ``offset``, ``timestamp`` (ms since the epoch), ``key``, ``value`` and ``headers``.

    Args:
        batch: a record batch of any codec.
        where: the name of its partition, for the error.

    Raises:
        InputError: the batch has an unknown codec, is too large, or is garbled.
    """
    try:
        # Decompressed here: kafka-python knows no bound, and two codecs not by itself.
        header = DefaultRecordBatch.HEADER_STRUCT.pack(
            *(batch.base_offset, 0, batch.leader_epoch, 2, 0, batch.attributes & ~_CODEC),
            *(batch.last_offset - batch.base_offset, batch.base_timestamp_ms),
            *(batch.max_timestamp_ms, batch.producer_id, batch.producer_epoch, -1, batch.records),
        )
        yield from DefaultRecordBatch(b"".join((header, decompressed(batch))))
    except (*UNREADABLE, CorruptRecordError) as error:
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {where} cannot be decoded: {error}."
        ) from error


def first_record(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()
) -> memoryview:
    """Return a row as the first record of its batch, at the batch's time: its least size."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=0)
    builder.append(timestamp=0, key=key, value=value, headers=headers)
    builder.close()
    return memoryview(builder.buffer())[HEADER_BYTES:]
