"""One task's files: one for each partition that it has rows of, prepared as one work."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.files.folder import (
    KIND,
    detail,
    partition,
    prepared_name,
)
from airflow_eos.protocol.decision import TAIL_BYTES, PreparedWork, tail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_eos.kinds.files.place import DataFolder
    from airflow_eos.kinds.files.sink import FileSink

Format = Literal["parquet", "json"]

LINE_COLUMN = "__eos_line"
_DEFAULT = {"parquet": "zstd", "json": "none"}
_KNOWN = {
    "parquet": ("none", "snappy", "gzip", "brotli", "lz4", "zstd"),
    "json": ("none", "gzip", "bz2"),
}
_ENDS = {"gzip": ".gz", "bz2": ".bz2"}


class FileWriter(Protocol):
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


def opened(form: str, file: BinaryIO, compression: str, schema: pa.Schema) -> FileWriter:
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
        if not self._out.closed:  # a task may fail after it has prepared its files
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

    if not data:
        return pa.array([], pa.large_string())
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


# --- task -----------------------------------------------------------------------------------------


_HELD_BYTES = 32 * 1024 * 1024
_PARTITIONS = 1000


class FilesOfTask:
    """See :class:`~airflow_eos.delivery.port.TaskWriter`: each file is made by its first rows.

    Rows are held until there are enough for a row group of a size that readers like.

    Args:
        sink: where the rows go.
        place: of the sink's folder.
        task: of Spark.
        attempt: of the task.
        publish: makes work visible at once, where nothing is to be decided.
    """

    def __init__(
        self,
        sink: FileSink,
        place: DataFolder,
        task: int,
        attempt: int,
        *,
        publish: Callable[[PreparedWork], object] | None,
    ) -> None:
        self._sink = sink
        self._place = place
        self._key = f"{task}-{attempt}-{uuid.uuid4().hex}"
        self._publish = publish
        self._split = Split(sink.partition_by, partial(partition, sink.partition_by))
        self._files: dict[str, _Held] = {}
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Hold the rows of each partition; the largest one is written when they are too many."""
        self._opened_at_ms = self._opened_at_ms or time.time_ns() // 1_000_000
        for folder, part in self._split(rows):
            if folder not in self._files:
                self._files[folder] = self._begun(folder, part.schema)
            self._files[folder].hold(part)
        self._rows += rows.num_rows
        while sum(each.held for each in self._files.values()) > _HELD_BYTES:
            with self._place.refusing("writing files"):
                max(self._files.values(), key=lambda each: each.held).flush()

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Close the files and make them durable; readers do not see them."""
        if not self._files:
            return None
        sizes, tails = {}, {}
        for folder, each in self._files.items():
            with self._place.refusing("writing files"):
                sizes[folder], tails[folder] = each.close()
            self._place.keep(self._path(folder), each.file)
        work = PreparedWork(
            kind=KIND,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail=detail(self._end, sizes, tails),
        )
        if self._publish is None:
            return work
        self._publish(work)
        return None

    def abort(self) -> None:
        """Remove what is prepared; what readers may see by now stays."""
        with ExitStack() as undo:
            for folder, each in self._files.items():
                undo.callback(self._place.discard, self._path(folder), each.file)
                undo.callback(each.drop)

    @property
    def _end(self) -> str:
        return ending(self._sink.format, self._sink.compressed)

    def _path(self, folder: str) -> str:
        return prepared_name(folder, self._sink.name, self._key, self._end)

    def _begun(self, folder: str, schema: pa.Schema) -> _Held:
        if len(self._files) == _PARTITIONS:
            raise DeliveryError(
                f"A task has rows of more than {_PARTITIONS} partitions by "
                f"{', '.join(self._sink.partition_by)}: a file each, in every batch. Expected "
                "columns of few values, or rows put together before: "
                f"df.repartition({', '.join(map(repr, self._sink.partition_by))})."
            )
        file = self._place.create(self._path(folder))
        with self._place.refusing("writing files"):
            return _Held(file, opened(self._sink.format, file, self._sink.compressed, schema))


class _Held:
    """A file, and rows that are not yet in it."""

    def __init__(self, file: BinaryIO, data: FileWriter) -> None:
        self.file = file
        self.held = 0
        self._data = data
        self._rows: list[pa.RecordBatch] = []

    def hold(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self.held += rows.nbytes

    def flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._data.write(pa.concat_batches(self._rows))
        self._rows, self.held = [], 0

    def close(self) -> tuple[int, int]:
        """No more rows; how many bytes it has, and the sum of the last of them."""
        self.flush()
        self._data.close()
        size = os.fstat(self.file.fileno()).st_size
        last = os.pread(self.file.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return size, tail_of(last)

    def drop(self) -> None:
        self._rows, self.held = [], 0
        with suppress(OSError):  # what cannot be ended is removed all the same
            self._data.close()
