"""Where the rows of a history go: Kafka, or Kafka and others in one decision; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_eos.core.delivery.port import Sink, TaskReport, TaskWriter
from airflow_eos.core.delivery.task import SinkTask, TaskOutput
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.core.protocol.participant_group import reach_all
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.sink import KafkaSink
from airflow_eos.kafka.transactions.identity import as_transaction
from airflow_eos.kafka.transactions.outcomes import delivered_rows
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.kinds.files.folder import files_of
from airflow_eos.kinds.files.sink import FileSink
from airflow_eos.kinds.postgres.sink import PostgresSink
from tests.chaos.frame import Frame, Tasks
from tests.chaos.settings import FILES, KAFKA, POSTGRES, DriverSettings
from tests.support.authority import LazyTasks

_ANSWER_WITHIN = timedelta(seconds=5)
_ANY_INTERVAL = timedelta(seconds=1)


@dataclass(frozen=True)
class LoopOutputs:
    """See :class:`~airflow_eos.core.delivery.port.BatchSink`: tasks run in our own workers."""

    sinks: tuple[Sink, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sink.name for sink in self.sinks)

    def part(self, name: str) -> LoopOutputs:
        return LoopOutputs(tuple(sink for sink in self.sinks if sink.name == name))

    def rows(self, df: Any) -> Any:
        return df

    def streamed(self, df: Any) -> Any:
        return df

    def tasks(self, rows: Any, *, only: Collection[int] | None = None) -> Any:
        return LazyTasks(lambda: self.prepare(rows, only=only))

    def prepare(self, rows: Any, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """As ``Outputs`` does: a column for each where there are several."""
        several = len(self.sinks) > 1
        outlets = tuple(
            TaskOutput(sink.name, sink.opened, sink.name if several else None)
            for sink in self.sinks
        )
        task = SinkTask(outlets, None if only is None else frozenset(only))
        reports: list[TaskReport] = rows.pool.run(task, rows.handed_out())
        return reports

    def delivered(self, spark: Any, works: Sequence[PreparedWork]) -> Any:
        """Of one participant."""
        [sink] = self.part(works[0].participant).sinks
        if isinstance(sink, KafkaSink):
            return Frame(spark, partial(_of_topic, sink, works))
        if isinstance(sink, FileSink):
            return Frame(spark, partial(_of_files, sink, works))
        return sink.delivered(spark, works)  # refuses


@dataclass(frozen=True)
class _Telling:
    writer: TaskWriter
    name: str

    def write(self, rows: pa.RecordBatch) -> None:
        self.writer.write(rows)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        work = self.writer.prepare(fingerprint)
        failpoint(f"task-{self.name}-prepared")
        return work

    def abort(self) -> None:
        self.writer.abort()


class _OneOfSeveral:
    """A sink whose tasks say when they have prepared, for a kill before the next output does."""

    def opened(self, task: int, task_attempt: int, **how: Any) -> TaskWriter:
        sink: Any = super()
        return _Telling(sink.opened(task, task_attempt, **how), cast("Sink", self).name)


class ToTopic(_OneOfSeveral, KafkaSink):
    """The topic of a history, as one of several outputs."""


class ToTable(_OneOfSeveral, PostgresSink):
    """Its table."""


class ToFolder(_OneOfSeveral, FileSink):
    """Its files."""


def besides(outputs: Collection[str], prefix: str, dsn: str, files: str) -> dict[str, Sink]:
    """The sinks of those of ``outputs`` that are not Kafka."""
    table = partial(ToTable, dsn, table_of(prefix), gid_prefix=prefix, answer_within=_ANSWER_WITHIN)
    ways: dict[str, Callable[..., Sink]] = {POSTGRES: table, FILES: partial(ToFolder, files)}
    return {name: make(name=name) for name, make in ways.items() if name in outputs}


def connected(settings: DriverSettings) -> tuple[LoopOutputs, Participant]:
    """The sinks of a driver, and its participants as one."""
    several = len(settings.outputs) > 1
    kafka = (ToTopic if several else KafkaSink)(
        bootstrap_servers=settings.bootstrap,
        topic=settings.topic,
        transactional_id_prefix=settings.prefix,
        transaction_timeout=timedelta(seconds=settings.timeout_s),
        name=KAFKA if several else DEFAULT_PARTICIPANT,
    )
    others = besides(settings.outputs, settings.prefix, settings.dsn, str(settings.files))

    def connect_kafka() -> Participant:
        # Not sink.connect, which would refuse timeouts as short as these.
        ledger = PrefixLedger(kafka.settings, prefix=settings.prefix)
        return KafkaParticipant(ConnectionPool(kafka.settings), ledger, name=kafka.name)

    ways: list[Callable[[], Participant]] = [connect_kafka]
    ways += [partial(sink.connect, _ANY_INTERVAL) for sink in others.values()]
    return LoopOutputs((kafka, *others.values())), reach_all(ways)


def table_of(prefix: str) -> str:
    return prefix.replace("-", "_")


def _of_topic(sink: KafkaSink, works: Sequence[PreparedWork]) -> Tasks:
    with ConnectionPool(sink.settings) as wire:
        return [
            list(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
            for batch in delivered_rows(wire, [as_transaction(work) for work in works])
        ]


def _of_files(sink: FileSink, works: Sequence[PreparedWork]) -> Tasks:
    tables = [pq.read_table(f"{sink.folder}/{files_of(each)[0].visible}") for each in works]
    return [
        list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        for table in tables
    ]
