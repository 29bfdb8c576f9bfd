"""What was committed, read back: the rows as a task was given them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from airflow_eos.participants.files.layout import NO_VALUE, files_of
from airflow_eos.sinks.files.formats import LINE_COLUMN, texts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.participants.files.place import Place
    from airflow_eos.protocol.decision import PreparedWork


class _Source(Protocol):
    """Where the files are; see ``FileSink``."""

    @property
    def partition_by(self) -> Sequence[str]: ...
    def place(self) -> Place: ...


def read_back(spark: SparkSession, sink: _Source, works: Sequence[PreparedWork]) -> DataFrame:
    """The rows of ``works``, each file by a task, as the sink reaches them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    paths = [file.visible for work in works for file in files_of(work)]
    read = ReadFiles(sink)
    schema = from_arrow_schema(read.of(paths[0]).schema)
    tasks = min(len(paths), spark.sparkContext.defaultParallelism)
    listed = spark.createDataFrame([(path,) for path in paths], "path string")
    return listed.repartition(tasks).mapInArrow(read, schema)


@dataclass(frozen=True)
class ReadFiles:
    """The function that Spark runs: paths in, rows out."""

    sink: _Source

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the files that ``batches`` name."""
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from self.of(path).to_batches(max_chunksize=10_000)

    def of(self, path: str) -> pa.Table:
        """The rows of one file."""
        import pyarrow as pa

        rows = self._data(path)
        folders = path.split("/")[:-1]
        for name, folder in zip(self.sink.partition_by, folders, strict=True):
            value = unquote(folder.partition("=")[2])
            values = pa.repeat(
                pa.scalar(None if value == NO_VALUE else value, pa.string()), len(rows)
            )
            rows = rows.append_column(name, values)
        return rows

    def _data(self, path: str) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        data = self.sink.place().read(path)
        if path.endswith(".parquet"):
            return pq.ParquetFile(pa.BufferReader(data)).read()
        codec = {"gz": "gzip", "bz2": "bz2"}.get(path.rpartition(".")[2])
        raw = pa.BufferReader(data)
        text = raw.read() if codec is None else pa.CompressedInputStream(raw, codec).read()
        return pa.table({LINE_COLUMN: texts_of(text)})
