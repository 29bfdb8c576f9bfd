"""Record batches decompressed, one after the other, in one buffer: what the decoders start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airflow_eos.errors import InputError, Remedy
from airflow_eos.kafka.records.decoding import MOST_BYTES, UNREADABLE, decompressed

if TYPE_CHECKING:
    from airflow_eos.kafka.client.fetch import Batch

PORTION_BYTES = 1 << 19
"""Compressed, of batches that are decoded together; a larger one is decoded by itself.

About 10,000 small rows, which stay in a processor's cache. Each batch of a portion is copied once
more, to lie behind the one before, which costs large ones a fifth of all decoding. Decompressed, a
portion has no more than one batch may have (:data:`~.decoding.MOST_BYTES`).
"""
_STEP_OVER = (
    Remedy(
        change="have its producer write these rows again, in smaller batches, and go on behind it"
        " on a new checkpoint location with startingOffsets"
    ),
    Remedy(
        change="go on behind it on a new checkpoint location with startingOffsets",
        costs="the rows of that record batch, and the state of the query",
    ),
)
"""Whoever starts again meets it again."""
_LEAST = 7
"""Bytes of a record: its length, attributes, time, offset, key, value and count of headers."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of some batches. Times in ms since the epoch.

    Attributes:
        data: all records, uint8.
        starts: of each batch in ``data``, and the end of the last one.
        counts: records of each batch, no more than its bytes can hold.
        base_offsets: of each batch; a record says how far it is from there.
        last_offsets: of each batch; no record is behind it.
        base_times: of each batch; likewise, but for those stamped by the broker.
        append_times: the time stamp of all records of a batch, -1 where each has its own.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    base_times: NDArray[np.int64]
    append_times: NDArray[np.int64]


def unpacked(batches: Sequence[Batch], where: str) -> Iterator[Unpacked]:
    """Decompress batches, a portion of them at a time.

    Args:
        batches: of one partition.
        where: names it, for the error.

    Raises:
        InputError: a batch cannot be decompressed, is too large, or says that it has more records
            than bytes for them.
    """
    portion: list[Batch] = []
    pieces: list[Any] = []
    packed = size = 0
    for batch in batches:
        if portion and packed + len(batch.payload) > PORTION_BYTES:
            yield _joined(portion, pieces)
            portion, pieces, packed, size = [], [], 0, 0
        piece = _content(batch, where)
        if portion and size + len(piece) > MOST_BYTES:
            yield _joined(portion, pieces)
            portion, pieces, packed, size = [], [], 0, 0
        portion.append(batch)
        pieces.append(piece)
        packed += len(batch.payload)
        size += len(piece)
    if portion:
        yield _joined(portion, pieces)


def _joined(batches: Sequence[Batch], pieces: Sequence[Any]) -> Unpacked:
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    whole = np.frombuffer(data, np.uint8)
    whole.flags.writeable = False  # as the loops were compiled for
    return Unpacked(
        whole,
        np.cumsum([0, *map(len, pieces)], dtype=np.int64),
        _column(batch.records for batch in batches),
        _column(batch.base_offset for batch in batches),
        _column(batch.last_offset for batch in batches),
        _column(batch.base_timestamp_ms for batch in batches),
        _column(b.max_timestamp_ms if b.has_append_time else -1 for b in batches),
    )


def _column(numbers: Any) -> NDArray[np.int64]:
    return np.array(list(numbers), np.int64)


def _content(batch: Batch, where: str) -> Any:
    try:
        found = decompressed(batch)
    except UNREADABLE as error:
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {where} cannot be decompressed: "
            f"{error}. Nothing of it was made visible.",
            *_STEP_OVER,
        ) from error
    if not 0 <= batch.records <= len(found) // _LEAST:  # before anything is made by that number
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {where} is garbled: "
            f"{batch.records} records cannot be in {len(found)} bytes. Nothing of it was made "
            f"visible.",
            *_STEP_OVER,
        )
    return found


def garbled(unpacked: Unpacked, batch: int, where: str) -> InputError:
    """The error for a batch, by its place, whose records are not what its header says."""
    return InputError(
        f"The record batch at offset {int(unpacked.base_offsets[batch])} of {where} is garbled: "
        f"it does not hold {int(unpacked.counts[batch])} records one after the other, with offsets "
        f"that grow up to {int(unpacked.last_offsets[batch])}. Nothing of it was made visible.",
        *_STEP_OVER,
    )
