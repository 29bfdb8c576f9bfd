"""A perishable sink whose rows are also kept in the checkpoint, until readers have them.

Work that a system ends by itself, as Kafka does at a timeout, is promised and lost, and a replay
evaluates its batch again. Where that gives other rows, as ``rand()`` does, and another participant
of the decision has committed, the outcomes would be split for ever. Kept rows are written again as
they were.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from airflow_eos.core.checkpoint.decisions import PerishableRows, summed
from airflow_eos.core.checkpoint.locations import as_local_path
from airflow_eos.core.delivery.port import SPARK, WrappingSink
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.cut import stamp_of
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.port import Sink, TaskWriter
    from airflow_eos.core.protocol.decision import PreparedWork
    from airflow_eos.core.protocol.participant import Participant

STREAM_MODULES = ("pyarrow", "numpy", "msgspec", "obstore")

_BATCH = "streaming.sql.batchId"  # MicroBatchExecution.BATCH_ID_KEY
_PIPELINE = "airflow_eos.pipeline"


class SpillStream:
    """A compressed Arrow stream of rows, in memory.

    Args:
        about: metadata for the rows' schema, for whoever reads them.
    """

    def __init__(self, about: Mapping[str, str] | None = None) -> None:
        self._about = dict(about or {})
        self._stream = io.BytesIO()
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows; the first ones define the columns of all."""
        import pyarrow as pa

        if self._writer is None:
            self._writer = pa.ipc.new_stream(
                self._stream,
                rows.schema.with_metadata(self._about),
                options=pa.ipc.IpcWriteOptions(compression="zstd"),
            )
        self._writer.write_batch(rows.replace_schema_metadata(self._about))

    def whole(self) -> bytes:
        """Return the complete stream; empty bytes where no rows came."""
        if self._writer is None:
            return b""
        self._writer.close()
        return summed(self._stream)


def running_batch() -> int:
    """Return the number of the batch that this task belongs to, as Spark tells its tasks.

    Raises:
        DeliveryError: Spark does not tell the number.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    told = context.getLocalProperty(_BATCH) if context is not None else None
    if told is None:
        raise DeliveryError(
            f"Spark does not tell its task which batch it runs (local property {_BATCH}). Expected "
            f"a micro-batch of {SPARK}, and pinned threads (PYSPARK_PIN_THREAD, on by "
            "default). Nothing was written."
        )
    return int(told)


def tell_pipeline(spark: SparkSession, pipeline: str) -> None:
    """Tell the tasks that this thread starts whose rows they write; see :func:`running_stamp`."""
    spark.sparkContext.setLocalProperty(_PIPELINE, pipeline)


def running_stamp() -> int | None:
    """Return the number that marks what this task writes; see :func:`stamp_of`.

    None outside of a batch that is delivered exactly once: no cut is taken of it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    pipeline = context.getLocalProperty(_PIPELINE) if context is not None else None
    return None if pipeline is None else stamp_of(pipeline, running_batch())


# --- kept rows ------------------------------------------------------------------------------------


def require_perishable(sink: Sink) -> None:
    """Refuse to keep the rows of a sink whose prepared work only decisions end.

    Raises:
        ConfigurationError: with the sink's name.
    """
    if not getattr(sink, "perishable", False):
        raise ConfigurationError(
            f"Output {sink.name!r}: keep_rows is for systems that end prepared work by themselves, "
            f"as Kafka does at a timeout. What a {type(sink).__name__} prepares is ended by "
            "decisions alone, so there is nothing to write again: leave keep_rows out."
        )


@dataclass(frozen=True)
class SpillingSink(WrappingSink):
    """A ``Sink`` around another sink, whose tasks keep their rows.

    Attributes:
        sink: the inner sink; decisions name its work.
        store: the checkpoint.
    """

    store: CheckpointStore = field(repr=False, compare=False)

    perishable: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name of ``sink``."""
        return self.sink.name

    def check(self, spark: SparkSession) -> None:
        """Check the sink, and the modules that tasks need to keep rows; see :meth:`Sink.check`."""
        self.sink.check(spark)
        check_workers(spark, modules=(*STREAM_MODULES, __name__))

    def bound(self, store: CheckpointStore) -> SpillingSink:
        """See :meth:`Sink.bound`."""
        return replace(self, sink=self.sink.bound(store), store=store)

    def connect(self, interval: timedelta) -> Participant:
        """Connect ``sink``: its participant ends work, and needs no rows."""
        return self.sink.connect(interval)

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """Return the columns of ``sink``."""
        return self.sink.columns(schema, row)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer; rows that are visible at once are not kept: no replay writes them."""
        writer = self.sink.opened(task, task_attempt, transactional=transactional)
        return _SpillingWriter(self, writer) if transactional else writer

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Return the delivered rows, as ``sink`` reads them."""
        return self.sink.delivered(spark, works)


class _SpillingWriter:
    """A ``TaskWriter`` that also keeps the rows of ``writer``."""

    def __init__(self, sink: SpillingSink, writer: TaskWriter) -> None:
        self._sink = sink
        self._writer = writer
        self._stream = SpillStream()

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the rows, and compress them into memory."""
        self._writer.write(rows)
        self._stream.add(rows)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Prepare, then keep the rows: both are durable before any decision names the work."""
        work = self._writer.prepare(fingerprint)
        if work is not None:
            require_disk(self._sink.store)
            kept = PerishableRows(self._sink.store)
            kept.keep(self._sink.name, running_batch(), work.key, self._stream.whole())
            failpoint("task-kept")
        return work

    def abort(self) -> None:
        """Abort ``writer``. Rows kept already are never named, and are removed with their batch."""
        self._writer.abort()


def require_disk(store: CheckpointStore) -> None:
    """Refuse a machine that lacks the checkpoint's disk: rows kept there nobody would find.

    Raises:
        StoreError: the folder of the checkpoint is not there.
    """
    folder = as_local_path(store.location)
    if folder is not None and not folder.is_dir():
        raise StoreError(
            f"{folder} is not there, where a task is to keep its rows in the checkpoint. Is the "
            "disk mounted here, as on the driver and every executor? Nothing of this batch is "
            "promised."
        )


def kept_rows(
    like: DataFrame, kept: PerishableRows, name: str, batch: int, keys: Sequence[str]
) -> DataFrame:
    """Return the rows that were kept under ``keys``: a task for each key, in their order.

    Args:
        like: a DataFrame with the columns and types of the rows.
        kept: the store of the rows.
        name: the name of the participant.
        batch: the number of the batch.
        keys: the keys of the work that was lost.
    """
    read = _SpillReader(kept, name, batch, tuple(keys), tuple(like.columns))
    tasks = like.sparkSession.range(0, len(keys), 1, len(keys))
    return tasks.mapInArrow(read, like.schema)


@dataclass(frozen=True)
class _SpillReader:
    kept: PerishableRows
    name: str
    batch: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                rows = self.kept.stream_of(self.name, self.batch, self.keys[number])
                if tuple(rows.schema.names) != self.columns:
                    raise DeliveryError(
                        f"Batch {self.batch} was promised with the columns {rows.schema.names} "
                        f"for {self.name!r}, and the program gives {list(self.columns)} now. "
                        "Nothing was made visible. Put the program back until that batch is over."
                    )
                yield from rows
