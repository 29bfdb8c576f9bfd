"""Record batches decompressed, one after the other, in one buffer: what the decoders start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airflow_eos.errors import InputError
from airflow_eos.kafka.records.decoding import UNREADABLE, decompressed

if TYPE_CHECKING:
    from airflow_eos.kafka.client.fetch import Batch

MOST_BYTES = (1 << 31) - 1
"""Arrow's 32-bit offsets point into the buffer."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of some batches. Times in ms since the epoch.

    Attributes:
        data: all records, uint8.
        starts: of each batch in ``data``, and the end of the last one.
        counts: records of each batch.
        base_offsets: of each batch; a record says how far it is from there.
        base_times: of each batch; likewise, but for those stamped by the broker.
        append_times: the time stamp of all records of a batch, -1 where each has its own.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    base_offsets: NDArray[np.int64]
    base_times: NDArray[np.int64]
    append_times: NDArray[np.int64]


def unpacked(batches: Sequence[Batch], where: str) -> Unpacked:
    """Decompress batches.

    Args:
        batches: of one partition.
        where: names it, for the error.

    Raises:
        InputError: a batch cannot be decompressed, or all of them have 2 GiB and more.
    """
    pieces = [_content(batch, where) for batch in batches]
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    if int(ends[-1]) > MOST_BYTES:
        raise InputError(
            f"The record batches from offset {batches[0].base_offset} of {where} are "
            f"{int(ends[-1])} bytes decompressed: expected less than 2 GiB at a time."
        )
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Unpacked(
        np.frombuffer(data, np.uint8),
        ends,
        _column(batch.records for batch in batches),
        _column(batch.base_offset for batch in batches),
        _column(batch.base_timestamp_ms for batch in batches),
        _column(b.max_timestamp_ms if b.has_append_time else -1 for b in batches),
    )


def _column(numbers: Any) -> NDArray[np.int64]:
    return np.array(list(numbers), np.int64)


def _content(batch: Batch, where: str) -> Any:
    try:
        return decompressed(batch)
    except UNREADABLE as error:
        raise InputError(
            f"The record batch at offset {batch.base_offset} of {where} cannot be decompressed: "
            f"{error}. Nothing of it was made visible."
        ) from error


def garbled(unpacked: Unpacked, batch: int, where: str) -> InputError:
    """The error for a batch, by its place, whose records are not what its header says."""
    return InputError(
        f"The record batch at offset {int(unpacked.base_offsets[batch])} of {where} is garbled: "
        f"it does not hold {int(unpacked.counts[batch])} records. Nothing of it was made visible."
    )
