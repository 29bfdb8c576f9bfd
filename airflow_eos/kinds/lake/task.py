"""The task writer of sinks into Delta and Iceberg: one Parquet file a task, noted first."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.locations import make_durable, tail_in
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.kinds.lake.participant import DataFile, WorkNotes
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.texts import refuse_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.delivery.options import AppFacts

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
        folder: of the data files.
        compression: of Parquet.
        spared_ms: how long the table's cleaner spares a file that the log does not name.
        known: a folder of the table, which is there wherever the table's disk is.
        columns: returns the file's columns for those of the rows, with the table's ids for them.
    """

    kind: str
    name: str
    folder: Path
    compression: str
    spared_ms: int
    known: Path
    columns: Callable[[pa.Schema], pa.Schema] = lambda rows: rows


class ParquetOfTask:
    """See :class:`~airflow_eos.delivery.port.TaskWriter`: one file, made by its first rows.

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
        self._file = what.folder / f"{self._key}.parquet"
        self._notes = None if store is None else WorkNotes(store, what.name)
        self._publish = publish
        self._writer: pa.parquet.ParquetWriter | None = None
        self._may_be_named = False
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Append a row group; the first row group makes the note, then the file.

        Raises:
            StoreError: the disk refuses.
        """
        refuse_texts(rows, "a reader of Parquet files")
        with self._disk():
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
        with self._disk():
            self._writer.close()
            make_durable(self._file)
            found = self._file.stat()
            with self._file.open("rb") as opened:
                tail = tail_in(opened, found.st_size)
        failpoint("task-filed")
        if self._notes is None:
            modified_at_ms = found.st_mtime_ns // 1_000_000
            self._may_be_named = True
            self._publish(DataFile(self._file, found.st_size, self._rows, modified_at_ms))
            return None
        if not self._notes.has(self._key):
            raise DeliveryError(
                f"{self._file} was aborted while it was written: another attempt took over. "
                "Nothing of it is visible, and nothing is lost."
            )
        return PreparedWork(
            kind=self._what.kind,
            participant=self._what.name,
            key=self._key,
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=self._what.spared_ms,
            detail={"bytes": found.st_size, "tail": tail},
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
            self._file.unlink(missing_ok=True)
            if self._notes is not None:
                self._notes.forget([self._key])

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:  # aborted meanwhile, as prepare finds by the note
            raise
        except OSError as error:
            raise StoreError(
                f"The disk refused the file of a task, {self._file}: {error}. Make room there, or "
                "give driver and executors one user that may write; then start again. Nothing of "
                "it is visible, and nothing is lost."
            ) from error

    def _begun(self, schema: pa.Schema) -> pa.parquet.ParquetWriter:
        import pyarrow.parquet as pq

        if not self._what.known.is_dir():  # made here, the file would be promised, and never found
            raise StoreError(
                f"{self._what.known} is not there, where a task is to write a file of the table. "
                "Is the disk mounted here, as on the driver and every executor? Nothing of this "
                "batch is promised."
            )
        self._opened_at_ms = time.time_ns() // 1_000_000
        if self._notes is not None:
            self._notes.write(self._key, str(self._file))
        failpoint("task-noted")
        self._file.parent.mkdir(exist_ok=True)
        # Without Arrow's own schema an instant is read as one, not as a time in the session's zone.
        return pq.ParquetWriter(
            self._file,
            self._what.columns(schema),
            compression=self._what.compression,
            store_schema=False,
        )
