"""The files sink: a task writes one Parquet file, which the decision makes visible.

Minimal on purpose: a local disk, one folder, no partitions. Any Parquet reader can read the folder.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError
from airflow_eos.participants.files.disk import make_durable, work_folder
from airflow_eos.participants.files.participant import KIND, FilesParticipant, made
from airflow_eos.protocol.work import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.sinks.fingerprint import HASH_COLUMN, require_hashable
from airflow_eos.sinks.workers import check_workers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.sinks.port import TaskWriter

TASK_MODULES = ("pyarrow.parquet", "numpy", "msgspec", "airflow_eos.sinks.files")


@dataclass(frozen=True)
class FileSink:
    """Where rows go.

    Attributes:
        folder: an absolute path on a disk that the driver and every executor have.
        compression: of the Parquet files: none, snappy, gzip, brotli, lz4 or zstd.
        name: the participant's name in the decisions of the pipeline.
    """

    folder: str
    compression: str = "zstd"
    name: str = DEFAULT_PARTICIPANT

    def __post_init__(self) -> None:
        check_name(self.name)
        if not Path(self.folder).is_absolute():
            raise ConfigurationError(
                f"folder {self.folder!r}: expected an absolute path on a disk, the same for the "
                "driver and all executors."
            )

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=TASK_MODULES)

    def connect(self, interval: timedelta) -> FilesParticipant:
        """See :meth:`Sink.connect`; nothing can be too slow for a file."""
        del interval
        return made(Path(self.folder), self.name)

    def bound(self, store: CheckpointStore) -> FileSink:
        """See :meth:`Sink.bound`: the same for all."""
        del store
        return self

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: any that have names of their own and can be hashed.

        Raises:
            ConfigurationError: they have not, or Spark cannot hash them (maps).
        """
        names = [name.lower() for name in schema.fieldNames()]
        if HASH_COLUMN in names or len(set(names)) != len(names):
            raise ConfigurationError(
                f"Columns {schema.fieldNames()}: expected each name once, and none called "
                f"{HASH_COLUMN}."
            )
        require_hashable(schema)
        return [f"{row}`{name}` AS `{name}`" for name in schema.fieldNames()]

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """The writer of one task, in a Spark worker."""
        return _FileOfTask(self, f"{task}-{attempt}-{uuid.uuid4().hex}", transactional)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`."""
        return spark.read.parquet(*(f"{self.folder}/{work.key}.parquet" for work in works))


class _FileOfTask:
    """See :class:`~airflow_eos.sinks.port.TaskWriter`: one file, made by its first rows."""

    def __init__(self, sink: FileSink, key: str, transactional: bool) -> None:  # noqa: FBT001
        self._sink = sink
        self._key = key
        self._transactional = transactional
        self._file = work_folder(Path(sink.folder), sink.name) / key
        self._writer: pa.parquet.ParquetWriter | None = None
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Append a row group."""
        import pyarrow.parquet as pq

        if self._writer is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._opened_at_ms = time.time_ns() // 1_000_000
            self._writer = pq.ParquetWriter(
                self._file, rows.schema, compression=self._sink.compression
            )
        self._writer.write_batch(rows)
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Close the file and make it durable; readers do not see it."""
        if self._writer is None:
            return None
        self._writer.close()
        make_durable(self._file)
        work = PreparedWork(
            kind=KIND,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail={"bytes": self._file.stat().st_size},
        )
        if self._transactional:
            return work
        made(Path(self._sink.folder), self._sink.name).commit([work])
        return None

    def abort(self) -> None:
        """Remove the file."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        finally:
            self._file.unlink(missing_ok=True)
