"""A task of a batch: its rows go to a writer of the sink's kind, its report to the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from airflow_eos.failpoints import failpoint
from airflow_eos.sinks.fingerprint import HASH_COLUMN, Fingerprint, with_row_hashes
from airflow_eos.sinks.port import TaskReport
from airflow_eos.sinks.worker import tune_process

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_eos.protocol.work import PreparedWork


class TaskWriter(Protocol):
    """One task's way into its system: ``write`` … → ``prepare``, or ``abort``."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; an error can come from a later call, after it only ``abort`` is of use."""

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Make durable what was written and leave it open; None where nothing is to be decided."""

    def abort(self) -> None:
        """Remove what was written and not prepared."""


Opened = Callable[[int, int], TaskWriter]
"""(task, attempt of the task) → its writer. It is pickled into every task."""


def reports_of(rows: DataFrame, opened: Opened, *, only: Collection[int] | None) -> DataFrame:
    """The report of each task; who reads them makes the tasks write."""
    task = SinkTask(opened, None if only is None else frozenset(only))
    return with_row_hashes(rows).mapInArrow(task, "report binary")


@dataclass(frozen=True)
class SinkTask:
    """The function that Spark runs for each partition of a batch.

    Attributes:
        opened: gives the writer.
        only: the tasks that write (all when None); the others drain their rows.
    """

    opened: Opened
    only: frozenset[int] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of one partition, and give its report."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:  # pragma: no cover - Spark sets it for every task
            raise RuntimeError("A sink's task runs inside Spark only")
        report = self.run(context.partitionId(), context.attemptNumber(), batches)
        yield pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(report)]})

    def run(self, task: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of one task and leave its work open."""
        fingerprint = Fingerprint()
        rows = 0
        if self.only is not None and task not in self.only:
            for batch in batches:  # read all the same: Spark's state needs them read
                fingerprint.add(batch)
                rows += batch.num_rows
            return TaskReport(task, rows, fingerprint.hex())
        writer = self.opened(task, attempt)
        try:
            for batch in batches:
                if batch.num_rows:
                    fingerprint.add(batch)
                    writer.write(batch.drop_columns(HASH_COLUMN))
                    rows += batch.num_rows
                    failpoint("task-wrote")
            work = writer.prepare(fingerprint.hex())
        except BaseException:
            # A killed task ends here too (GeneratorExit). Nothing names this work yet.
            writer.abort()
            raise
        failpoint("task-prepared")
        if rows:
            tune_process()
        return TaskReport(task, rows, fingerprint.hex(), work)
