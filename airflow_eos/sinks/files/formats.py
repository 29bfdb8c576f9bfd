"""Rows in Arrow as a Parquet file, or as lines of JSON that Spark has made."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

Format = Literal["parquet", "json"]

LINE_COLUMN = "__eos_line"
_DEFAULT = {"parquet": "zstd", "json": "none"}
_KNOWN = {
    "parquet": ("none", "snappy", "gzip", "brotli", "lz4", "zstd"),
    "json": ("none", "gzip", "bz2"),
}
_ENDS = {"gzip": ".gz", "bz2": ".bz2"}


class DataFile(Protocol):
    """One file that is being written, by one task."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows."""

    def close(self) -> None:
        """No more rows; the file is whole, and not yet durable."""


def checked_compression(form: str, compression: str | None) -> str:
    """The compression of a format: the one that was asked for, or the usual one.

    Raises:
        ConfigurationError: there is no such format, or it cannot be compressed so.
    """
    if form not in _KNOWN:
        raise ConfigurationError(f"format {form!r}: expected {' or '.join(_KNOWN)}.")
    chosen = compression or _DEFAULT[form]
    if chosen not in _KNOWN[form]:
        raise ConfigurationError(
            f"compression {compression!r} of {form} files: expected {', '.join(_KNOWN[form])}."
        )
    return chosen


def ending(form: str, compression: str) -> str:
    """How the names of such files end: readers tell the compression of text by it."""
    return form + (_ENDS.get(compression, "") if form == "json" else "")


def opened(form: str, file: BinaryIO, compression: str, schema: pa.Schema) -> DataFile:
    """Write rows of ``schema`` into an empty file, which stays open when they are all written."""
    out = os.fdopen(os.dup(file.fileno()), "wb")  # the libraries close what they write into
    if form == "parquet":
        return _ParquetFile(out, compression, schema)
    return _LinesFile(out, compression)


class _ParquetFile:
    """Each write is a row group."""

    def __init__(self, out: BinaryIO, compression: str, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        # Without Arrow's own schema: an instant is one then, and not one of a session's zone.
        self._writer = pq.ParquetWriter(out, schema, compression=compression, store_schema=False)
        self._out = out

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        with self._out:
            self._writer.close()


class _LinesFile:
    """Each row is a text already; its line is made of whole columns."""

    def __init__(self, out: BinaryIO, compression: str) -> None:
        import pyarrow as pa

        self._open = ExitStack()
        self._open.enter_context(out)
        self._out = self._open.enter_context(pa.PythonFile(out, "w"))
        if compression != "none":
            self._out = self._open.enter_context(pa.CompressedOutputStream(self._out, compression))

    def write(self, rows: pa.RecordBatch) -> None:
        self._out.write(lines(rows.column(LINE_COLUMN)))

    def close(self) -> None:
        self._open.close()


def lines(texts: pa.Array) -> pa.Buffer:
    """Each text, and the end of its line."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    end, between = (pa.scalar(each, pa.large_string()) for each in ("\n", ""))
    whole = pc.binary_join_element_wise(texts.cast(pa.large_string()), end, between)
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)
    return data.slice(0, int(ends[len(whole)])) if len(whole) else pa.py_buffer(b"")


def texts_of(data: bytes) -> pa.Array:
    """The texts of a file of lines."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.array([data.removesuffix(b"\n").decode()], pa.large_string())
    return pc.split_pattern(whole, "\n").flatten()


class Split:
    """Rows by their partition, and without its columns.

    Args:
        columns: of the partition; in rows they are texts, null where there is none.
        folder_of: gives the folder of their values.
    """

    def __init__(
        self, columns: Sequence[str], folder_of: Callable[[Sequence[str | None]], str]
    ) -> None:
        self._columns = tuple(columns)
        self._folder_of = folder_of

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """(folder, rows in their order) for each partition; it counts partitions, not rows."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._columns:
            return [("", rows)]
        codes, most = np.zeros(rows.num_rows, dtype=np.int64), 1
        columns = [rows.column(name).cast(pa.large_string()) for name in self._columns]
        for column in columns:
            coded = pc.dictionary_encode(column, null_encoding="encode")
            if most * len(coded.dictionary) > np.iinfo(np.int64).max:
                codes, most = np.unique(codes, return_inverse=True)[1], rows.num_rows
            codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
            most *= len(coded.dictionary)
        data = rows.drop_columns(list(self._columns))
        order = np.argsort(codes, kind="stable")
        _, starts = np.unique(codes[order], return_index=True)
        ends = [*starts[1:], rows.num_rows]
        return [
            (
                self._folder_of([column[int(order[start])].as_py() for column in columns]),
                data.take(pa.array(order[start:end])),
            )
            for start, end in zip(starts, ends, strict=True)
        ]
