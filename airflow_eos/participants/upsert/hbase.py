"""Upserts into a column family of HBase, through its REST server.

==========================  =====================================================================
``<table>``                 a row for each key, a cell in the family for each other column, all of
                            them with one timestamp: the version that wrote them
``<family>:_eos``           the columns that are null, as a list of JSON: their cells are empty
``airflow_eos_upserts``     a small table of ours in the same namespace, a row for each target: its
                            mark, its owner with the newest note, its last epoch, its tally
==========================  =====================================================================

The guard is HBase's own: of two cells it shows the one with the greater timestamp, whichever came
last, and equal ones are the same row. A put is one step for its row, and writes every column.

Nothing is ever deleted in HBase: a null is an empty cell, and a deleted row one of which all cells
are empty but its flag. For HBase's own delete hides older cells only until a major compaction has
removed it; a late row would then come back.

Only rows are guarded in one step. Whose the target is, is looked at before each request, of some
megabytes; what a former owner sends after that look has the older epoch, and so stays below.

Several key columns are joined by ``:`` (their own ``%`` and ``:`` as ``%25`` and ``%3A``). Values
are text as Arrow writes them, times in UTC, and binary as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError
from airflow_eos.participants.upsert.arguments import joined_keys, require_plain
from airflow_eos.participants.upsert.hbase_cells import NULLS
from airflow_eos.participants.upsert.hbase_target import HBaseTarget
from airflow_eos.participants.upsert.values import refuse_cells, refuse_times, refused

if TYPE_CHECKING:
    import pyarrow as pa

_TARGET = re.compile(r"((?:[\w.-]+:)?[\w.-]+)/([\w.-]+)", re.ASCII)
_LONGEST_KEY = 32767  # bytes
_LONGEST_CELL = (10 << 20) - (1 << 16)  # bytes; hbase.client.keyvalue.maxsize, less key and names


@dataclass(frozen=True)
class HBaseUpsert:
    """A column family of one table.

    Attributes:
        url: of HBase's REST server, such as ``http://host:8080``, or
            ``https://user:password@host/path``; a password in percent-encoding.
        target: ``table/family``, or ``namespace:table/family``.
    """

    url: str = field(repr=False)
    target: str

    def __post_init__(self) -> None:
        if _TARGET.fullmatch(self.target) is None:
            raise ConfigurationError(
                f"target {self.target!r}: expected a table and a column family of it, such as "
                "'totals/f' or 'shop:totals/f'."
            )

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse what no cell can hold; ``columns`` are names and Spark's types.

        Raises:
            ConfigurationError: which columns, and what was expected.
        """
        del key, deleted
        require_plain(columns, "HBase", ours=NULLS, which="tells which columns are null")

    def told(self) -> HBaseUpsert:
        """See :meth:`UpsertTarget.told`: a cell takes whatever is plain."""
        return self

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse keys and values that no row can hold."""
        import pyarrow as pa
        import pyarrow.compute as pc

        refuse_times(rows, "text")
        refuse_cells(rows, _LONGEST_CELL, "HBase")
        keys = joined_keys(pa.Table.from_batches([rows]), tuple(key))
        found = pc.min_max(pc.binary_length(keys)).as_py()
        if found["min"] == 0 or (found["max"] or 0) > _LONGEST_KEY:
            raise refused(
                f"A key ({', '.join(key)}) is empty or longer than {_LONGEST_KEY} bytes, which no "
                "row of HBase can have",
                "Filter such rows out, or use another key, such as a hash of it (sha2)",
            )

    def open(self, *, timeout_s: float) -> HBaseTarget:
        """Reach it; nothing is asked yet."""
        return HBaseTarget(self.url, self.target, timeout_s=timeout_s)
