"""The files sink: a task writes data files, which the decision makes visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import msgspec

from airflow_eos.checkpoint.locations import as_local_path
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.delivery.options import AppFacts, SinkOptions
from airflow_eos.delivery.port import bound_store
from airflow_eos.delivery.task import HASH_COLUMN, quoted, require_hashable, selected
from airflow_eos.delivery.workers import check_workers
from airflow_eos.errors import ConfigurationError, DeliveryError, TransactionError
from airflow_eos.kinds.files import manifest, participant
from airflow_eos.kinds.files.folder import KIND, NO_VALUE, files_of
from airflow_eos.kinds.files.manifest import ManifestParticipant
from airflow_eos.kinds.files.participant import FilesParticipant
from airflow_eos.kinds.files.place import opened
from airflow_eos.kinds.files.task import LINE_COLUMN, Format, checked_compression, texts_of
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, Outcome, PreparedWork, check_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.delivery.port import TaskWriter
    from airflow_eos.kinds.files.place import DataFolder

TASK_MODULES = ("pyarrow.parquet", "numpy", "msgspec", "airflow_eos.kinds.files.task")
# Spark's own are in the session's zone, and lose what is below a millisecond.
_LOCAL = "concat('yyyy-MM-dd', chr(39), 'T', chr(39), 'HH:mm:ss.SSSSSS')"
_INSTANTS = (
    f"map('timeZone', 'UTC', 'timestampNTZFormat', {_LOCAL}, "
    f"'timestampFormat', concat({_LOCAL}, 'XXX'))"
)


@dataclass(frozen=True)
class FileSink:
    """The file sink: folder and settings.

    Attributes:
        folder: an absolute path on a disk that the driver and every executor have. What is not
            decided is kept beside it, in ``_eos.<its name>``: readers of it see decided rows alone.
        format: ``parquet``, or ``json``: a line for each row, as Spark's own writer makes them, but
            with instants in UTC and to the microsecond.
        partition_by: columns whose values are folders (``day=2026-11-23/…``, as Spark names
            them); the files leave them out. Nulls and empty texts are one folder.
        compression: Parquet: none, snappy, gzip, brotli, lz4 or zstd, which is the default; JSON:
            none, the default, gzip or bz2.
        publish: ``listing``: each file becomes visible by itself, to any reader of the folder.
            ``manifest``: a whole batch at once, to readers that read by Spark's own log in the
            folder (``_spark_metadata``); others list its files, and may see a part of a batch.
        storage_options: of a bucket, as the checkpoint's; without them the environment decides.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
    """

    folder: str
    format: Format = "parquet"
    partition_by: Sequence[str] = ()
    compression: str | None = None
    name: str = DEFAULT_PARTICIPANT
    publish: Literal["listing", "manifest"] = "listing"
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        checked_compression(self.format, self.compression)
        if self.publish not in ("listing", "manifest"):
            raise ConfigurationError(f"publish {self.publish!r}: expected listing or manifest.")
        if isinstance(self.partition_by, str):
            object.__setattr__(self, "partition_by", (self.partition_by,))
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        hidden = [name for name in self.partition_by if not name or name[0] in "_."]
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
        """How the files are compressed."""
        return checked_compression(self.format, self.compression)

    def place(self) -> DataFolder:
        """The folder, as this process reaches it."""
        return opened(self.folder, self.storage_options)

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`: and the log of whole batches is there before the first file."""
        check_workers(spark, modules=TASK_MODULES)
        if self.publish == "manifest":  # without a promise, nothing else is done before the tasks
            self._joined(self.place())

    def connect(self, interval: timedelta) -> FilesParticipant | ManifestParticipant:
        """See :meth:`Sink.connect`; nothing can be too slow for a file."""
        del interval
        place = self.place()
        place.check(self.name)
        return self._joined(place)

    def bound(self, store: CheckpointStore) -> FileSink:
        """The same sink, which settles the decisions of this checkpoint as a whole."""
        return replace(self, store=store) if self.publish == "manifest" else self

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: any that have names of their own and can be hashed.

        Those of the partition as texts, as Spark names folders. A line of JSON is made here, by
        Spark: it is the row.

        Raises:
            ConfigurationError: they have not, or Spark cannot hash them (maps in Parquet), or a
                column of ``partition_by`` is missing or cannot be a folder's name.
        """
        self._check_names(schema.fieldNames())
        self._check_partition(schema)
        data = [name for name in schema.fieldNames() if name not in self.partition_by]
        if self.format == "json":
            fields = ", ".join(selected(data, row))
            chosen = [f"to_json(struct({fields}), {_INSTANTS}) AS `{LINE_COLUMN}`"]
        else:
            require_hashable(schema)
            chosen = selected(data, row)
        folders = [
            f"nullif(CAST({quoted(name, row)} AS STRING), '') AS {quoted(name)}"
            for name in self.partition_by
        ]
        return [*chosen, *folders]

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """The writer of one task, in a Spark worker."""
        from airflow_eos.kinds.files.task import FilesOfTask

        publish = None if transactional else self._publish
        return FilesOfTask(self, self.place(), task, attempt, publish=publish)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`."""
        return read_back(spark, self, works)

    def _publish(self, work: PreparedWork) -> None:
        files = self._joined(self.place())
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

    def _joined(self, place: DataFolder) -> FilesParticipant | ManifestParticipant:
        if self.publish == "listing":
            return participant.joined(place, self.name)
        return manifest.joined(place, self.name, bound_store(self.store, KIND))

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


# --- read_back ------------------------------------------------------------------------------------
# What was committed, read back: the rows as a task was given them.


def read_back(spark: SparkSession, sink: FileSink, works: Sequence[PreparedWork]) -> DataFrame:
    """The rows of ``works``, each work by a task, as the sink reaches them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    read = ReadFiles(sink)
    schema = from_arrow_schema(read.of(files_of(works[0])[0].visible).schema)
    tasks = min(len(works), spark.sparkContext.defaultParallelism)
    wanted = spark.createDataFrame([(msgspec.json.encode(work),) for work in works], "work binary")
    return wanted.repartition(tasks).mapInArrow(read, schema)


@dataclass(frozen=True)
class ReadFiles:
    """The function that Spark runs: works in, rows out."""

    sink: FileSink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of all works that ``batches`` name."""
        for batch in batches:
            for encoded in batch.column("work").to_pylist():
                yield from self.whole(msgspec.json.decode(encoded, type=PreparedWork))

    def whole(self, work: PreparedWork) -> Iterator[pa.RecordBatch]:
        """The rows of one work.

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


# --- configuration --------------------------------------------------------------------------------


class FileOptions(SinkOptions, frozen=True):
    """A folder of files, or a bucket, which is reached by ``{"storage_options": {…}}``."""

    folder: str
    format: str | None = None
    partition_by: tuple[str, ...] | None = None
    compression: str | None = None
    publish: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> FileSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        options = how.get("storage_options", {}) if isinstance(how, Mapping) else {}
        return FileSink(name=name, storage_options=options, **self.given())


OPTIONS = FileOptions
