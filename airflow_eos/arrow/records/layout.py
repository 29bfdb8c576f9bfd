"""Records of fetched batches, and where their fields are: what decoders take and give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
MOST_HEADERS = 1 << 17
"""Most headers of one record. A header can be two bytes of zeros, which compress to nothing, and
takes hundreds once it is read."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of some batches. Times in ms since the epoch.

    Attributes:
        data: all records, uint8.
        starts: where each batch begins in ``data``, and the end of the last one.
        counts: number of records of each batch, no more than its bytes can hold.
        base_offsets: first offset of each batch; a record has its distance from there.
        last_offsets: last offset of each batch; no record is behind it.
        base_times: base timestamp of each batch, likewise, but for those stamped by the broker.
        append_times: the timestamp of all records of a batch, -1 where each has its own.
    """

    data: NDArray[np.uint8]
    starts: I64
    counts: I64
    base_offsets: I64
    last_offsets: I64
    base_times: I64
    append_times: I64


@dataclass(frozen=True, slots=True)
class Spans:
    """Columns with one item per row: where its fields are in the data, and its offset and time.

    A length of -1 is a null; times are ms since the epoch. ``headers`` is where a row's headers
    begin (behind their count), ``header_counts`` how many they are.
    """

    offsets: I64
    times: I64
    keys: I64
    key_lengths: I64
    values: I64
    value_lengths: I64
    headers: I64
    header_counts: I64

    def where(self, chosen: NDArray[np.bool_]) -> Spans:
        """Return the spans of the chosen rows."""
        return Spans(*(getattr(self, name)[chosen] for name in self.__slots__))


class Garbled(Exception):  # noqa: N818 - told to whoever knows the partition, who says it in full
    """Raised with the index of a batch whose records are not as its header says."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.batch = batch
