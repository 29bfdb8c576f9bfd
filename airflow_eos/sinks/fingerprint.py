"""The content of a task's rows as one number that does not depend on their order.

A 64-bit hash a row is made in the JVM (``xxhash64``, Spark's ``XxHash64`` expression, chained over
the columns). On the Arrow side the hashes are summed modulo 2**64, once as they are and once mixed
(the finaliser of splitmix64): 128 bits, the same for the same multiset of rows however they are
ordered, and additive over tasks, so a whole batch can be compared even when its rows are cut into
other tasks. Two sums, since one alone is the same for {a + 1, b - 1} as for {a, b}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.columns import quoted, selected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

HASH_COLUMN = "__eos_hash"
_MASK = (1 << 64) - 1


def with_row_hashes(rows: DataFrame) -> DataFrame:
    """Add the column ``HASH_COLUMN``, over all columns of ``rows``."""
    columns = [quoted(name) for name in rows.columns]
    return rows.selectExpr("*", f"{row_hash(columns)} AS {HASH_COLUMN}")


def row_hash(columns: Sequence[str]) -> str:
    """The SQL of a row's hash over ``columns``, which are SQL as well."""
    # xxhash64 passes over a null as if the column were not there: hash the nulls as well,
    # or (null, "a") and ("a", null) would be one row.
    # Also where no null can be: a batch and a streaming query need not agree on that.
    return f"xxhash64({', '.join(f'{column}, isnull({column})' for column in columns)})"


def require_hashable(schema: StructType) -> None:
    """Refuse what Spark cannot hash.

    Raises:
        ConfigurationError: a column holds a map.
    """
    maps = [field.name for field in schema.fields if "map<" in field.dataType.simpleString()]
    if maps:
        raise ConfigurationError(
            f"Spark cannot hash the columns {', '.join(maps)}, which hold maps. Turn maps into "
            "arrays of entries (map_entries)."
        )


def own_columns(schema: StructType, row: str = "") -> list[str]:
    """All columns of ``row`` as they are; see :meth:`~airflow_eos.sinks.port.Sink.columns`.

    Raises:
        ConfigurationError: they have not names of their own, or Spark cannot hash them (maps).
    """
    names = [name.lower() for name in schema.fieldNames()]
    if HASH_COLUMN in names or len(set(names)) != len(names):
        raise ConfigurationError(
            f"Columns {schema.fieldNames()}: expected each name once, and none called "
            f"{HASH_COLUMN}."
        )
    require_hashable(schema)
    return selected(schema.fieldNames(), row)


class Fingerprint:
    """A running sum of row hashes; ``hex()`` is 32 hex digits."""

    def __init__(self) -> None:
        self._sums = [0, 0]

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch that carries the hash column."""
        hashes = batch.column(HASH_COLUMN).to_numpy(zero_copy_only=False).view(np.uint64)
        for at, words in enumerate((hashes, mixed(hashes))):
            self._sums[at] = (self._sums[at] + int(words.sum(dtype=np.uint64))) & _MASK

    def hex(self) -> str:
        """The 128 bits as text."""
        return f"{self._sums[0]:016x}{self._sums[1]:016x}"


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 for each word: every bit of it changes half of the result's.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, mix64.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
