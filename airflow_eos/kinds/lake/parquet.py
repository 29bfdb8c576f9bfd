"""How files of a lake's table are written: by tasks, and where an upsert writes one anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

HELD_BYTES = 128 * 1024 * 1024
ROW_GROUP_BYTES = 16 * 1024 * 1024
ROWS_AT_ONCE = 16_384
"""Of a file that is read to be written anew."""
_LOOKED_AT = 1000


class ParquetRows:
    """Rows for a file, of which as many are held as a row group has.

    Args:
        columns: of the file, with ids where the table has some.
        compression: of Parquet.
        order: sorts the rows of a row group; None: as they come.
        out: the open file, which its owner closes; None: it is set before rows are written.
    """

    def __init__(
        self,
        columns: pa.Schema,
        compression: str | None,
        order: Callable[[pa.Table], pa.Table] | None = None,
        out: Any = None,
    ) -> None:
        self.out = out
        self.held = 0
        self.rows = 0
        self._columns = columns
        self._compression = compression
        self._order = order
        self._rows: list[pa.RecordBatch] = []
        self._writer: pa.parquet.ParquetWriter | None = None

    def hold(self, rows: pa.RecordBatch) -> None:
        """Hold those columns of the rows that the file has."""
        part = rows.select(self._columns.names)
        self._rows.append(part)
        self.held += part.nbytes
        self.rows += part.num_rows

    def flush(self) -> None:
        """Write the held rows as one row group."""
        import pyarrow as pa

        if self._rows:
            table = pa.Table.from_batches(self._rows)
            if self._order is not None:
                table = self._order(table)
            self._writer = self._writer or self._writer_of(table)
            self._writer.write_table(table, row_group_size=max(1, len(table)))
        self._rows, self.held = [], 0

    def end(self) -> None:
        """Write all rows, and the file's end."""
        self.flush()
        self.close()

    def close(self) -> None:
        """Forget the rows that are held: the file is complete only by :meth:`end`."""
        self._rows, self.held = [], 0
        if self._writer is not None:
            self._writer.close()

    def _writer_of(self, rows: pa.Table) -> pa.parquet.ParquetWriter:
        import pyarrow.parquet as pq

        # Without Arrow's own schema an instant is read as one, not as a time in the session's zone.
        return pq.ParquetWriter(
            self.out,
            self._columns,
            compression=self._compression,
            use_dictionary=repeating(rows),
            store_schema=False,
        )


def repeating(rows: pa.Table) -> list[str] | bool:
    """Return the columns to write with a dictionary: those whose first values repeat.

    Arrow would make one of every column, and keep it where each value is in it once: more CPU, and
    a third more bytes of rows with an id and a time. Inside of columns nothing is looked at.
    """
    if any(_stored_as(field.type).num_fields for field in rows.schema):
        return True
    first = rows.slice(0, _LOOKED_AT)
    columns = zip(first.column_names, first.columns, strict=True)
    return [name for name, column in columns if _repeats(column)]


def _stored_as(kind: pa.DataType) -> pa.DataType:
    """Return the type that Parquet has, of a type that Arrow was taught."""
    import pyarrow as pa

    return _stored_as(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _repeats(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return 2 * len(pc.unique(column)) <= len(column)
    except pa.ArrowNotImplementedError:  # of a type whose values Arrow cannot compare: as it would
        return True


def pieces(batches: Iterable[pa.RecordBatch], size: int = ROW_GROUP_BYTES) -> Iterator[pa.Table]:
    """Yield the rows in tables of about so many bytes; the last one may have fewer."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        rows = max(1, size * len(batch) // max(1, batch.nbytes))
        for part in pa.Table.from_batches([batch]).to_batches(max_chunksize=rows):
            held.append(part)
            held_bytes += part.nbytes
            if held_bytes >= size:
                yield pa.Table.from_batches(held)
                held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
