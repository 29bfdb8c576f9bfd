"""The upsert sink: rows by key, kept in the checkpoint and written once they are decided.

A row replaces all values of its key; a late row never replaces a newer one. Where a key comes
twice in a batch, the last row of its task stays, and of two tasks the row of the higher one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from airflow_eos.core.arguments import Having, Key, take_fields
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.port import bound_store
from airflow_eos.core.delivery.task import own_columns
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.core.protocol.participant import Owner
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.key_columns import require_key_columns
from airflow_eos.kinds.spill.task import TASK_MODULES, SpilledTaskRows, read_back
from airflow_eos.kinds.sql.servers import as_text
from airflow_eos.kinds.upsert.hbase import HBaseUpsert
from airflow_eos.kinds.upsert.mysql import MySqlUpsert
from airflow_eos.kinds.upsert.participant import KIND, UpsertParticipant, made, target_of
from airflow_eos.kinds.upsert.postgres import PostgresUpsert
from airflow_eos.kinds.upsert.redis import RedisUpsert
from airflow_eos.kinds.upsert.target import RowSchema, TargetSpec, last_of_each

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.port import TaskWriter

__all__ = ["HBaseUpsert", "MySqlUpsert", "PostgresUpsert", "RedisUpsert", "UpsertSink"]

_TIMEOUT_S = 30.0


class UpsertTarget(TargetSpec, Protocol):
    """A target as a user gives it, such as ``PostgresUpsert``; needs no client library here."""

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns (names and Spark's types) that the target cannot take."""

    def with_limits(self) -> UpsertTarget:
        """Return this target with the limits that tasks need; asked once, on the driver."""
        ...

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse values that could never be written, before they are decided (DeliveryError)."""


_TARGETS = "a target, such as PostgresUpsert"


@dataclass(frozen=True)
class UpsertSink:
    """The upsert sink: target, key and settings.

    Attributes:
        target: a table or a prefix, which only this participant of this pipeline writes to.
        key: the columns of the key; a null in one of them is refused.
        deleted: a boolean column: true deletes the key, of which a tombstone stays with its
            version, so that no late row can bring it back.
        staged: False: the tasks write to the target themselves, so values are seen before the
            decision, and a batch that was not decided is written again. Only for a sink that is
            alone; docs/sinks.md has the other losses.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
    """

    target: Annotated[UpsertTarget, Having(what=_TARGETS, name="refuse_rows")]
    key: Key
    deleted: str | None = None
    staged: bool = True
    name: str = DEFAULT_PARTICIPANT
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        if self.deleted in self.key:
            raise ConfigurationError(f"deleted {self.deleted!r} is a column of the key.")

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=(*TASK_MODULES, __name__))

    def bound(self, store: CheckpointStore) -> UpsertSink:
        """See :meth:`Sink.bound`: tasks, too, keep rows in that checkpoint."""
        return replace(self, store=store, target=self.target.with_limits())

    def connect(self, interval: timedelta) -> UpsertParticipant:
        """See :meth:`Sink.connect`; no interval is refused, since kept rows do not expire."""
        del interval
        return self._participant()

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: with the key's columns, all of types that the target can hold.

        Raises:
            ConfigurationError: with the columns that the target cannot take.
        """
        columns = {each.name: each.dataType.simpleString() for each in schema.fields}
        require_key_columns(columns, self.key, self.deleted)
        self.target.refuse(columns, tuple(self.key), self.deleted)
        return own_columns(schema, row)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker; to the target if not transactional."""
        return SpilledTaskRows(
            KIND,
            self.name,
            bound_store(self.store, KIND),
            task,
            task_attempt,
            about=RowSchema(tuple(self.key), self.deleted).metadata(),
            look=self._tried if transactional else self._refuse,
            now=None if transactional else self._now,
        )

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Return why rows would change other rows than this work did; empty: they would not."""
        del columns
        ours = RowSchema(tuple(self.key), self.deleted)
        if all(ours.metadata().items() <= work.detail.items() for work in works):
            return ""
        return f"rows were written by another key, or deletes by another column, than {ours}"

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Refuse to read rows back: kept rows are never lost, so nothing is compared with them.

        Raises:
            DeliveryError: always.
        """
        del spark
        what = f"{KIND} {self.name!r}"
        raise read_back(works, what, "later values may have replaced")

    def _refuse(self, rows: pa.RecordBatch) -> None:
        nulls = [name for name in self.key if rows.column(name).null_count]
        if nulls:
            raise DeliveryError(
                f"A row has no {', '.join(nulls)}, of the key of upsert {self.name!r}. Nothing of "
                "its batch was written. Filter such rows out, or give them a key (coalesce)."
            )
        self.target.refuse_rows(rows, self.key)

    def _tried(self, rows: pa.RecordBatch) -> None:
        """Refuse rows also by what the target says of them, since kept rows must be written."""
        import pyarrow as pa

        self._refuse(rows)
        about = RowSchema(tuple(self.key), self.deleted)
        with closing(self.target.open(timeout_s=_TIMEOUT_S)) as target:
            target.tried(last_of_each(pa.Table.from_batches([rows]), about.key), about)

    def _participant(self) -> UpsertParticipant:
        with closed_on_error(self.target.open(timeout_s=_TIMEOUT_S)) as target:
            return made(bound_store(self.store, KIND), self.name, target, staged=self.staged)

    def _now(self, work: PreparedWork, rows: pa.Table) -> None:
        with closing(self._participant()) as participant:
            participant.claim(Owner.at("", bound_store(self.store, KIND).location))
            participant.apply(work, rows)


class UpsertOptions(SinkOptions, frozen=True):
    """The options; ``target`` is a table, a prefix (Redis) or ``table/family`` (HBase)."""

    system: Literal["postgres", "mysql", "redis", "hbase"]
    target: str
    key: tuple[str, ...]
    deleted: str | None = None
    staged: bool = True

    def sink(self, name: str, app: AppFacts, how: Any) -> UpsertSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        told = as_text(self.system, how)
        if told is None:
            raise unreached(f"a URL of {self.system}, or an object of its parts")
        target = target_of(self.system, told, self.target)
        return UpsertSink(target, self.key, deleted=self.deleted, staged=self.staged, name=name)


OPTIONS = UpsertOptions
