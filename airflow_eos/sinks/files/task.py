"""One task's files: one for each partition that it has rows of, prepared as one work."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol

from airflow_eos.errors import DeliveryError
from airflow_eos.participants.files.layout import detail, partition, prepared_name
from airflow_eos.participants.files.owned import KIND
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.sinks.files.formats import DataFile, Format, Split, ending, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_eos.participants.files.place import Place

_HELD_BYTES = 32 * 1024 * 1024
_PARTITIONS = 1000


class _Target(Protocol):
    """What a task is told of where its rows go; see the attributes of ``FileSink``."""

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> Format: ...
    @property
    def compressed(self) -> str: ...
    @property
    def partition_by(self) -> Sequence[str]: ...


class FilesOfTask:
    """See :class:`~airflow_eos.sinks.port.TaskWriter`: each file is made by its first rows.

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
        sink: _Target,
        place: Place,
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
        sizes = {}
        for folder, each in self._files.items():
            with self._place.refusing("writing files"):
                sizes[folder] = each.close()
            self._place.keep(self._path(folder), each.file)
        work = PreparedWork(
            kind=KIND,
            participant=self._sink.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail=detail(self._end, sizes),
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

    def __init__(self, file: BinaryIO, data: DataFile) -> None:
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

    def close(self) -> int:
        """No more rows; how many bytes it has."""
        self.flush()
        self._data.close()
        return os.fstat(self.file.fileno()).st_size

    def drop(self) -> None:
        self._rows, self.held = [], 0
        with suppress(OSError):  # what cannot be ended is removed all the same
            self._data.close()
