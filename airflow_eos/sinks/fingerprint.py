"""The content of a task's rows as one number that does not depend on their order.

Two 64-bit hashes a row, made in the JVM (``xxhash64``, Spark's ``XxHash64`` expression, chained
over the columns from two different seeds) and summed modulo 2**64 on the Arrow side: 128 bits,
the same for the same multiset of rows however they are ordered, and additive over tasks, so a
whole batch can be compared even when its rows are cut into other tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HASH_COLUMNS = ("__eos_hash_0", "__eos_hash_1")
_MASK = (1 << 64) - 1


def with_row_hashes(rows: DataFrame) -> DataFrame:
    """Add the two hash columns over all columns of ``rows``."""
    # xxhash64 passes over a null as if the column were not there: hash the nulls as well,
    # or (null, "a") and ("a", null) would be one row.
    # Also where no null can be: a batch and a streaming query need not agree on that.
    parts = ", ".join(f"`{name}`, isnull(`{name}`)" for name in rows.columns)
    hashes = [f"xxhash64({seed}, {parts}) AS {name}" for seed, name in enumerate(HASH_COLUMNS)]
    return rows.selectExpr("*", *hashes)


class Fingerprint:
    """A running sum of row hashes; ``hex()`` is 32 hex digits."""

    def __init__(self) -> None:
        self._sums = [0, 0]

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch that carries the hash columns."""
        for at, name in enumerate(HASH_COLUMNS):
            hashes = batch.column(name).to_numpy(zero_copy_only=False).view(np.uint64)
            self._sums[at] = (self._sums[at] + int(hashes.sum(dtype=np.uint64))) & _MASK

    def hex(self) -> str:
        """The 128 bits as text."""
        return f"{self._sums[0]:016x}{self._sums[1]:016x}"


def combined(fingerprints: Iterable[str]) -> str:
    """The fingerprint of all rows together."""
    sums = [0, 0]
    for text in fingerprints:
        sums[0] = (sums[0] + int(text[:16], 16)) & _MASK
        sums[1] = (sums[1] + int(text[16:], 16)) & _MASK
    return f"{sums[0]:016x}{sums[1]:016x}"
