"""The rows of one task as one compressed Arrow stream, in its worker's memory until it is whole."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from airflow_eos.errors import DeliveryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

STREAM_MODULES = ("pyarrow", "numpy", "msgspec", "obstore")

_BATCH = "streaming.sql.batchId"  # MicroBatchExecution.BATCH_ID_KEY


class KeptStream:
    """Rows as they are written, compressed.

    Args:
        about: goes into the schema of the rows, for whoever reads them.
    """

    def __init__(self, about: Mapping[str, str] | None = None) -> None:
        self._about = dict(about or {})
        self._stream = io.BytesIO()
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows; the first ones say which columns all of them have."""
        import pyarrow as pa

        if self._writer is None:
            self._writer = pa.ipc.new_stream(
                self._stream,
                rows.schema.with_metadata(self._about),
                options=pa.ipc.IpcWriteOptions(compression="zstd"),
            )
        self._writer.write_batch(rows.replace_schema_metadata(self._about))

    def whole(self) -> bytes:
        """The stream; empty bytes where no rows came."""
        if self._writer is not None:
            self._writer.close()
        return self._stream.getvalue()


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
