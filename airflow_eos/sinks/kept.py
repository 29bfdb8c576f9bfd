"""A task whose rows are kept in the checkpoint: one Arrow stream, written when it is whole.

What a task wrote, compressed, waits in its worker's memory until then: an object that is created
only if it is absent is created at once.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.participants.kept.rows import KeptRows, new_key
from airflow_eos.protocol.work import PreparedWork
from airflow_eos.sinks.fingerprint import HASH_COLUMN, require_hashable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_eos.checkpoint.store import CheckpointStore

TASK_MODULES = ("pyarrow", "numpy", "msgspec", "obstore", "airflow_eos.sinks.kept")

Now = Callable[[PreparedWork, "pa.Table"], object]

_BATCH = "streaming.sql.batchId"  # MicroBatchExecution.BATCH_ID_KEY


@dataclass(frozen=True)
class TaskPlace:
    """Where a task keeps its rows.

    Attributes:
        kind: of the participant.
        name: of the participant.
        store: the checkpoint.
        task: number of the task.
        attempt: of the task.
    """

    kind: str
    name: str
    store: CheckpointStore
    task: int
    attempt: int


class KeptRowsOfTask:
    """See :class:`~airflow_eos.sinks.port.TaskWriter`.

    Args:
        place: where the rows are kept.
        about: goes into the schema of the rows, for whoever applies them.
        look: is shown each batch of rows, and may refuse it.
        now: applies the rows at once, where they are visible at once and nothing is kept.
    """

    def __init__(
        self,
        place: TaskPlace,
        *,
        about: dict[str, str] | None = None,
        look: Callable[[pa.RecordBatch], None] = lambda _rows: None,
        now: Now | None = None,
    ) -> None:
        self._place = place
        self._about = about or {}
        self._look = look
        self._now = now
        self._batch = running_batch()
        self._stream = io.BytesIO()
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Compress them into memory."""
        import pyarrow as pa

        self._look(rows)
        if self._writer is None:
            self._opened_at_ms = time.time_ns() // 1_000_000
            self._writer = pa.ipc.new_stream(
                self._stream,
                rows.schema.with_metadata(self._about),
                options=pa.ipc.IpcWriteOptions(compression="zstd"),
            )
        self._writer.write_batch(rows.replace_schema_metadata(self._about))
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Create the object; durable on return, and read by nobody before the decision."""
        if self._writer is None:
            return None
        self._writer.close()
        place = self._place
        work = PreparedWork(
            kind=place.kind,
            participant=place.name,
            key=new_key(self._batch, place.task, place.attempt),
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail={"bytes": self._stream.tell()},
        )
        if self._now is not None:
            from airflow_eos.participants.kept.participant import table_of

            self._now(work, table_of(self._stream.getvalue(), "what the task wrote"))
            return None
        KeptRows(place.store, place.name).keep(work.key, self._stream.getvalue())
        return work

    def abort(self) -> None:
        """Nothing was written before it was prepared."""
        self._stream = io.BytesIO()


def running_batch() -> int:
    """The number of the batch that this task belongs to, as Spark tells its tasks.

    Raises:
        DeliveryError: Spark does not tell it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    told = context.getLocalProperty(_BATCH) if context is not None else None
    if told is None:
        raise DeliveryError(
            f"Spark does not tell its task which batch it runs (local property {_BATCH}). Expected "
            "a micro-batch of Spark 4.0 to 4.2, and pinned threads (PYSPARK_PIN_THREAD, on by "
            "default). Nothing was written."
        )
    return int(told)


def required(store: CheckpointStore | None, kind: str) -> CheckpointStore:
    """The checkpoint that a sink was bound to (ConfigurationError where it was not)."""
    if store is None:
        raise ConfigurationError(
            f"This {kind} sink does not know its checkpoint: hand it to start_exactly_once, or "
            "use what its bound(store) gives."
        )
    return store


def own_columns(schema: StructType, row: str) -> list[str]:
    """Any columns that have names of their own and can be hashed.

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
