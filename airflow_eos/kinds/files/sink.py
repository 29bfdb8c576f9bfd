"""The files sink: a task writes data files, which become visible once they are decided."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal
from urllib.parse import unquote

import msgspec

from airflow_eos.core.arguments import ColumnNames, PlaceName, take_fields
from airflow_eos.core.checkpoint.hdfs import modules_for
from airflow_eos.core.checkpoint.locations import as_local_path, require_outside
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.delivery.options import AppFacts, SinkOptions
from airflow_eos.core.delivery.port import bound_store
from airflow_eos.core.delivery.spill import running_stamp
from airflow_eos.core.delivery.task import HASH_COLUMN, quoted, require_hashable, selected
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import (
    DEFAULT_PARTICIPANT,
    Outcome,
    PreparedWork,
    check_name,
)
from airflow_eos.errors import ConfigurationError, DeliveryError, TransactionError
from airflow_eos.kinds.files import manifest, participant
from airflow_eos.kinds.files.folder import (
    KIND,
    NO_VALUE,
    detail,
    escape,
    files_of,
    partition,
    prepared_name,
)
from airflow_eos.kinds.files.manifest import ManifestParticipant
from airflow_eos.kinds.files.participant import FilesParticipant
from airflow_eos.kinds.files.storage import StagedFolder
from airflow_eos.kinds.grouping import grouped
from airflow_eos.kinds.texts import refuse_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.delivery.port import TaskWriter

# --- task -----------------------------------------------------------------------------------------
# The files of one task: one for each partition that it has rows of, prepared as one work.


Format = Literal["parquet", "json"]

LINE_COLUMN = "__eos_line"
_DEFAULT = {"parquet": "zstd", "json": "none"}
_KNOWN = {
    "parquet": ("none", "snappy", "gzip", "brotli", "lz4", "zstd"),
    "json": ("none", "gzip", "bz2"),
}
_ENDS = {"gzip": ".gz", "bz2": ".bz2"}


def checked_compression(form: str, compression: str | None) -> str:
    """Return the compression of files: ``compression``, or the default of the format.

    Raises:
        ConfigurationError: the format has no such compression.
    """
    chosen = compression or _DEFAULT[form]
    if chosen not in _KNOWN[form]:
        raise ConfigurationError(
            f"compression {compression!r} of {form} files: expected {', '.join(_KNOWN[form])}."
        )
    return chosen


def ending(form: str, compression: str) -> str:
    """Return the ending of file names, by which readers tell the compression of text."""
    return form + (_ENDS.get(compression, "") if form == "json" else "")


def file_writer(
    form: str, file: BinaryIO, compression: str, schema: pa.Schema
) -> _ParquetFile | _LinesFile:
    """Return a writer of rows of ``schema`` into an empty file, which stays open afterwards."""
    if form == "parquet":
        return _ParquetFile(file, compression, schema)
    return _LinesFile(file, compression)


class _ParquetFile:
    """A Parquet file; each write is a row group."""

    def __init__(self, file: BinaryIO, compression: str, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        # Without Arrow's own schema an instant is read as one, not as a time in a session's zone.
        self._writer = pq.ParquetWriter(file, schema, compression=compression, store_schema=False)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        self._writer.close()


class _LinesFile:
    """A file of lines; each row is a text already, and lines are made by whole columns."""

    def __init__(self, file: BinaryIO, compression: str) -> None:
        import pyarrow as pa

        self._open = ExitStack()
        self._out: Any = file
        if compression != "none":
            kept = pa.PythonFile(_StaysOpen(file), "w")
            self._out = self._open.enter_context(pa.CompressedOutputStream(kept, compression))

    def write(self, rows: pa.RecordBatch) -> None:
        self._out.write(lines(rows.column(LINE_COLUMN)))

    def close(self) -> None:
        self._open.close()


class _StaysOpen:
    """A file that a compressor does not close with its own end."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        self.flush()


def lines(texts: pa.Array) -> pa.Buffer:
    """Return the bytes of a file with each text as a line."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    end, between = (pa.scalar(each, pa.large_string()) for each in ("\n", ""))
    whole = pc.binary_join_element_wise(texts.cast(pa.large_string()), end, between)
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)
    return data.slice(0, int(ends[len(whole)])) if len(whole) else pa.py_buffer(b"")


def texts_of(data: bytes) -> pa.Array:
    """Return the texts of a file of lines."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not data:
        return pa.array([], pa.large_string())
    whole = pa.array([data.removesuffix(b"\n").decode()], pa.large_string())
    return pc.split_pattern(whole, "\n").flatten()


class Split:
    """A function that splits rows by partition, and drops the partition's columns.

    Args:
        columns: of the partition; in rows they are texts, null for no value.
        folder_of: returns the folder of a partition's values.
    """

    def __init__(
        self, columns: Sequence[str], folder_of: Callable[[Sequence[str | None]], str]
    ) -> None:
        self._columns = tuple(columns)
        self._folder_of = folder_of

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """Return (folder, rows in their order) for each partition; loops over partitions only."""
        import pyarrow as pa

        columns = [rows.column(name).cast(pa.large_string()) for name in self._columns]
        data = rows.drop_columns(list(self._columns))
        return [
            (self._folder_of([column[first].as_py() for column in columns]), part)
            for first, part in grouped(data, columns)
        ]


# --- writing --------------------------------------------------------------------------------------


_HELD_BYTES = 32 * 1024 * 1024
_PARTITIONS = 1000


class FilesOfTask:
    """See :class:`~airflow_eos.core.delivery.port.TaskWriter`: each file is made by its first rows.

    Rows are held until there are enough for a row group of a size that readers like.

    Args:
        sink: where the rows go.
        storage: the sink's folder.
        task: the number of Spark's task.
        task_attempt: of the task.
        publish: makes work visible at once, where nothing is to be decided.
    """

    def __init__(
        self,
        sink: FileSink,
        storage: StagedFolder,
        task: int,
        task_attempt: int,
        *,
        publish: Callable[[PreparedWork], object] | None,
    ) -> None:
        self._sink = sink
        self._storage = storage
        stamp = running_stamp()  # a reader tells by it whether a cut has the file
        self._key = (
            f"{'' if stamp is None else f'{stamp}-'}{task}-{task_attempt}-{uuid.uuid4().hex}"
        )
        self._publish = publish
        self._split = Split(sink.partition_by, partial(partition, sink.partition_by))
        self._files: dict[str, _Held] = {}
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Hold rows by partition; where they are too many, write the largest partition's.

        Raises:
            DeliveryError: a text that is no UTF-8.
            StoreError: the disk or the store refuses.
        """
        refuse_texts(rows, f"a reader of {self._sink.format} files")
        self._opened_at_ms = self._opened_at_ms or time.time_ns() // 1_000_000
        for folder, part in self._split(rows):
            if folder not in self._files:
                self._files[folder] = self._begun(folder, part.schema)
            self._files[folder].hold(part)
        self._rows += rows.num_rows
        while sum(each.held for each in self._files.values()) > _HELD_BYTES:
            with self._storage.refusing("writing files"):
                max(self._files.values(), key=lambda each: each.held).flush()

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Close the files and make them durable; readers do not see them yet."""
        if not self._files:
            return None
        sizes, tails = {}, {}
        for folder, each in self._files.items():
            with self._storage.refusing("writing files"):
                each.close()
                sizes[folder], tails[folder] = self._storage.keep(self._path(folder), each.file)
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
        """Remove prepared files; files that readers may see by now stay."""
        with ExitStack() as undo:
            for folder, each in self._files.items():
                undo.callback(self._storage.drop, self._path(folder), each.file)
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
        file = self._storage.begin(self._path(folder))
        with self._storage.refusing("writing files"):
            return _Held(file, file_writer(self._sink.format, file, self._sink.compressed, schema))


class _Held:
    """A file of a task, and rows that are not written to it yet."""

    def __init__(self, file: BinaryIO, data: _ParquetFile | _LinesFile) -> None:
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

    def close(self) -> None:
        """Write all rows and the file's end."""
        self.flush()
        self._data.close()

    def drop(self) -> None:
        self._rows, self.held = [], 0
        with suppress(OSError):  # a file that cannot be closed is removed all the same
            self._data.close()


# --- sink -----------------------------------------------------------------------------------------


TASK_MODULES = ("pyarrow.parquet", "numpy", "msgspec", "airflow_eos.kinds.files.sink")
_INTERVAL = re.compile(r"\binterval (year|month|day|hour|minute|second)\b")
# Spark's default formats are in the session's zone, and cut microseconds.
_LOCAL = "concat('yyyy-MM-dd', chr(39), 'T', chr(39), 'HH:mm:ss.SSSSSS')"
_INSTANTS = (
    f"map('timeZone', 'UTC', 'timestampNTZFormat', {_LOCAL}, "
    f"'timestampFormat', concat({_LOCAL}, 'XXX'))"
)


@dataclass(frozen=True)
class FileSink:
    """The file sink: folder and settings.

    Attributes:
        folder: an absolute path on a disk that the driver and every executor have, or a URL of a
            bucket or of HDFS. Undecided files are kept beside it, in ``_eos.<its name>``: its
            readers see decided rows alone.
        format: ``parquet``, or ``json``: a line for each row, as Spark's own writer makes them, but
            with instants in UTC and to the microsecond.
        partition_by: columns whose values are folders (``day=2026-11-23/…``, as Spark names
            them); the files leave them out. Nulls and empty texts are one folder.
        compression: Parquet: none, snappy, gzip, brotli, lz4 or zstd, which is the default; JSON:
            none, the default, gzip or bz2.
        publish: ``listing``: each file becomes visible by itself, to any reader of the folder.
            ``manifest``: a whole batch at once, to readers that read by Spark's own log in the
            folder (``_spark_metadata``); others list its files, and may see a part of a batch.
        storage_options: of a bucket or HDFS, as the checkpoint's; without them the environment
            decides.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
    """

    folder: PlaceName
    format: Format = "parquet"
    partition_by: Annotated[Sequence[str], ColumnNames(none=True, alone=True)] = ()
    compression: str | None = None
    name: str = DEFAULT_PARTICIPANT
    publish: Literal["listing", "manifest"] = "listing"
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        checked_compression(self.format, self.compression)
        hidden = [name for name in self.partition_by if name[0] in "_."]
        if hidden or len({name.lower() for name in self.partition_by}) != len(self.partition_by):
            raise ConfigurationError(
                f"partition_by {list(self.partition_by)}: expected each column once, and none that "
                "begins with '_' or '.': readers pass over such folders."
            )
        if as_local_path(self.folder) is not None and not self.folder.startswith(("/", "file:/")):
            raise ConfigurationError(
                f"folder {self.folder!r}: expected an absolute path on a disk, the same for the "
                "driver and all executors."
            )

    @property
    def compressed(self) -> str:
        """The compression of the files."""
        return checked_compression(self.format, self.compression)

    def storage(self) -> StagedFolder:
        """Return the storage of the folder, as this process reaches it."""
        return StagedFolder(self.folder, self.storage_options)

    @property
    def written_folder(self) -> str:
        """Where rows go; see ``core/delivery/own_output.py``."""
        return self.folder

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`; also create the folder, and the log of whole batches."""
        check_workers(spark, modules=(*TASK_MODULES, *modules_for(self.folder)))
        storage = self.storage()
        if storage.store.is_on_a_disk:  # if not exactly once, nothing else creates the folder
            storage.check(self.name)
        if self.publish == "manifest":
            self._joined(storage)

    def connect(self, interval: timedelta) -> FilesParticipant | ManifestParticipant:
        """See :meth:`Sink.connect`; no interval is refused, since prepared files do not expire."""
        del interval
        storage = self.storage()
        storage.check(self.name)
        return self._joined(storage)

    def bound(self, store: CheckpointStore) -> FileSink:
        """See :meth:`Sink.bound`: a manifest sink settles whole decisions of that checkpoint.

        Raises:
            ConfigurationError: the checkpoint is in the folder, where some readers see all.
        """
        require_outside(store.location, self.folder, hidden=False)
        return replace(self, store=store) if self.publish == "manifest" else self

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: any columns that have distinct names and can be hashed.

        The partition's columns become texts, as Spark names folders. For JSON, Spark makes the
        line of a row here.

        Raises:
            ConfigurationError: names repeat, or Spark cannot hash a column (maps in Parquet), or a
                column of ``partition_by`` is missing or cannot be a folder's name.
        """
        self._check_names(schema.fieldNames())
        self._check_partition(schema)
        data = [name for name in schema.fieldNames() if name not in self.partition_by]
        if self.format == "json":
            fields = ", ".join(selected(data, row))
            line = _unless_no_text(schema, data, row, f"to_json(struct({fields}), {_INSTANTS})")
            chosen = [f"{line} AS `{LINE_COLUMN}`"]
        else:
            require_hashable(schema)
            _refuse_intervals(schema)
            _refuse_empty_structs(schema)
            chosen = selected(data, row)
        folders = [
            f"nullif(CAST({quoted(name, row)} AS STRING), '') AS {quoted(name)}"
            for name in self.partition_by
        ]
        return [*chosen, *folders]

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        publish = None if transactional else self._publish
        return FilesOfTask(self, self.storage(), task, task_attempt, publish=publish)

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Return why rows would go into other partitions than this work did; empty: they do not.

        Readers take a column's type from the names of its folders.
        """
        del columns
        ours = "/".join(escape(name) for name in self.partition_by)
        went = {
            "/".join(part.partition("=")[0] for part in folder.split("/"))
            for work in works
            for folder in work.detail["partitions"]
        }
        if went <= {ours}:
            return ""
        before, after = " or ".join(sorted(went)) or "nothing", ours or "nothing"
        return f"files are partitioned by {before}, and would be by {after}"

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`."""
        return read_back(spark, self, works)

    def _publish(self, work: PreparedWork) -> None:
        files = self._joined(self.storage())
        if isinstance(files, ManifestParticipant):
            files.add(work)
            return
        became = files.commit([work])[work.identity]
        if became is not Outcome.COMMITTED:
            raise DeliveryError(
                f"Work {work.key} was not published in {self.folder}: it is {became.value}, "
                "expected committed. Somebody removed its prepared files; the task writes its rows "
                "again where the guarantee allows it."
            )

    def _joined(self, storage: StagedFolder) -> FilesParticipant | ManifestParticipant:
        if self.publish == "listing":
            return participant.joined(storage, self.name)
        return manifest.joined(storage, self.name, bound_store(self.store, KIND))

    def _check_names(self, names: list[str]) -> None:
        lowered = [name.lower() for name in names]
        ours = {HASH_COLUMN, LINE_COLUMN}
        if ours.intersection(lowered) or len(set(lowered)) != len(lowered):
            raise ConfigurationError(
                f"Columns {names}: expected each name once, and none called "
                f"{' or '.join(sorted(ours))}."
            )

    def _check_partition(self, schema: StructType) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        missing = [name for name in self.partition_by if name not in kinds]
        nested = [
            name
            for name in self.partition_by
            if kinds.get(name, "").startswith(("array", "map", "struct", "binary"))
        ]
        if missing or nested or len(self.partition_by) == len(kinds):
            raise ConfigurationError(
                f"partition_by {list(self.partition_by)} of columns {kinds}: expected some of "
                "these columns, not all, and none that is nested or binary."
            )


def _unless_no_text(schema: StructType, data: Sequence[str], row: str, line: str) -> str:
    """Return the expression of a row's ``line``, or of bytes that a task refuses as no text.

    Spark's ``to_json`` replaces what is no UTF-8 in silence; a cast to a text keeps each byte, at
    any depth. What holds binary values, of any bytes, cannot be told.
    """
    kinds = {each.name: each.dataType.simpleString() for each in schema.fields}
    texts = [n for n in data if "string" in kinds[n] and "binary" not in kinds[n]]
    if not texts:
        return line
    whole = f"CAST(struct({', '.join(selected(texts, row))}) AS STRING)"
    return f"if(is_valid_utf8({whole}), {line}, {whole})"


def _refuse_intervals(schema: StructType) -> None:
    found = [each.name for each in schema.fields if _INTERVAL.search(each.dataType.simpleString())]
    if found:
        raise ConfigurationError(
            f"Columns {', '.join(found)} hold intervals, which Parquet has no type for: readers "
            "would find numbers. Make numbers or texts of them (cast), or take format='json'."
        )


def _refuse_empty_structs(schema: StructType) -> None:
    found = [each.name for each in schema.fields if "struct<>" in each.dataType.simpleString()]
    if found:
        raise ConfigurationError(
            f"Columns {', '.join(found)} hold structs without fields, which Parquet cannot hold. "
            "Leave them out, or give them a field."
        )


# --- read back ------------------------------------------------------------------------------------
# Committed rows, read back as a task was given them.


def read_back(spark: SparkSession, sink: FileSink, works: Sequence[PreparedWork]) -> DataFrame:
    """Read the rows of ``works`` back in Spark tasks, through the sink's own storage."""
    from pyspark.sql.pandas.types import from_arrow_schema

    read = ReadFiles(sink)
    found = read.of(files_of(works[0])[0].visible).schema
    schema = from_arrow_schema(found, prefer_timestamp_ntz=True)  # else local times become instants
    tasks = min(len(works), spark.sparkContext.defaultParallelism)
    wanted = spark.createDataFrame([(msgspec.json.encode(work),) for work in works], "work binary")
    return wanted.repartition(tasks).mapInArrow(read, schema)


@dataclass(frozen=True)
class ReadFiles:
    """The function that Spark runs in tasks: encoded works in, their rows out."""

    sink: FileSink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all works that ``batches`` name."""
        for batch in batches:
            for encoded in batch.column("work").to_pylist():
                yield from self.whole(msgspec.json.decode(encoded, type=PreparedWork))

    def whole(self, work: PreparedWork) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one work.

        Raises:
            TransactionError: its files have fewer or more rows than it delivered.
        """
        found = 0
        for file in files_of(work):
            rows = self.of(file.visible)
            found += len(rows)
            yield from rows.to_batches(max_chunksize=10_000)
        if found != work.rows:
            raise TransactionError(
                f"{work.identity} delivered {work.rows} rows, but its files have {found}: somebody "
                "has written them again. Which rows readers have cannot be told."
            )

    def of(self, path: str) -> pa.Table:
        """Read the rows of one file, with the columns of its partition."""
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

        with self.sink.storage().open(path) as data:
            if path.endswith(".parquet"):
                return pq.ParquetFile(data).read()
            codec = {"gz": "gzip", "bz2": "bz2"}.get(path.rpartition(".")[2])
            text = data.read() if codec is None else pa.CompressedInputStream(data, codec).read()
            return pa.table({LINE_COLUMN: texts_of(text)})


# --- configuration --------------------------------------------------------------------------------


class FileOptions(SinkOptions, frozen=True):
    """The options of a files sink; bucket and HDFS are reached by ``{"storage_options": {…}}``."""

    folder: str
    format: str | None = None
    partition_by: tuple[str, ...] | None = None
    compression: str | None = None
    publish: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> FileSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        options = how.get("storage_options") if isinstance(how, Mapping) else None
        return FileSink(name=name, storage_options=options, **self.given())


OPTIONS = FileOptions
