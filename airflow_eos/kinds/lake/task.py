"""The task writer of sinks into Delta and Iceberg: one Parquet file a task, noted first."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.lake.files import table_files
from airflow_eos.kinds.lake.participant import DataFile, WorkNotes
from airflow_eos.kinds.texts import refuse_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.options import AppFacts

_APPLICATION = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


def check_application(application_id: str) -> None:
    """Refuse an id that cannot be the name of a folder and of a slot (ConfigurationError)."""
    if _APPLICATION.fullmatch(application_id) is None:
        raise ConfigurationError(
            f"application_id {application_id!r}: expected 1 to 100 letters, digits, underscores "
            "or hyphens."
        )


def application_of(name: str, app: AppFacts) -> dict[str, str]:
    """Return the default ``application_id``: the name of the output in a table's log."""
    return {"application_id": f"{app.prefix}-{name}"}


@dataclass(frozen=True)
class TaskFileSpec:
    """How a task's file is written: its folder, compression and columns.

    Attributes:
        kind: of the participant.
        name: of the participant.
        location: the table's folder, a path or URL.
        data: what the path of a data file in it begins with: empty, or a folder and a slash.
        known: a folder of the table, which is there wherever the table's disk is; empty: its own.
        compression: of Parquet.
        spared_ms: how long the table's cleaner spares a file that the log does not name.
        storage_options: of a bucket.
        columns: returns the file's columns for those of the rows, with the table's ids for them.
    """

    kind: str
    name: str
    location: str
    data: str
    known: str
    compression: str
    spared_ms: int
    columns: Callable[[pa.Schema], pa.Schema] = lambda rows: rows
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)


class ParquetOfTask:
    """See :class:`~airflow_eos.core.delivery.port.TaskWriter`: one file, made by its first rows.

    Args:
        what: how the file is written.
        task: the number of Spark's task.
        attempt: of the task.
        store: the checkpoint, where the file is noted; None where nothing is to be decided.
        publish: makes a file visible at once, where nothing is to be decided.
    """

    def __init__(
        self,
        what: TaskFileSpec,
        task: int,
        attempt: int,
        *,
        store: CheckpointStore | None,
        publish: Callable[[DataFile], None],
    ) -> None:
        self._what = what
        self._key = f"{task}-{attempt}-{uuid.uuid4().hex}"
        self._path = f"{what.data}{self._key}.parquet"
        self._files = table_files(what.location, what.storage_options)
        self._file: Any = None
        self._notes = None if store is None else WorkNotes(store, what.name)
        self._publish = publish
        self._writer: pa.parquet.ParquetWriter | None = None
        self._may_be_named = False
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Append a row group; the first row group makes the note, then the file.

        Raises:
            DeliveryError: a text that is no UTF-8.
            StoreError: the disk or the store refuses.
        """
        refuse_texts(rows, "a reader of Parquet files")
        with self._refusing():
            if self._writer is None:
                self._writer = self._begun(rows.schema)
            self._writer.write_batch(rows)
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Close the file and make it durable; the table does not name it yet.

        Raises:
            DeliveryError: the work was aborted meanwhile; nothing of it is left.
            StoreError: the disk refuses.
        """
        if self._writer is None:
            return None
        with self._refusing():
            self._writer.close()
            found = self._files.keep(self._path, self._file)
        failpoint("task-filed")
        if self._notes is None:
            self._may_be_named = True
            self._publish(DataFile(self._path, found.size, self._rows, found.modified_at_ms))
            return None
        if not self._notes.has(self._key):
            raise self._aborted()
        return PreparedWork(
            kind=self._what.kind,
            participant=self._what.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=self._what.spared_ms,
            detail={"bytes": found.size, "tail": found.tail},
        )

    def abort(self) -> None:
        """Remove the file, then its note; but no file that the table may name.

        Without such a file readers would fail for ever; if unnamed, the table's cleaner removes it.
        """
        if self._may_be_named:
            return
        with contextlib.suppress(OSError):  # a file that cannot be closed is removed all the same
            if self._writer is not None:
                self._writer.close()
        if self._opened_at_ms:
            self._files.drop(self._path, self._file)
            if self._notes is not None:
                self._notes.forget([self._key])

    def _aborted(self) -> DeliveryError:
        return DeliveryError(
            f"{self._path} was aborted while it was written: another attempt took over. "
            "Nothing of it is visible, and nothing is lost."
        )

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        with self._files.refusing("writing the file of a task"):
            try:
                yield
            except FileNotFoundError as error:  # on a disk
                if self._notes is None or self._notes.has(self._key):
                    raise
                raise self._aborted() from error

    def _begun(self, schema: pa.Schema) -> pa.parquet.ParquetWriter:
        import pyarrow.parquet as pq

        self._files.require(self._what.known)
        self._opened_at_ms = time.time_ns() // 1_000_000
        if self._notes is not None:
            self._notes.write(self._key, f"{self._files.address}/{self._path}")
        failpoint("task-noted")
        self._file = self._files.begin(self._path)
        # Without Arrow's own schema an instant is read as one, not as a time in the session's zone.
        return pq.ParquetWriter(
            self._file,
            self._what.columns(schema),
            compression=self._what.compression,
            store_schema=False,
        )


def read_files(
    spark: SparkSession,
    location: str,
    paths: Sequence[str],
    storage_options: Mapping[str, str] | None,
) -> DataFrame:
    """Read the rows of data files back in Spark tasks: compacting a table leaves its old files."""
    from pyspark.sql.pandas.types import from_arrow_schema

    read = _ReadFiles(location, storage_options)
    schema = from_arrow_schema(read.of(paths[0]).schema, prefer_timestamp_ntz=True)
    wanted = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = min(len(paths), spark.sparkContext.defaultParallelism)
    return wanted.repartition(tasks).mapInArrow(read, schema)


@dataclass(frozen=True)
class _ReadFiles:
    """The function that Spark runs in tasks: paths in, their rows out."""

    location: str
    storage_options: Mapping[str, str] | None = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from self.of(path).to_batches(max_chunksize=10_000)

    def of(self, path: str) -> pa.Table:
        """Read one file, without the ids of its columns."""
        import pyarrow.parquet as pq

        with table_files(self.location, self.storage_options).open(path) as data:
            return pq.read_table(data)
