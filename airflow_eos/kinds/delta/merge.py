"""Upserts into a Delta table: its files without the keys of a decision, and the decision's rows.

delta-rs has a ``merge``, which commits in the same call: on a disk, what it wrote is not synced by
then, and a lost race does all of it again (``notes/lake-upserts.md``). So files are read and
written here, and the commit takes them away and adds them, on the version that was read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.delta.columns import DeltaPartitions, text_of
from airflow_eos.kinds.grouping import grouped
from airflow_eos.kinds.lake.parquet import ROWS_AT_ONCE, pieces
from airflow_eos.kinds.lake.participant import DataFile, Partition
from airflow_eos.kinds.lake.upsert import (
    LakeUpsert,
    Rewriting,
    left,
    may_touch,
    touched_of,
    written,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction

    from airflow_eos.kinds.lake.files import TableFiles

_REFUSED = {
    "delta.appendOnly": "may only be appended to",
    "delta.enableChangeDataFeed": "has a change data feed, which wants files of each change",
    "delta.enableDeletionVectors": "has deletion vectors, which delta-rs cannot take away",
}
# What delta-rs escapes in a path. It looks for the text that it finds in the log, so a path that
# another writer escapes in another way would stay in the table.
_ESCAPED = re.compile(r"[\x00-\x20\"#%*<>?\[\\\]^`{|}~\x7f-\U0010ffff]")


def why_not(table: DeltaTable) -> str | None:
    """Return why rows of the table cannot be replaced; None: they can."""
    configuration = table.metadata().configuration
    for name, why in _REFUSED.items():
        if configuration.get(name, "false").lower() == "true":
            return f"it {why} ({name})"
    if "deletionVectors" in (table.protocol().reader_features or ()):
        return f"it {_REFUSED['delta.enableDeletionVectors']}"
    try:
        from deltalake.transaction import RemoveAction  # noqa: F401
    except ImportError:
        return "the installed deltalake is older than 1.6, and takes no files away"
    return None


def waiting_fields(
    rows: Sequence[Mapping[str, Any]], table: Mapping[str, Any], upsert: LakeUpsert
) -> list[Mapping[str, Any]]:
    """Return those of the rows' fields that the table is to have; a key is never null."""
    of_table = {field["name"] for field in table["fields"]}
    return [
        {**field, "nullable": field["nullable"] and field["name"] not in upsert.key}
        for field in rows
        if field["name"] != upsert.deleted or field["name"] in of_table
    ]


@dataclass(frozen=True)
class TableFile:
    """A file of the table: path within its folder, bytes, partition."""

    path: str
    size: int
    partition: Partition


def rewritten(
    table: DeltaTable, files: TableFiles, cut: DeltaPartitions, doing: Rewriting, compression: str
) -> tuple[list[DataFile], list[TableFile]]:
    """Write what a decision makes of the table, durably; return the files to add and to remove.

    Raises:
        ConfigurationError: a file has a path that delta-rs cannot take away.
        FileNotFoundError: a file of the table is gone.
    """
    import pyarrow as pa

    columns = pa.schema(table.schema().to_arrow())
    work = _Writing(files, columns, cut, compression)
    there = _candidates(table, doing.changes.keys, cut)
    added, removed = doing.of(((each.path, each) for each in there), work.new, work.without)
    for each in removed:
        _require_removable(each)
    return added, removed


def removals(files: Sequence[TableFile]) -> list[RemoveAction]:
    """Return what takes files away in a commit."""
    if not files:
        return []
    from deltalake.transaction import RemoveAction

    now_ms = time.time_ns() // 1_000_000
    return [
        RemoveAction(
            unquote(each.path), data_change=True, deletion_timestamp=now_ms, size=each.size
        )
        for each in files
    ]


def _candidates(table: DeltaTable, keys: pa.Table, cut: DeltaPartitions) -> Iterator[TableFile]:
    """Yield the files that may have rows of the keys, by their partition and statistics."""
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True))
    parts = [found[f"partition.{name}"] for name in cut.columns]
    bounds = {}
    for name, kind in zip(keys.column_names, keys.schema.types, strict=True):
        sides = (
            (f"partition.{name}",) * 2 if name in cut.columns else (f"min.{name}", f"max.{name}")
        )
        if set(sides) <= {*found.column_names} and _is_exact(kind) and "." not in name:
            bounds[name] = (found[sides[0]].cast(kind), found[sides[1]].cast(kind))
    for at in may_touch(keys, bounds, len(found)).nonzero()[0].tolist():
        values = tuple(text_of(each[at]) for each in parts)
        path = found["path"][at].as_py()
        yield TableFile(path, found["size_bytes"][at].as_py(), Partition("", values))


def _is_exact(kind: pa.DataType) -> bool:
    """Whether bounds of such a column are no closer than its values, whoever wrote them."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_string(kind))


def _require_removable(file: TableFile) -> None:
    escaped = _ESCAPED.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), unquote(file.path)
    )
    if escaped != file.path or "://" in file.path or file.path.startswith("/"):
        raise ConfigurationError(
            f"The table names a file {file.path!r}, as another writer escapes it, or outside of "
            "its folder (a shallow clone): delta-rs would not take it away, and its rows would be "
            "there twice. Nothing was dropped, and nothing is visible yet: let the other writer "
            "rewrite the table (REORG, or a copy of it), and start again."
        )


@dataclass(frozen=True)
class _Writing:
    """Files of a table that are read and written anew."""

    files: TableFiles
    columns: pa.Schema
    cut: DeltaPartitions
    compression: str

    def new(self, rows: pa.Table) -> Iterator[DataFile]:
        """Write rows, a file for each partition."""
        for batch in rows.combine_chunks().to_batches() if len(rows) else ():
            keys = self.cut.keys(batch)
            for first, part in grouped(batch, keys):
                partition = self.cut.partition([key[first] for key in keys])
                yield self._written(partition, self.cut.in_file(batch.schema), [part])

    def without(self, file: TableFile, keys: pa.Table) -> list[DataFile] | None:
        """Write a file of the table without the keys; None: it has none of them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = unquote(file.path)
        with self.files.open(path) as data:
            read = pq.ParquetFile(data, coerce_int96_timestamp_unit="us")
            of_file = [name for name in read.schema_arrow.names if name not in self.cut.columns]
            foreign = sorted({*of_file} - {*self.columns.names})
            if foreign:
                raise ConfigurationError(
                    f"The file {path} has the columns {', '.join(foreign)}, and its table has not: "
                    "written anew, it would lose them. Nothing is changed: put them back, or let "
                    "the other writer rewrite the table, and start again."
                )
            theirs = [name for name in keys.column_names if name in of_file]
            if not {*keys.column_names} <= {*of_file, *self.cut.columns}:
                return None  # older than a column of the key, which is null in it
            gone = self._touched(read, theirs, file, keys)
            if not gone.any():
                return None
            if gone.all():
                return []
            schema = pa.schema([self.columns.field(name) for name in of_file])
            partition = Partition(path[: path.rfind("/") + 1], file.partition.values)
            there = read.iter_batches(ROWS_AT_ONCE, columns=of_file)
            return [self._written(partition, schema, left(there, ~gone))]

    def _touched(
        self, read: pq.ParquetFile, theirs: list[str], file: TableFile, keys: pa.Table
    ) -> np.ndarray[Any, Any]:
        """Return whether each row of a file has one of the keys, of which it has some columns."""
        parts = pieces(read.iter_batches(ROWS_AT_ONCE, columns=theirs))
        if not theirs:  # the key is in the log alone
            parts = iter([_only_counted(read.metadata.num_rows)])
        whole = (self.cut.in_rows(part, file.partition.values) for part in parts)
        return touched_of(
            (part.select(keys.column_names).cast(keys.schema) for part in whole), keys
        )

    def _written(
        self, partition: Partition, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> DataFile:
        return written(
            self.files, "", partition, schema, batches, compression=self.compression, table={}
        )


def _only_counted(rows: int) -> pa.Table:
    """Rows of a file whose key is in the log alone."""
    import pyarrow as pa

    return pa.table({"": pa.nulls(rows)})
