"""One task's files: one for each partition that it has rows of, prepared as one work."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from airflow_eos.errors import DeliveryError
from airflow_eos.participants.files.layout import (
    detail,
    partition,
    prepared_at,
    visible_name,
)
from airflow_eos.participants.files.manifest import note_files
from airflow_eos.participants.files.owned import KIND
from airflow_eos.protocol.work import PreparedWork
from airflow_eos.sinks.files.formats import DataFile, Format, Split, ending, opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
    @property
    def publish(self) -> str: ...


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
        self._noted = sink.publish == "manifest"
        self._may_be_named = False
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
                each.close()
                sizes[folder] = each.path.stat().st_size
            self._place.keep(self._path(folder), each.path)
        self._require_mine()
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
        self._may_be_named = self._noted
        self._publish(work)
        return None

    def abort(self) -> None:
        """Remove the files; but none that a log may name: readers of it would fail for ever.

        The note stays with them, by which whoever looks into the log can end them.
        """
        if self._may_be_named:
            return
        with ExitStack() as undo:
            if self._noted:
                undo.callback(self._place.store.delete, [self._note])
            undo.callback(self._place.remove, [self._path(folder) for folder in self._files])
            for each in self._files.values():
                undo.callback(self._place.discard, each.path)
                undo.callback(each.drop)

    @property
    def _end(self) -> str:
        return ending(self._sink.format, self._sink.compressed)

    @property
    def _note(self) -> str:
        return prepared_at(self._sink.name, self._key)

    def _path(self, folder: str) -> str:
        """Where the file is until it is decided: where a log shows it, or where nobody looks."""
        name = visible_name(folder, self._key, self._end)
        return name if self._noted else f"{self._note}/{name}"

    def _require_mine(self) -> None:
        if self._noted and self._place.store.head(self._note) is None:
            raise DeliveryError(
                f"Work {self._key} was aborted while it was written: another attempt took over. "
                "Nothing of it is visible, and nothing is lost."
            )

    def _begun(self, folder: str, schema: pa.Schema) -> _Held:
        if len(self._files) == _PARTITIONS:
            raise DeliveryError(
                f"A task has rows of more than {_PARTITIONS} partitions by "
                f"{', '.join(self._sink.partition_by)}: a file each, in every batch. Expected "
                "columns of few values, or rows put together before: "
                f"df.repartition({', '.join(map(repr, self._sink.partition_by))})."
            )
        if self._noted:
            paths = [self._path(each) for each in (*self._files, folder)]
            note_files(self._place, self._sink.name, self._key, paths)
        path = self._place.scratch(self._path(folder))
        with self._place.refusing("writing files"):
            return _Held(path, opened(self._sink.format, path, self._sink.compressed, schema))


class _Held:
    """A file, and rows that are not yet in it."""

    def __init__(self, path: Path, file: DataFile) -> None:
        self.path = path
        self.held = 0
        self._file = file
        self._rows: list[pa.RecordBatch] = []

    def hold(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self.held += rows.nbytes

    def flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._file.write(pa.concat_batches(self._rows))
        self._rows, self.held = [], 0

    def close(self) -> None:
        self.flush()
        self._file.close()

    def drop(self) -> None:
        self._rows, self.held = [], 0
        with suppress(OSError):  # what cannot be ended is removed all the same
            self._file.close()
