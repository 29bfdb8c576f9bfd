"""The task writer of sinks into Delta and Iceberg: a Parquet file a partition, noted first."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_eos.core.checkpoint.data_folder import at_once
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import PreparedWork, is_formed
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.grouping import grouped
from airflow_eos.kinds.lake.files import table_files
from airflow_eos.kinds.lake.parquet import HELD_BYTES, ROW_GROUP_BYTES, ParquetRows
from airflow_eos.kinds.lake.participant import (
    WHOLE,
    DataFile,
    Partition,
    WorkNotes,
    detail_of,
    name_in,
)
from airflow_eos.kinds.texts import refuse_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.options import AppFacts

_APPLICATION = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")


def check_application(application_id: str) -> None:
    """Refuse an id that cannot be the name of a folder and of a slot (ConfigurationError)."""
    if not is_formed(application_id, _APPLICATION):
        raise ConfigurationError(
            f"application_id {application_id!r}: expected 1 to 100 letters, digits, underscores "
            "or hyphens."
        )


def check_compression(compression: str | None) -> None:
    """Refuse what no Parquet file is compressed with, before a task does (ConfigurationError).

    As Parquet's writer: None is none, and capitals do not matter.
    """
    if str(compression or "none").lower() not in _COMPRESSIONS:
        raise ConfigurationError(
            f"compression {compression!r}: expected {', '.join(_COMPRESSIONS)}."
        )


def application_of(name: str, app: AppFacts) -> dict[str, str]:
    """Return the default ``application_id``: the name of the output in a table's log."""
    return {"application_id": f"{app.prefix}-{name}"}


class Partitioning(Protocol):
    """How a table cuts its rows into partitions: a value that is pickled into every task."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that rows are cut by, for people; none where the table has no partitions."""
        ...

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """Return an array for each part of the partition's key: a value for each row."""
        ...

    def partition(self, values: Sequence[pa.Scalar]) -> Partition:
        """Return the partition of a key."""
        ...


class Unpartitioned:
    """See :class:`Partitioning`: all rows are in one."""

    columns: Sequence[str] = ()

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """See :meth:`Partitioning.keys`."""
        del rows
        return ()

    def partition(self, values: Sequence[pa.Scalar]) -> Partition:
        """See :meth:`Partitioning.partition`."""
        del values
        return WHOLE


UNPARTITIONED = Unpartitioned()
OPEN_AT_MOST = 100
"""The most partitions that a task writes, a file of its own each."""
_FILE_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class TaskFileSpec:
    """How a task's files are written: their folder, compression, columns, partitions and order.

    Attributes:
        kind: of the participant.
        name: of the participant.
        location: the table's folder, a path or URL.
        data: what the path of a data file in it begins with: empty, or a folder and a slash.
        known: a folder of the table, which is there wherever the table's disk is; empty: its own.
        compression: of Parquet.
        spared_ms: how long the table's cleaner spares a file that the log does not name.
        columns: returns a file's columns for those of the rows, with the table's ids for them; a
            column that it leaves out is not written.
        partitions: cuts the rows.
        order: sorts the rows of a file, which then has no more than are held; None: as they come.
        file_bytes: the size at which a file is ended, and a next one of its partition begun.
        table: what the decision has to say of the table as it was, for the commit; JSON.
        storage_options: of a bucket.
    """

    kind: str
    name: str
    location: str
    data: str
    known: str
    compression: str | None
    spared_ms: int
    columns: Callable[[pa.Schema], pa.Schema] = lambda rows: rows
    partitions: Partitioning = UNPARTITIONED
    order: Callable[[pa.Table], pa.Table] | None = None
    file_bytes: int = _FILE_BYTES
    table: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)


class ParquetOfTask:
    """See :class:`~airflow_eos.core.delivery.port.TaskWriter`: a file for each partition.

    A note names the files before their first byte. Rows are held until there are enough of a file
    for a row group that readers like.

    Args:
        what: how the files are written.
        task: the number of Spark's task.
        task_attempt: of the task.
        store: the checkpoint, where the files are noted; None where nothing is to be decided.
        publish: makes files visible at once, where nothing is to be decided.
    """

    def __init__(
        self,
        what: TaskFileSpec,
        task: int,
        task_attempt: int,
        *,
        store: CheckpointStore | None,
        publish: Callable[[Sequence[DataFile]], None],
    ) -> None:
        self._what = what
        self._key = f"{task}-{task_attempt}-{uuid.uuid4().hex}"
        self._files = table_files(what.location, what.storage_options)
        self._notes = None if store is None else WorkNotes(store, what.name)
        self._publish = publish
        self._written: list[_PartitionFile] = []
        self._open: dict[Partition, _PartitionFile] = {}
        self._may_be_named = False
        self._rows = 0
        self._columns: pa.Schema | None = None
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Hold rows by partition; their files are noted and begun. Write the largest, if too many.

        Raises:
            DeliveryError: a text that is no UTF-8, or rows of too many partitions.
            StoreError: the disk or the store refuses.
        """
        refuse_texts(rows, "a reader of Parquet files")
        cut = self._what.partitions
        keys = cut.keys(rows)
        parts = [
            (cut.partition([key[first] for key in keys]), part)
            for first, part in grouped(rows, keys)
        ]
        with self._refusing():
            self._begin([part for part, _ in parts], rows.schema)
            for partition, part in parts:
                self._open[partition].hold(part)
            self._make_room()
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Close the files and make them durable; the table does not name them yet.

        Raises:
            DeliveryError: the work was aborted meanwhile; nothing of it is left.
            StoreError: the disk refuses.
        """
        if not self._written:
            return None
        with self._refusing():
            for file in self._open.values():
                file.end()
            kept = self._kept()
        failpoint("task-filed")
        if self._notes is None:
            self._may_be_named = True
            self._publish(kept)
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
            detail=detail_of(kept, self._what.table),
        )

    def abort(self) -> None:
        """Remove the files, then their note; but no file that the table may name.

        Without such a file readers would fail for ever; if unnamed, the table's cleaner removes it.
        """
        if self._may_be_named:
            return
        with ExitStack() as undo:
            if self._notes is not None and self._opened_at_ms:
                undo.callback(self._notes.forget, [self._key])
            for file in self._written:
                undo.callback(self._files.drop, file.path, file.out)
                undo.callback(file.drop)

    def _begin(self, partitions: Sequence[Partition], schema: pa.Schema) -> None:
        """Note the files of new partitions in one note, then begin them."""
        new = [each for each in dict.fromkeys(partitions) if each not in self._open]
        if len(self._open) + len(new) > OPEN_AT_MOST:
            raise self._too_many()
        if not new:
            return
        self._files.require(self._what.known)
        if self._notes is not None and self._written and not self._notes.has(self._key):
            raise self._aborted()
        self._opened_at_ms = self._opened_at_ms or time.time_ns() // 1_000_000
        self._columns = self._columns or self._what.columns(schema)  # one of all rows of a task
        begun: list[_PartitionFile] = []
        for partition in new:
            name = name_in(partition, self._key, len(self._written) + len(begun))
            path = f"{self._what.data}{name}"
            begun.append(_PartitionFile(path, partition, self._what, self._columns))
        if self._notes is not None:
            told = [f"{self._files.address}/{file.path}" for file in (*self._written, *begun)]
            self._notes.write(self._key, told)
        failpoint("task-noted")
        for file in begun:
            self._written.append(file)
            file.out = self._files.begin(file.path)
            self._open[file.partition] = file

    def _make_room(self) -> None:
        """Write what is enough for a row group, and of too many small ones the largest.

        A file whose rows are sorted is ended with them, and one that is large enough.
        """
        sorts = self._what.order is not None
        held = sum(file.held for file in self._open.values())
        for file in sorted(self._open.values(), key=lambda each: -each.held):
            if held <= HELD_BYTES and (sorts or file.held < ROW_GROUP_BYTES):
                return
            held -= file.held
            file.flush()
            if sorts or file.out.tell() >= self._what.file_bytes:
                file.end()
                del self._open[file.partition]

    def _kept(self) -> list[DataFile]:
        def keep(file: _PartitionFile) -> DataFile:
            found = self._files.keep(file.path, file.out)
            return DataFile(
                file.path,
                found.size,
                file.rows,
                found.modified_at_ms,
                found.tail,
                file.partition,
                self._what.table,
            )

        return at_once(keep, self._written)

    def _too_many(self) -> DeliveryError:
        by = ", ".join(self._what.partitions.columns)
        return DeliveryError(
            f"A task has rows of more than {OPEN_AT_MOST} partitions by {by}: a file each, in "
            "every batch. Nothing is promised. Let Spark put rows of one partition together: "
            f"distribute='hash' on the sink, or df.repartition(…) by {by} before."
        )

    def _aborted(self) -> DeliveryError:
        return DeliveryError(
            f"{self._written[0].path} was aborted while it was written: another attempt took "
            "over. Nothing of it is visible, and nothing is lost."
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


class _PartitionFile(ParquetRows):
    """A file of a task, and rows that are not written to it yet."""

    def __init__(
        self, path: str, partition: Partition, what: TaskFileSpec, columns: pa.Schema
    ) -> None:
        super().__init__(columns, what.compression, what.order)
        self.path = path
        self.partition = partition

    def drop(self) -> None:
        """Forget the rows; a file that cannot be closed is removed all the same."""
        with contextlib.suppress(OSError):
            self.close()


def read_files(
    spark: SparkSession,
    location: str,
    paths: Sequence[str],
    storage_options: Mapping[str, str] | None,
    whole: Callable[[str, pa.Table], pa.Table] = lambda _path, rows: rows,
) -> DataFrame:
    """Read the rows of data files back in Spark tasks: compacting a table leaves its old files.

    ``whole`` returns the rows of the file at a path with what the file itself has not.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    read = _ReadFiles(location, storage_options, whole)
    schema = from_arrow_schema(read.of(paths[0]).schema, prefer_timestamp_ntz=True)
    wanted = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = min(len(paths), spark.sparkContext.defaultParallelism)
    return wanted.repartition(tasks).mapInArrow(read, schema)


@dataclass(frozen=True)
class _ReadFiles:
    """The function that Spark runs in tasks: paths in, their rows out."""

    location: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    whole: Callable[[str, pa.Table], pa.Table]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from self.of(path).to_batches(max_chunksize=10_000)

    def of(self, path: str) -> pa.Table:
        """Read one file, without the ids of its columns."""
        import pyarrow.parquet as pq

        with table_files(self.location, self.storage_options).open(path) as data:
            return self.whole(path, pq.read_table(data))
