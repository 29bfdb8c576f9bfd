"""Rows of a task, put together by the partition that each is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


def grouped(rows: pa.RecordBatch, keys: Sequence[pa.Array]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of its first row, its rows in their order) for each group of equal keys.

    Only groups are looped over. Nulls are a value as any other, all NaNs are one, and 0.0 is
    another value than -0.0.

    Args:
        rows: the rows.
        keys: an array for each part of the key, as long as the rows; none: all rows are one group.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    codes, most = np.zeros(rows.num_rows, dtype=np.int64), 1
    for key in keys:
        coded = pc.dictionary_encode(key, null_encoding="encode")
        if most * len(coded.dictionary) > np.iinfo(np.int64).max:
            codes, most = np.unique(codes, return_inverse=True)[1], rows.num_rows
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        most *= len(coded.dictionary)
    if most == 1:
        yield 0, rows
        return
    if most <= 1 << 16:
        codes = codes.astype(np.uint16)  # which numpy sorts in one pass
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order], append=codes[order[-1:]] + 1)) + 1
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        yield int(order[start]), rows.take(pa.array(order[start:end]))
