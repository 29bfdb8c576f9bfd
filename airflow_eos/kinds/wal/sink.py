"""The write-ahead sink: rows wait in the checkpoint, and a callable delivers the decided ones.

For systems that cannot prepare: an HTTP endpoint, a queue, a mail server. All rows of a batch pass
through the driver on their way out, one task's rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_eos.core.arguments import take_fields
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.port import bound_store
from airflow_eos.core.delivery.task import own_columns
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.kinds.spill.task import TASK_MODULES, SpilledTaskRows, read_back
from airflow_eos.kinds.texts import refuse_texts
from airflow_eos.kinds.wal.participant import (
    KIND,
    WriteAheadParticipant,
    check_deliver,
    deliver_of,
    loaded,
    made,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.port import TaskWriter


@dataclass(frozen=True)
class WriteAheadSink:
    """The write-ahead sink: a user's function, and settings.

    Attributes:
        deliver: ``package.module:function``, called on the driver with (token, rows), the rows of
            one task as a ``pyarrow.Table``. A token may come again: whether delivery is exactly
            once is up to the callable, see :mod:`airflow_eos.kinds.wal.participant`.
        name: the participant's name in the decisions of the pipeline.
        reach: handed to the callable as ``reach=…``, such as an address with a password; it is
            never written anywhere. A recovery is given its own.
        store: the checkpoint; see :meth:`bound`.
    """

    deliver: str
    name: str = DEFAULT_PARTICIPANT
    reach: Any = field(default=None, repr=False)
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        check_deliver(self.deliver)

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        loaded(self.deliver)
        check_workers(spark, modules=(*TASK_MODULES, __name__))

    def bound(self, store: CheckpointStore) -> WriteAheadSink:
        """See :meth:`Sink.bound`: tasks, too, keep rows in that checkpoint."""
        return replace(self, store=store)

    def connect(self, interval: timedelta) -> WriteAheadParticipant:
        """See :meth:`Sink.connect`; no interval is refused, since kept rows do not expire."""
        del interval
        return made(bound_store(self.store, KIND), self.name, self.deliver, self.reach)

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: any columns that have distinct names and can be hashed."""
        return own_columns(schema, row)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker.

        If not transactional, it calls the callable, with a token that no other task ever has.
        """
        store, now = bound_store(self.store, KIND), None if transactional else self._now
        return SpilledTaskRows(KIND, self.name, store, task, task_attempt, look=_refuse, now=now)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Refuse to read rows back: kept rows are never lost, so nothing is compared with them.

        Raises:
            DeliveryError: always.
        """
        del spark
        raise read_back(works, f"{KIND} {self.name!r}", "a callable cannot be asked")

    def _now(self, work: PreparedWork, rows: pa.Table) -> None:
        loaded(self.deliver, self.reach)(work.key, rows)


def _refuse(rows: pa.RecordBatch) -> None:
    refuse_texts(rows, "a function")  # Python would raise an error of its own, after the decision


class WriteAheadOptions(SinkOptions, frozen=True):
    """The options: none; the user's function is named where a recovery finds it, too."""

    def sink(self, name: str, app: AppFacts, how: Any) -> WriteAheadSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        asked = deliver_of(how)
        if asked is None:
            raise unreached("'package.module:function', or {'deliver': that, 'reach': …}")
        deliver, reach = asked
        return WriteAheadSink(deliver, name=name, reach=reach)


OPTIONS = WriteAheadOptions
